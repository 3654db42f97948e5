"""Look at savepoints, check them, delete them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from millpond import layout
from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
)
from millpond.ids import StoreId
from millpond.inspection.logs import Problem
from millpond.inspection.survey import Survey
from millpond.inspection.verify import Checked, verify_logs, verify_store
from millpond.rows import require_tools
from millpond.savepoint.copying import Progress
from millpond.savepoint.from_savepoint import savepoint_image
from millpond.savepoint.image import image_json
from millpond.savepoint.index import CANONICAL, SavepointIndex, check_listed, damaged, read_index
from millpond.savepoint.target import remove_directory
from millpond.spread import engine_for
from millpond.storage import LocalStorage, Storage, open_storage, root_of

_PIECE_BYTES = 4 * 1024 * 1024
_PARALLEL_FROM_BYTES = 16 * 1024 * 1024  # below that, starting processes takes longer than it saves
_FILE_JOBS = 64


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


def verify_savepoint(
    savepoint: str | os.PathLike[str], *, progress: Progress | None = None, spark: Any = None
) -> SavepointReport:
    """Read a savepoint back, every byte of it: check sums, and then all that `checkpoint verify` checks.

    Args:
        progress: called now and then: how much is done, how much there is in all.
        spark: a SparkSession whose executors are to read files and stores: as for `create`.
    Raises: as `show`; UnsupportedError: rocksdict is not installed; UnavailableError: storage or local disk.
    """
    place = root_of(savepoint)
    storage = open_storage(place)
    index = read_index(storage, place)
    report = SavepointReport(place)
    wrong = check_listed(storage, index)
    for key, e in wrong:
        report.problems.append(_problem(key, e))
    keys = sorted(set(index.files) - {key for key, _ in wrong})
    report.files, report.size_bytes = len(keys), sum(index.files[key].size_bytes for key in keys)
    found: Survey | None = None
    stores: list[Any] = []
    if index.format == CANONICAL:
        require_tools()
        stores = sorted({table.store for table in index.tables})
    elif index.image.operators:
        found, logs = verify_logs(storage, place)
        report.checked = logs.checked
        report.problems += logs.problems
        stores = list(found.stores)
    jobs: list[_Job] = [*_batches_of(keys), *stores]
    engine = engine_for(spark, (storage,), large=report.size_bytes >= _PARALLEL_FROM_BYTES)
    results = engine.map(_verify_part, _Verified(place, index, found), jobs)
    known = {problem.file for problem in report.problems}
    for done, (job, (checked, problems)) in enumerate(zip(jobs, results, strict=True), 1):
        report.checked.add(checked)
        mine = {problem.file for problem in problems}
        if isinstance(job, StoreId) and index.format == CANONICAL:
            # The check sum has told already what is wrong with the tables of this store.
            mine |= {
                table.key for table in index.tables if table.store == job and table.key is not None
            }
            problems = problems if not mine & known else []
        report.problems += [problem for problem in problems if problem.file not in known]
        known |= mine if problems else set()
        if progress is not None:
            progress(done, len(jobs))
    if report.ok:
        try:
            savepoint_image(storage, index)
        except FormatError as e:
            report.problems.append(_problem(layout.SAVEPOINT_KEY, e))
    return report


_Job = StoreId | tuple[str, ...]  # a store, or keys of files


@dataclass(frozen=True, slots=True)
class _Verified:
    """What all parts share. found: of a native one."""

    place: str
    index: SavepointIndex
    found: Survey | None


def _batches_of(keys: list[str]) -> Iterator[tuple[str, ...]]:
    """At most so many jobs, whatever the number of files."""
    count = min(len(keys), _FILE_JOBS)
    return (tuple(keys[number::count]) for number in range(count))


def _verify_part(what: _Verified, job: _Job) -> tuple[Checked, list[Problem]]:
    """Check sums of some files, or all that is in one store."""
    storage = open_storage(what.place)
    if not isinstance(job, StoreId):
        wrong = [key for key in job if _crc32(storage, key) != what.index.files[key].crc32]
        return Checked(), [_problem(key, damaged("its check sum does not match")) for key in wrong]
    if what.found is not None:
        return verify_store(storage, what.found, job)
    return _verify_tables(storage, what.index, job)


def _verify_tables(
    storage: Storage, index: SavepointIndex, store: StoreId
) -> tuple[Checked, list[Problem]]:
    """Read the tables of a store."""
    from millpond.savepoint.canonical import CanonicalRows

    rows = CanonicalRows(storage, index)
    checked = Checked(stores=1)
    try:
        for table in index.tables:
            if table.store == store:
                for some in rows.table_rows(table):
                    checked.entries += len(some.keys)
    except FormatError as e:
        return checked, [_problem(layout.store_dir(store), e)]
    return checked, []


def list_savepoints(
    directory: str | os.PathLike[str],
) -> list[SavepointView | tuple[str, MillpondError]]:
    """Return the savepoints directly in a directory, oldest first; then those whose index cannot be read, with the reason.

    On object storage all that lies below is listed: a request for a thousand files.

    Raises: InvalidInputError: no such directory. UnavailableError: storage.
    """
    place = root_of(directory)
    views: list[SavepointView] = []
    unreadable: list[tuple[str, MillpondError]] = []
    for path in _savepoints_in(place, open_storage(place)):
        try:
            views.append(show(path))
        except UnavailableError:
            raise
        except MillpondError as e:
            unreadable.append((path, e))
    return [*sorted(views, key=lambda view: (view.index.created_ms, view.savepoint)), *unreadable]


def _savepoints_in(place: str, storage: Storage) -> list[str]:
    if isinstance(storage, LocalStorage):
        if not os.path.isdir(storage.root):
            raise InvalidInputError(f"no directory: {place}", kind=ErrorKind.INVALID_ARGUMENT)
        paths = [
            os.path.join(storage.root, name)
            for name in sorted(os.listdir(storage.root))
            if name[0] != "."
        ]
        return [path for path in paths if os.path.isfile(os.path.join(path, layout.SAVEPOINT_KEY))]
    names = (info.key.partition("/") for info in storage.list(""))
    return [f"{place.rstrip('/')}/{name}" for name, _, key in names if key == layout.SAVEPOINT_KEY]


def delete(savepoint: str | os.PathLike[str], *, dry_run: bool = False) -> SavepointView:
    """Delete a savepoint; return what it held. Spark checkpoints restored from it, and the one it was made of, need it no more.

    Raises:
        InvalidInputError: NOT_A_SAVEPOINT; INVALID_ARGUMENT: the directory holds files that are none of the savepoint's.
        FormatError, UnsupportedError: as `show`. UnavailableError: storage.
    """
    view = show(savepoint)
    storage = open_storage(view.savepoint)
    mine = {*view.index.files, layout.SAVEPOINT_KEY, layout.CLAIM_KEY}
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
            storage.delete([*view.index.files, layout.CLAIM_KEY])
    return view


def _problem(file: str, e: MillpondError) -> Problem:
    return Problem(
        kind=e.kind.value, file=file, message=str(e).removeprefix(f"{file} ").strip(), hint=e.hint
    )


def _crc32(storage: Storage, key: str) -> int | None:
    crc32, start = 0, 0
    try:
        while piece := storage.read_range(key, start, _PIECE_BYTES):
            crc32 = zlib.crc32(piece, crc32)
            start += len(piece)
    except NotFoundError:
        return None
    return crc32
