"""Keeps a file sink whole: plans what a command must write into its log, and writes it.

A command calls `for_rescale` or `for_start` for the plan. They refuse a sink that cannot stay
whole, before the command writes anything.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from millpond.format import roots, spark_names
from millpond.format.spark_names import SINK_LOG_PREFIX
from millpond.spark.log_files import log_crc32, put_log
from millpond.spark.sinks.file_log import (
    DEFAULT_INTERVAL,
    MissingEntries,
    beginning,
    continued,
    numbers_in,
)
from millpond.spark.sinks.recorded import FILE, Sink
from millpond.storage import LocalStorage, Storage, open_storage, root_of
from millpond.storage.same_place import is_same

NONE = "none"  # a value of the option --file-sink: the query writes to no file sink
_EMPTY_BYTES = 3  # an entry of at most this size names no file

_SAY = (
    "Say which directory it is with --file-sink DIR (file_sink=...), or --file-sink none if the"
    " query writes to no file sink."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEntries:
    """Entries to write into the log of a file sink."""

    root: str  # of the sink
    storage: Storage
    files: Mapping[str, bytes]  # key, relative to the sink, to content; in the order of writing

    def write(self) -> None:
        """Write the entries.

        Raises:
            ConflictError: OBJECT_EXISTS: somebody else writes there.
            UnavailableError: the storage fails.
        """
        for key, content in self.files.items():
            put_log(self.storage, key, content)

    def sums(self) -> dict[str, int]:
        """Return the CRC-32 of each entry, by key."""
        return {key: zlib.crc32(content) for key, content in self.files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What a command must do for the sink of a query."""

    sink: Sink | None = None  # the query's file sink; None: it has none, or nobody knows
    entries: SinkEntries | None = None  # to write; None: none
    warnings: tuple[str, ...] = ()  # for the user

    @property
    def root(self) -> str | None:
        """Where the file sink is."""
        return self.sink.path if self.sink is not None else None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write the entries; delete them again if the block fails.

        Raises: InvalidInputError: FILE_SINK_MISMATCH: somebody else has written there since the
            plan was made. What that one wrote stays.
        """
        if self.entries is None:
            yield
            return
        written: dict[str, int] = {}
        try:
            for key, content in self.entries.files.items():
                put_log(self.entries.storage, key, content)
                written[key] = zlib.crc32(content)
            yield
        except BaseException as e:
            take_back(self.entries.storage, written)
            if isinstance(e, ConflictError) and len(written) < len(self.entries.files):
                raise _taken(self.entries.root, "got the log of another query meanwhile") from e
            raise


def take_back(storage: Storage, sums: Mapping[str, int]) -> None:
    """Delete entries from the log of the sink in `storage`, unless somebody changed them.

    Args:
        sums: the CRC-32 of each entry as it was written, by key.
    """
    storage.delete([key for key, crc32 in sums.items() if log_crc32(storage, key) == crc32])


def crc32_of(entries: SinkEntries, numbers: Collection[int]) -> dict[str, int]:
    """Return the CRC-32 of the entries of these numbers, by key."""
    return {
        key: crc32
        for key, crc32 in entries.sums().items()
        if spark_names.parse_sink_entry_key(key) in numbers
    }


def for_rescale(
    file_sink: str | os.PathLike[str] | None,
    recorded: Sink | None,
    *,
    committed: int,
    batch: int,
    empty: Collection[int],
) -> SinkPlan:
    """Return what a rescale must do for the sink of its query.

    Args:
        file_sink: the user's word: a path or URI, or `none`; None: the user says nothing.
        recorded: the sink that the last start of the query wrote down.
        committed: the last committed batch.
        batch: the number that the rescale uses up.
        empty: the numbers that earlier rescales used up, or left out.
    Raises:
        InvalidInputError: FILE_SINK_INVALID, FILE_SINK_MISMATCH.
        FormatError: an entry of the log is damaged.
        UnsupportedError, UnavailableError: the sink's storage.
    """
    if file_sink is None and recorded is None:
        return SinkPlan(warnings=(_unknown(batch),))
    root = _root(file_sink, recorded)
    if root is None:
        return SinkPlan()
    storage = _open(root)
    names = _names(storage)
    if not names:
        raise InvalidInputError(
            f"{root}: there is no log of a file sink ({SINK_LOG_PREFIX}), and the query has"
            " written batches",
            kind=ErrorKind.FILE_SINK_INVALID,
            hint=_SAY,
        )
    newest = max(numbers_in(names))
    if newest >= batch:
        raise _mismatch(
            f"{root} has entries up to batch {newest}, and the query is only at batch {batch}: it"
            " is the sink of another query, or this Spark checkpoint is older than the sink",
            _SAY,
        )
    if newest > committed:
        raise _mismatch(
            f"{root} has the rows of batch {newest}, which is not committed: if the rescale left"
            " the batch out, the query would write its rows twice",
            "Start the query once, so that it commits the batch without writing it again, and"
            " stop it.",
        )
    new = range(committed + 1, batch + 1)
    interval = _interval(recorded)
    return _plan(
        root, storage, interval, _continued(root, storage, names, {*empty, *new}, batch, interval)
    )


def for_start(
    file_sink: str | os.PathLike[str] | None,
    recorded: Sink | None,
    *,
    batch: int,
    same_query: bool,
) -> SinkPlan:
    """Return what a command that makes a new Spark checkpoint must do for the new query's sink.

    Args:
        file_sink: where the new query writes to: a path or URI, or `none`; None: the user says
            nothing.
        recorded: where the old query wrote to. This only compares it.
        batch: the last batch of the old query. The new query begins with the next one.
        same_query: True: the query moves, and nobody else writes to its sink any more.
    Raises:
        InvalidInputError: FILE_SINK_UNKNOWN, FILE_SINK_INVALID, FILE_SINK_MISMATCH.
        FormatError, UnsupportedError, UnavailableError: as `for_rescale`.
    """
    if file_sink is None:
        if recorded is None:
            return SinkPlan(warnings=(_unknown(batch),))
        if recorded.is_file:
            raise InvalidInputError(
                f"the query wrote to the file sink {recorded.path}, whose log must hold every batch"
                f" number; the new one begins with batch {batch + 1}, and nothing says where it"
                " writes to",
                kind=ErrorKind.FILE_SINK_UNKNOWN,
            )
    root = _root(file_sink, None)
    if root is None:
        return SinkPlan()
    if (
        not same_query
        and recorded is not None
        and recorded.path is not None
        and is_same(root, recorded.path)
    ):
        raise _taken(root, "is the sink of the query that this one is made of")
    storage = _open(root)
    names = _names(storage)
    interval = _interval(recorded)
    if not names or not same_query:
        return _plan(root, storage, interval, _begun(root, storage, names, batch, interval))
    newest = max(numbers_in(names))
    if newest > batch:
        # This refuses even if the next batch has the same input: if Spark does not write the batch,
        # nothing makes its state.
        raise _mismatch(
            f"{root} has entries up to batch {newest}, and the query goes on with batch"
            f" {batch + 1}: Spark would take the batches up to {newest} for written, and leave"
            " them out",
            "Save the query once it has committed that batch, or let the new one write to an empty"
            " directory: --file-sink DIR.",
        )
    return _plan(root, storage, interval, _continued(root, storage, names, (), batch, interval))


def _open(root: str) -> Storage:
    """Return the storage of a sink.

    Raises: UnsupportedError: STORAGE_UNSUPPORTED: this process has no connector for it.
    """
    try:
        storage = open_storage(root)
        if roots.parse_root(root).scheme not in ("file", "s3", "s3a"):
            # Only the JVM knows whether it reaches it.
            with suppress(NotFoundError):
                storage.stat(f"{SINK_LOG_PREFIX}0")
        return storage
    except UnsupportedError as e:
        if e.kind is not ErrorKind.STORAGE_UNSUPPORTED:
            raise
        raise UnsupportedError(
            f"the file sink {root} is on a storage for which this process has no connector, and its"
            " log must hold every batch number",
            kind=ErrorKind.STORAGE_UNSUPPORTED,
            hint=(
                "A rescale: let the job do it, with rescale.onRestart. Else say --file-sink none,"
                " and write the entries by hand before the query starts: docs/guides/sinks.md."
            ),
        ) from e


def _plan(root: str, storage: Storage, interval: int, files: Mapping[str, bytes]) -> SinkPlan:
    return SinkPlan(
        sink=Sink(FILE, root, interval),
        entries=SinkEntries(root=root, storage=storage, files=files),
    )


def _begun(
    root: str, storage: Storage, names: Mapping[str, int], batch: int, interval: int
) -> dict[str, bytes]:
    """Return the entries of a new log, except those that a killed command already wrote."""
    wanted = beginning(batch, interval)
    if any(size_bytes > _EMPTY_BYTES for size_bytes in names.values()):
        raise _taken(root, "has the log of a query already")
    if not set(names) <= set(wanted):
        if not _is_vacant(storage, but_log=True):
            raise _taken(root, "has the log of a query already")
        raise _mismatch(
            f"{root} has nothing but a log ({SINK_LOG_PREFIX}) of other batches, which names"
            " no file: a command that was killed left it, or it is that of a query that has written"
            " no row yet",
            f"If no query writes there, delete {SINK_LOG_PREFIX} in it; else name an empty"
            " directory.",
        )
    if not names and not _is_vacant(storage):
        raise InvalidInputError(
            f"{root} is not empty, and no file sink: with a log in it, readers would see none of"
            " its files",
            kind=ErrorKind.FILE_SINK_INVALID,
            hint="Name a directory that does not exist or is empty.",
        )
    return {
        spark_names.sink_entry_key(name): text for name, text in wanted.items() if name not in names
    }


def _continued(
    root: str,
    storage: Storage,
    names: Mapping[str, int],
    empty: Collection[int],
    last: int,
    interval: int,
) -> dict[str, bytes]:
    try:
        made = continued(
            names.keys(),
            empty,
            last,
            lambda name: storage.read(spark_names.sink_entry_key(name)),
            default=interval,
        )
    except MissingEntries as e:
        shown = ", ".join(map(str, e.numbers[:5])) + (", .." if len(e.numbers) > 5 else "")
        raise _mismatch(
            f"{root}/{SINK_LOG_PREFIX} lacks the entries of batches {shown}: it is the sink"
            " of another query, or lost them",
            "docs/guides/sinks.md says how to mend a log by hand. " + _SAY,
        ) from e
    return {spark_names.sink_entry_key(name): text for name, text in made.items()}


def _interval(recorded: Sink | None) -> int:
    return (recorded.compact_interval if recorded is not None else None) or DEFAULT_INTERVAL


def _names(storage: Storage) -> dict[str, int]:
    """Return the sizes of the log's entries in `storage`, by name."""
    prefix = SINK_LOG_PREFIX
    found = {info.key[len(prefix) :]: info.size_bytes for info in storage.list(prefix)}
    return {
        name: size
        for name, size in found.items()
        if spark_names.parse_file_log_entry(name) is not None
    }


