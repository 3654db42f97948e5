"""A Spark checkpoint and a savepoint of it, for the modules that define no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond import savepoint
from tests.checkpoints import CheckpointBuilder


@pytest.fixture(scope="module", params=[1, 2], ids=["checkpoint-format-1", "checkpoint-format-2"])
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckpointBuilder:
    return CheckpointBuilder(
        tmp_path_factory.mktemp("template"), spark_format=request.param
    ).build()


@pytest.fixture
def built(template: CheckpointBuilder, tmp_path: Path) -> CheckpointBuilder:
    return template.copy_to(tmp_path / "check point")


@pytest.fixture
def saved(built: CheckpointBuilder, tmp_path: Path) -> Path:
    savepoint.create(built.root, tmp_path / "saved")
    return tmp_path / "saved"
