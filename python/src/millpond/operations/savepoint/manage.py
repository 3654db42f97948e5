"""`show`, `verify` and `list`: each looks at a savepoint that exists."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
)
from millpond.format import layout, spark_names
from millpond.model.ids import StoreId
from millpond.operations.inspect.logs import Problem
from millpond.operations.inspect.store_check import Checked, PartCheck, verify_store
from millpond.operations.inspect.verify import verify_logs
from millpond.operations.notebook import (
    NUMBER,
    TEXT,
    TIME,
    Notebook,
    Sheet,
    Table,
    Value,
    counted,
    time_text,
)
from millpond.operations.output.copying import Progress
from millpond.operations.spread import BYTES_PER_PROCESS, engine_for
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import image_json
from millpond.query.index import CANONICAL, SavepointIndex, check_listed, damaged, read_index
from millpond.query.survey import Survey
from millpond.rows import require_tools
from millpond.spark.kafka_offsets import KafkaOffset, kafka_offsets
from millpond.spark.log_entries import parse_offsets
from millpond.storage import LocalStorage, Storage, open_storage, root_of
from millpond.storage.given import takes_options
from millpond.storage.local import translate
from millpond.storage.sums import size_and_crc32

_FILE_JOBS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointView(Notebook):
    """What a savepoint holds. `to_json` is the contract of `millpond savepoint show --json`. In a
    notebook it shows itself; `to_arrow()` and `to_pandas()` return a row for each store.
    """

    savepoint: str
    index: SavepointIndex
    kafka_offsets: tuple[KafkaOffset, ...] = ()  # where a query that starts from it goes on

    def to_json(self) -> dict[str, Any]:
        index = self.index
        return {
            "savepoint": self.savepoint,
            "format": index.format,
            "created_by": index.created_by,
            "created_ms": index.created_ms,
            **image_json(index.image),
            "kafka_offsets": [asdict(offset) for offset in self.kafka_offsets],
            "files": len(index.files),
            "size_bytes": index.size_bytes,
        }

    def _sheet(self) -> Sheet:
        index, image = self.index, self.index.image
        stores: list[tuple[Value, ...]] = [
            (op.operator, op.name, s.partition, s.name, s.version, counted(s.keys), s.size_bytes)
            for op in image.operators
            for s in op.stores
        ]
        kafka: list[tuple[Value, ...]] = [
            (at.source, at.topic, at.partition, at.offset) for at in self.kafka_offsets
        ]
        return Sheet(
            title=f"Savepoint {self.savepoint}",
            facts=(
                ("format", index.format),
                ("batch", image.batch),
                ("query", image.query_id),
                ("created", time_text(index.created_ms)),
                ("created by", index.created_by),
                ("partitions", image.partitions),
                ("max parallelism", image.max_parallelism),
                ("files", len(index.files)),
                ("bytes", index.size_bytes),
            ),
            table=Table("stores", _STORES, stores),
            more=[Table("offsets of Kafka", _KAFKA, kafka)] if kafka else (),
        )


_STORES = (
    ("operator", NUMBER),
    ("name", TEXT),
    ("partition", NUMBER),
    ("store", TEXT),
    ("version", NUMBER),
    ("keys", NUMBER),
    ("size_bytes", NUMBER),
)
_KAFKA = (("source", TEXT), ("topic", TEXT), ("partition", NUMBER), ("offset", NUMBER))
_SAVEPOINTS = (
    ("savepoint", TEXT),
    ("created", TIME),
    ("format", TEXT),
    ("batch", NUMBER),
    ("query_id", TEXT),
    ("partitions", NUMBER),
    ("files", NUMBER),
    ("size_bytes", NUMBER),
)


@dataclass(frozen=True, slots=True)
class SavepointReport:
    """All problems, and what was read.

    `to_json` is the contract of `millpond savepoint verify --json`.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A savepoint whose index, or last offsets, cannot be read."""

    savepoint: str
    error: MillpondError

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        kind, message = self.error.kind.value, str(self.error)
        return {"savepoint": self.savepoint, "kind": kind, "message": message}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointList(Notebook):
    """The savepoints of a directory. In a notebook it shows itself; `to_arrow()` and `to_pandas()`
    return a row for each savepoint.

    `to_json` is the contract of `millpond savepoint list --json`.
    """

    savepoints: tuple[SavepointView, ...]  # oldest first
    unreadable: tuple[Unreadable, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "savepoints": [view.to_json() for view in self.savepoints],
            "unreadable": [one.to_json() for one in self.unreadable],
        }

    def _sheet(self) -> Sheet:
        rows: list[tuple[Value, ...]] = [
            (
                view.savepoint,
                view.index.created_ms,
                view.index.format,
                view.index.image.batch,
                view.index.image.query_id,
                view.index.image.partitions,
                len(view.index.files),
                view.index.size_bytes,
            )
            for view in self.savepoints
        ]
        return Sheet(
            title="Savepoints",
            facts=(),
            table=Table("savepoints", _SAVEPOINTS, rows),
            problems=[f"{one.savepoint}: {one.error.message}" for one in self.unreadable],
            newest=True,
        )


@takes_options
def show(
    savepoint: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> SavepointView:
    """Return what a savepoint holds. Reads its index, and its last committed offsets, only.

    Args:
        savepoint: path or URI of the savepoint.
        options: of the storage, by name.
    Raises: InvalidInputError: NOT_A_SAVEPOINT. FormatError: SAVEPOINT_DAMAGED. UnsupportedError:
    FORMAT_TOO_NEW.
    """
    storage, root = _opened(savepoint)
    index = read_index(storage, root)
    return SavepointView(savepoint=root, index=index, kafka_offsets=_kafka_offsets(storage, index))


def _kafka_offsets(storage: Storage, index: SavepointIndex) -> tuple[KafkaOffset, ...]:
    key = spark_names.offsets_key(index.image.batch)
    try:
        text = storage.read(key).decode("utf-8")
        return kafka_offsets(parse_offsets(text, index.image.batch))
    except NotFoundError as e:
        raise damaged(f"{key} is not there") from e
    except (FormatError, UnicodeDecodeError) as e:
        raise damaged(f"{key}: {e}") from e


def _opened(savepoint: str | os.PathLike[str]) -> tuple[Storage, str]:
    root = root_of(savepoint)
    return open_storage(root), root


@takes_options
def verify_savepoint(
    savepoint: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    spark: Any = None,
    options: Mapping[str, object] | None = None,
) -> SavepointReport:
    """Read every byte of a savepoint. Check its sums, and then all that `checkpoint verify` checks.

    Args:
        savepoint: path or URI of the savepoint.
        progress: called now and then with how much is done, and how much there is in all.
        spark: a SparkSession whose executors read the files and stores: as for `create`.
        options: of the storage, by name.
    Raises: as `show`; UnsupportedError: rocksdict is not installed; UnavailableError: storage or
        local disk.
    """
    storage, root = _opened(savepoint)
    index = read_index(storage, root)
    wrong = check_listed(storage, index)
    every = [_problem(key, e) for key, e in wrong]
    keys = sorted(set(index.files) - {key for key, _ in wrong})
    size_bytes = sum(index.files[key].size_bytes for key in keys)
    found: Survey | None = None
    stores: list[Any] = []
    if index.format == CANONICAL:
        require_tools()
        stores = sorted({table.store for table in index.tables})
    elif index.image.operators:
        found, of_logs = verify_logs(storage, root)
        every += of_logs
        stores = list(found.stores)
    jobs: list[_Job] = [*_batches_of(keys), *stores]
    engine = engine_for(spark, (storage,), large=size_bytes >= BYTES_PER_PROCESS)
    results = engine.map(_verify_part, _Verified(root, index, found), jobs)
    known = {problem.file for problem in every}
    checked = Checked()
    ssts: dict[str, int] = {}  # size in bytes by key
    for done, (job, part) in enumerate(zip(jobs, results, strict=True), 1):
        checked += part.checked
        ssts |= part.ssts
        problems = part.problems
        mine = {problem.file for problem in problems}
        if isinstance(job, StoreId) and index.format == CANONICAL:
            # The check sums have told already what is wrong with the tables of this store.
            mine |= {
                table.key for table in index.tables if table.store == job and table.key is not None
            }
            problems = problems if not mine & known else []
        every += [problem for problem in problems if problem.file not in known]
        known |= mine if problems else set()
        if progress is not None:
            progress(done, len(jobs))
    if not every:
        try:
            savepoint_image(storage, index)
        except FormatError as e:
            every.append(_problem(layout.SAVEPOINT_KEY, e))
    return SavepointReport(root, len(keys), size_bytes, checked.with_ssts(ssts), every)


_Job = StoreId | tuple[str, ...]  # a store, or keys of files


@dataclass(frozen=True, slots=True)
class _Verified:
    """What all jobs share."""

    root: str
    index: SavepointIndex
    found: Survey | None  # None: of a canonical savepoint


def _batches_of(keys: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield the keys in at most `_FILE_JOBS` parts."""
    count = min(len(keys), _FILE_JOBS)
    return (tuple(keys[number::count]) for number in range(count))


