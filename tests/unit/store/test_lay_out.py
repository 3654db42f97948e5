"""How the files of a snapshot come to the local disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millpond.errors import ErrorKind, UnavailableError
from millpond.format import layout
from millpond.storage import MemoryStorage
from millpond.store.restore.execute import Fetching, lay_out, lay_out_sources
from millpond.testing.faults import FaultyStorage
from tests.checkpoints import CheckpointBuilder
from tests.examples import COMPOSED


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


def test_a_rescaled_store_that_nobody_wants_gets_no_more_changelogs(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage(), lambda _: None)
    (changelog,) = COMPOSED.changelogs
    names = [f"{version}.changelog" for version in range(1, 6)]
    changelogs = tuple(replace(changelog, name=name, size_bytes=1) for name in names)
    manifest = replace(COMPOSED, sources=(), changelogs=changelogs)
    for name in names:
        key = layout.store_key(manifest.sibling(changelog.partition), name)
        storage.put_bytes(key, b"x")

    class UnwantedError(Exception):
        pass

    def check_wanted() -> None:
        if storage.counts["get_to_file"] == 2:
            raise UnwantedError

    fetching = Fetching(verify_checksums=True, check_wanted=check_wanted)
    with pytest.raises(UnwantedError):
        lay_out_sources(storage, manifest, str(tmp_path / "db-1"), fetching)
    assert storage.counts["get_to_file"] == 2
