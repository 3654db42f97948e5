"""A Spark checkpoint with four partitions, for the modules that define no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.model.key_groups import KeyGroups
from tests.checkpoints import CheckpointBuilder


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return CheckpointBuilder(
        tmp_path / "check point", partitions=4, groups=KeyGroups(48, 12)
    ).build()
