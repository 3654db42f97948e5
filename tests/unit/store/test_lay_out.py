"""How the files of a snapshot come to the local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import ErrorKind, UnavailableError
from millpond.store.restore.execute import Fetching, lay_out
from tests.checkpoints import CheckpointBuilder


def test_a_store_that_was_closed_meanwhile_gets_no_files(tmp_path: Path) -> None:
    """A killed task's call to the agent goes on for a while. Nobody would delete what it brings."""
    made = CheckpointBuilder(tmp_path / "query", partitions=1).build(2, (2,))
    (manifest,) = made.manifests[made.stores()[0]]
    fetching = Fetching(verify_checksums=True)
    folder = tmp_path / "local" / "0-0-default-1" / "g1"
    folder.mkdir(parents=True)
    lay_out(made.storage, manifest, "2.manifest", str(folder / "db-1"), fetching)
    assert (folder / "db-1" / "CURRENT").is_file()
    closed = tmp_path / "local" / "0-0-default-2"
    with pytest.raises(UnavailableError) as caught:
        lay_out(made.storage, manifest, "2.manifest", str(closed / "g1" / "db-1"), fetching)
    assert caught.value.kind is ErrorKind.LOCAL_FILES_LOST
    assert not closed.exists()