def _verify_part(what: _Verified, job: _Job) -> PartCheck:
    """Check the sums of some files, or read one store."""
    storage = open_storage(what.root)
    if not isinstance(job, StoreId):
        wrong = [key for key in job if _crc32(storage, key) != what.index.files[key].crc32]
        told = damaged("its check sum does not match")
        return PartCheck(Checked(), [_problem(key, told) for key in wrong])
    if what.found is not None:
        return verify_store(storage, what.found, job)
    return _verify_tables(storage, what.index, job)


def _verify_tables(storage: Storage, index: SavepointIndex, store: StoreId) -> PartCheck:
    """Read the tables of a store."""
    from millpond.state.canonical import CanonicalRows  # start-up time: pyarrow

    rows = CanonicalRows(storage, index)
    entries = 0
    problems = []
    try:
        for table in index.tables:
            if table.store == store:
                for some in rows.table_rows(table):
                    entries += len(some.keys)
    except FormatError as e:
        problems.append(_problem(layout.store_dir(store), e))
    return PartCheck(Checked(stores=1, entries=entries), problems)


@takes_options
def list_savepoints(
    directory: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> list[SavepointView | tuple[str, MillpondError]]:
    """Return what `savepoints_of` returns as one list: views, then places with the reason.

    Args, Raises: as `savepoints_of`.
    """
    found = savepoints_of(directory)
    return [*found.savepoints, *((one.savepoint, one.error) for one in found.unreadable)]


@takes_options
def savepoints_of(
    directory: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> SavepointList:
    """Return the savepoints directly in a directory, and those whose index cannot be read.

    On object storage this lists all files below: one request for a thousand.

    Args:
        directory: path or URI.
        options: of the storage, by name.
    Raises: InvalidInputError: no such directory. UnavailableError: storage.
    """
    root = root_of(directory)
    views: list[SavepointView] = []
    unreadable: list[Unreadable] = []
    for path in _savepoints_in(root, open_storage(root)):
        try:
            views.append(show(path))
        except UnavailableError:
            raise
        except MillpondError as e:
            unreadable.append(Unreadable(savepoint=path, error=e))
    views.sort(key=lambda view: (view.index.created_ms, view.savepoint))
    return SavepointList(savepoints=tuple(views), unreadable=tuple(unreadable))


def _savepoints_in(root: str, storage: Storage) -> list[str]:
    if isinstance(storage, LocalStorage):
        if not os.path.isdir(storage.root):
            raise InvalidInputError(
                f"no directory: {root}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Name the directory in which the savepoints are, one folder each.",
            )
        try:
            names = sorted(os.listdir(storage.root))
        except OSError as e:
            raise translate(e, f"listing {storage.root}") from e
        paths = [os.path.join(storage.root, name) for name in names if name[0] != "."]
        return [path for path in paths if os.path.isfile(os.path.join(path, layout.SAVEPOINT_KEY))]
    return places_with(layout.SAVEPOINT_KEY, root, storage)


def places_with(key: str, root: str, storage: Storage) -> list[str]:
    """Return the folders of `root`, an object storage, that hold `key`."""
    names = (info.key.partition("/") for info in storage.list(""))
    return [f"{root.rstrip('/')}/{name}" for name, _, inner in names if inner == key]


def _problem(file: str, e: MillpondError) -> Problem:
    return Problem(
        kind=e.kind.value,
        file=file,
        message=e.message.removeprefix(f"{file} ").strip(),
        hint=e.hint,
    )


def _crc32(storage: Storage, key: str) -> int | None:
    try:
        return size_and_crc32(storage, key)[1]
    except NotFoundError:
        return None
