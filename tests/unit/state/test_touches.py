"""Which batch last wrote a row, from changelogs that a running query may collect meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond import state
from millpond.format.changelog import ChangelogHeader
from millpond.storage import LocalStorage
from millpond.store.overlay import Overlay
from tests.row_checkpoints import HashedBuilder, RowsBuilder


@pytest.fixture
def spilled(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Keep little in memory. Return where the rest went."""
    found: set[str] = set()
    spill, begin = Overlay._spill, Overlay.__init__

    def small(self: Overlay, directory: str) -> None:
        begin(self, directory, limit_bytes=300)

    def noted(self: Overlay, header: ChangelogHeader) -> None:
        found.add(self._directory.rpartition("millpond-scratch-")[2].partition("-")[0])
        spill(self, header)

    monkeypatch.setattr(Overlay, "__init__", small)
    monkeypatch.setattr(Overlay, "_spill", noted)
    return found


def test_what_it_holds_in_memory_has_an_end(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It held each key of all changelogs."""
    built = HashedBuilder(tmp_path / "job").build(8, (3,))
    before = state.blame(built.root).to_pylist()
    assert {row["batch"] for row in before} == {0, 2, 3, 5, 6, 7}
    spilled = request.getfixturevalue("spilled")
    assert state.blame(built.root).to_pylist() == before
    assert "blame" in spilled


@pytest.mark.parametrize("little", [False, True])
def test_a_changelog_that_is_collected_just_before_it_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    little: bool,
) -> None:
    """It was an INTERNAL error."""
    if little:
        request.getfixturevalue("spilled")
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