def _is_vacant(storage: Storage, *, but_log: bool = False) -> bool:
    """Whether a directory has no file, or with `but_log` none beside the log of a file sink."""
    log = SINK_LOG_PREFIX
    if isinstance(storage, LocalStorage):
        # This may be any directory, and a listing would read all of it. So stop at the first file.
        if os.path.isfile(storage.root):
            return False
        for directory, folders, files in os.walk(storage.root):
            if files:
                return False
            if but_log and directory == storage.root:
                folders[:] = [name for name in folders if f"{name}/" != log]
        return True
    return all(but_log and info.key.startswith(log) for info in storage.list(""))


def _root(file_sink: str | os.PathLike[str] | None, recorded: Sink | None) -> str | None:
    """Return where the file sink is; None if the query has none.

    Raises: InvalidInputError: `file_sink` is no path or URI.
    """
    if file_sink is None:
        return recorded.path if recorded is not None and recorded.is_file else None
    return None if os.fspath(file_sink) == NONE else root_of(file_sink)


def _unknown(batch: int) -> str:
    return (
        "nothing says where the query writes to. If that is a file sink (parquet, json, csv, orc,"
        f" text), it lacks the entry of batch {batch}, and its readers fail with"
        f" `{SINK_LOG_PREFIX}{batch} doesn't exist`: give its directory with --file-sink"
        " DIR. If it is none, say --file-sink none."
    )


def _mismatch(message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.FILE_SINK_MISMATCH, hint=hint)


def _taken(root: str, why: str) -> InvalidInputError:
    return _mismatch(
        f"{root} {why}: two queries that write to one file sink lose each other's rows",
        "Name an empty directory; or, if the query that wrote there is never started again, say"
        " --keep-query-id.",
    )
