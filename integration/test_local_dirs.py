"""The local folder of a JVM that ends in order, is killed while it ends, or lost its folder once.
The next agent must find whatever is left.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from integration.harness import Harness, Provider, Schema, millponds_own
from integration.store_cases import open_provider
from millpond.agent.local_dirs import LOCK_NAME, sweep_abandoned

pytestmark = millponds_own

SCHEMA = Schema("k string", "v string")


def written(harness: Harness, checkpoint: Path) -> tuple[Provider, Path]:
    """Return a provider that has written a batch, and the local folder of its JVM."""
    provider = open_provider(harness, checkpoint, operator="stateStoreSave", schema=SCHEMA)
    store = provider.store(0)
    store.put(["key"], ["value"])
    store.commit()
    (folder,) = harness.local_dir.glob("millpond-*/0-0-default-*")
    return provider, folder.parent


def next_agent_removes(root: Path) -> bool:
    return sweep_abandoned(str(root.parent / "millpond-of-the-next")) == [str(root)]


@pytest.mark.parametrize("deleted", ["all", "some"])
def test_a_jvm_that_ends_leaves_nothing_or_what_the_next_agent_removes(
    tmp_path: Path, deleted: str
) -> None:
    """YARN kills a JVM a quarter of a second after it asked it to end."""
    harness = Harness(tmp_path)
    try:
        _, root = written(harness, tmp_path / "checkpoint")
        if deleted == "some":
            harness.arm("local.end", kind="LOCAL_FILES_LOST", first=2, last=2)
    finally:
        harness.stop()
    if deleted == "some":
        assert (root / LOCK_NAME).exists()
        assert next_agent_removes(root)
    assert list(harness.local_dir.glob("millpond-*")) == []


@pytest.mark.parametrize("lost", ["folder", "lock"])
def test_a_folder_that_somebody_deleted_gets_a_lock_again(tmp_path: Path, lost: str) -> None:
    """As a cleaner of temporary files does, which may go by the age of each file."""
    harness = Harness(tmp_path)
    try:
        provider, root = written(harness, tmp_path / "checkpoint")
        provider.close()
        if lost == "folder":
            shutil.rmtree(root)
        else:
            (root / LOCK_NAME).unlink()
        written(harness, tmp_path / "another")
        assert (root / LOCK_NAME).exists()
        assert not next_agent_removes(root), "its owner lives"
    finally:
        harness.kill()
    assert next_agent_removes(root)
