"""Which batch last wrote a row, from changelogs that a running query may collect meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond import state
from millpond.storage import LocalStorage
from tests.row_checkpoints import RowsBuilder


def test_a_changelog_that_is_collected_just_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an INTERNAL error."""
    built = RowsBuilder(tmp_path / "job").build()
    before = state.blame(built.root).to_pylist()
    path_of = LocalStorage.local_path
    gone = []

    def collected(self: LocalStorage, key: str) -> str | None:
        path = path_of(self, key)
        if key.endswith("/2.changelog") and path is not None:
            Path(path).unlink()
            gone.append(key)
        return path

    monkeypatch.setattr(LocalStorage, "local_path", collected)
    after = state.blame(built.root).to_pylist()
    assert gone
    assert [row["key"] for row in after] == [row["key"] for row in before]
    # What it told of is not known any more.
    for old, new in zip(before, after, strict=True):
        assert new["batch"] in (old["batch"], None) and new["not_after"] >= old["not_after"]
