"""Look at savepoints, check them, delete them."""

from __future__ import annotations

import os
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from millpond import layout
from millpond.errors import ErrorKind, FormatError, InvalidInputError, MillpondError, NotFoundError, UnavailableError
from millpond.inspection.verify import Checked, Problem, verify
from millpond.rows import require_tools
from millpond.savepoint.image import image_json
from millpond.savepoint.index import CANONICAL, SavepointIndex, check_listed, damaged, read_index
from millpond.savepoint.target import remove_directory
from millpond.storage import LocalStorage, Storage, open_storage, root_of

_PIECE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointView:
    """What a savepoint holds. `to_json` is the contract of `millpond savepoint show --json`."""

    savepoint: str
    index: SavepointIndex

    def to_json(self) -> dict[str, Any]:
        index = self.index
        return {
            "savepoint": self.savepoint,
            "format": index.format,
            "created_by": index.created_by,
            "created_ms": index.created_ms,
            **image_json(index.image),
            "files": len(index.files),
            "size_bytes": index.size_bytes,
        }


@dataclass(slots=True)
class SavepointReport:
    """All problems, and what was read. `to_json` is the contract of `millpond savepoint verify --json`."""

    savepoint: str
    files: int = 0
    size_bytes: int = 0
    checked: Checked = field(default_factory=Checked)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "savepoint": self.savepoint,
            "ok": self.ok,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "checked": asdict(self.checked),
            "problems": [asdict(problem) for problem in self.problems],
        }


def show(savepoint: str | os.PathLike[str]) -> SavepointView:
    """Return what a savepoint holds; reads its index only.

    Raises: InvalidInputError: NOT_A_SAVEPOINT. FormatError: SAVEPOINT_DAMAGED. UnsupportedError: FORMAT_TOO_NEW.
    """
    place = root_of(savepoint)
    return SavepointView(savepoint=place, index=read_index(open_storage(place), place))


def verify_savepoint(savepoint: str | os.PathLike[str]) -> SavepointReport:
    """Read a savepoint back, every byte of it: check sums, and then all that `checkpoint verify` checks.

    Raises: as `show`; UnsupportedError: rocksdict is not installed; UnavailableError: storage or local disk.
    """
    place = root_of(savepoint)
    storage = open_storage(place)
    index = read_index(storage, place)
    report = SavepointReport(place)
    wrong = check_listed(storage, index)
    for key, e in wrong:
        report.problems.append(_problem(key, e))
    for key in sorted(set(index.files) - {key for key, _ in wrong}):
        report.files += 1
        report.size_bytes += index.files[key].size_bytes
        if _crc32(storage, key) != index.files[key].crc32:
            report.problems.append(_problem(key, damaged("its check sum does not match")))
    known = {problem.file for problem in report.problems}
    if index.format == CANONICAL:
        _verify_tables(storage, index, report)
    elif index.image.operators:
        state = verify(storage, place)
        report.checked = state.checked
        report.problems += [problem for problem in state.problems if problem.file not in known]
    return report


def _verify_tables(storage: Storage, index: SavepointIndex, report: SavepointReport) -> None:
    """Read every table."""
    require_tools()
    from millpond.savepoint.canonical import CanonicalRows

    rows = CanonicalRows(storage, index)
    known = {problem.file for problem in report.problems}
    for store in rows.stores():
        report.checked.stores += 1
        tables = [t for t in index.tables if t.store == store.store and t.key is not None]
        try:
            for some in rows.rows(store):
                report.checked.entries += len(some.keys)
        except FormatError as e:
            if not any(table.key in known for table in tables):
                report.problems.append(_problem(layout.store_dir(store.store), e))


def list_savepoints(directory: str | os.PathLike[str]) -> list[SavepointView | tuple[str, MillpondError]]:
    """Return the savepoints directly in a directory, oldest first; then those whose index cannot be read, with the reason.

    Raises: InvalidInputError: no such directory. UnsupportedError: not on a file system.
    """
    place = root_of(directory)
    root = layout.local_root(place)
    if not os.path.isdir(root):
        raise InvalidInputError(f"no directory: {place}", kind=ErrorKind.INVALID_ARGUMENT)
    views: list[SavepointView] = []
    unreadable: list[tuple[str, MillpondError]] = []
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        if name.startswith(".") or not os.path.isfile(os.path.join(path, layout.SAVEPOINT_KEY)):
            continue
        try:
            views.append(show(path))
        except UnavailableError:
            raise
        except MillpondError as e:
            unreadable.append((path, e))
    return [*sorted(views, key=lambda view: (view.index.created_ms, view.savepoint)), *unreadable]


def delete(savepoint: str | os.PathLike[str], *, dry_run: bool = False) -> SavepointView:
    """Delete a savepoint; return what it held. Spark checkpoints restored from it, and the one it was made of, need it no more.

    Raises:
        InvalidInputError: NOT_A_SAVEPOINT; INVALID_ARGUMENT: the directory holds files that are none of the savepoint's.
        FormatError, UnsupportedError: as `show`. UnavailableError: storage.
    """
    view = show(savepoint)
    storage = open_storage(view.savepoint)
    mine = {*view.index.files, layout.SAVEPOINT_KEY}
    others = [info.key for info in storage.list("") if info.key not in mine]
    if others:
        raise InvalidInputError(
            f"{view.savepoint} holds {len(others)} files that are none of the savepoint's, {others[0]} is one: nothing is deleted",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Move them elsewhere, then delete the savepoint again.",
        )
    if not dry_run:
        if isinstance(storage, LocalStorage):
            remove_directory(storage.root)
        else:
            storage.delete([layout.SAVEPOINT_KEY])
            storage.delete(view.index.files)
    return view


def _problem(file: str, e: MillpondError) -> Problem:
    return Problem(kind=e.kind.value, file=file, message=str(e).removeprefix(f"{file} ").strip(), hint=e.hint)


def _crc32(storage: Storage, key: str) -> int | None:
    crc32, start = 0, 0
    try:
        while piece := storage.read_range(key, start, _PIECE_BYTES):
            crc32 = zlib.crc32(piece, crc32)
            start += len(piece)
    except NotFoundError:
        return None
    return crc32
