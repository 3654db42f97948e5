"""What pages are told of the live keys of key groups."""

from __future__ import annotations

import shutil
from pathlib import Path

from millpond import savepoint
from millpond.operations.inspect.anatomy import group_counts
from millpond.storage import LocalStorage
from tests.row_checkpoints import HashedBuilder


def test_partitions_whose_newest_file_is_damaged_are_named(tmp_path: Path) -> None:
    """Pages took them for empty."""
    built = HashedBuilder(tmp_path / "query").build()
    fork = tmp_path / "fork"
    savepoint.fork(built.root, fork, partitions=4)
    (before,) = group_counts(LocalStorage(str(fork)), "it")
    assert before.unknown == () and None not in before.groups
    (changelog,) = (fork / "state/0/2").glob("*.changelog")
    changelog.write_bytes(b"damaged")
    # nothing was ever written there: as of an operator whose state lies in partition 0 alone
    shutil.rmtree(fork / "state/0/3")
    (found,) = group_counts(LocalStorage(str(fork)), "it")
    assert found.groups == (*before.groups[:2], None, None)
    assert found.unknown == (2,)
