"""Keep a file sink whole: what a command must write into its log, and the writing of it.

A command asks `for_rescale` or `for_start` what there is to do, which refuses what cannot be kept whole before anything is written.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from millpond import layout
from millpond.errors import ErrorKind, InvalidInputError, NotFoundError
from millpond.sinks.file_log import (
    DEFAULT_INTERVAL,
    MissingEntries,
    beginning,
    continued,
    numbers_in,
)
from millpond.sinks.recorded import FILE, Sink
from millpond.storage import LocalStorage, Storage, StorageSettings, open_storage, root_of

NONE = "none"  # of the option --file-sink: the query writes to no file sink
_EMPTY_BYTES = 3  # an entry of at most so many names no file

_SAY = "Say which directory it is with --file-sink DIR (file_sink=...), or --file-sink none if the query writes to no file sink."


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEntries:
    """Entries that the log of a file sink gets.

    root: of the sink. files: key, relative to it, to content, in the order in which they are written.
    """

    root: str
    storage: Storage
    files: Mapping[str, bytes]

    def write(self) -> None:
        """Write the entries. Raises: ConflictError: OBJECT_EXISTS: somebody else writes there. UnavailableError: storage."""
        for key, content in self.files.items():
            # without a sidecar Hadoop reads the file unchecked; one that is left of another file would make it fail
            self.storage.delete([layout.crc_key(key)])
            self.storage.put_bytes(key, content, if_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What there is to do for the sink of a query.

    sink: its file sink; None: it has none, or nobody knows. entries: to be written; None: none. warnings: what the user must hear.
    """

    sink: Sink | None = None
    entries: SinkEntries | None = None
    warnings: tuple[str, ...] = ()

    @property
    def root(self) -> str | None:
        """Where the file sink is."""
        return self.sink.path if self.sink is not None else None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write the entries, and take them back if the block fails."""
        if self.entries is None:
            yield
            return
        sums = {key: zlib.crc32(content) for key, content in self.entries.files.items()}
        try:
            self.entries.write()
            yield
        except BaseException:
            take_back(self.entries.storage, sums)
            raise


def take_back(storage: Storage, sums: Mapping[str, int]) -> None:
    """Delete entries of the sink in `storage` that are as they were written. Args: sums: key to CRC-32."""
    storage.delete([key for key, crc32 in sums.items() if _crc32(storage, key) == crc32])


def crc32_of(entries: SinkEntries, numbers: Collection[int]) -> dict[str, int]:
    """Return the CRC-32 of the entries of these numbers, by key."""
    found = {}
    for key, content in entries.files.items():
        if layout.parse_sink_entry(key.removeprefix(layout.SINK_LOG_PREFIX)) in numbers:
            found[key] = zlib.crc32(content)
    return found


def for_rescale(
    file_sink: str | os.PathLike[str] | None,
    recorded: Sink | None,
    *,
    committed: int,
    batch: int,
    empty: Collection[int],
    settings: StorageSettings,
) -> SinkPlan:
    """Return what a rescale has to do for the sink of its query.

    Args:
        file_sink: what the user says: a path or URI, `none`, or None for nothing.
        recorded: what the last start of the query wrote down.
        committed: the last committed batch. batch: the number that the rescale uses up.
        empty: numbers that earlier rescales used up, or left out.
    Raises:
        InvalidInputError: FILE_SINK_INVALID, FILE_SINK_MISMATCH. FormatError: an entry of the log is damaged. UnsupportedError,
            UnavailableError: the sink's storage.
    """
    if file_sink is None and recorded is None:
        return SinkPlan(warnings=(_unknown(batch),))
    root = _root(file_sink, recorded)
    if root is None:
        return SinkPlan()
    storage = open_storage(root, settings)
    names = _names(storage)
    if not names:
        raise InvalidInputError(
            f"{root}: there is no log of a file sink ({layout.SINK_LOG_PREFIX}), and the query has written batches",
            kind=ErrorKind.FILE_SINK_INVALID,
            hint=_SAY,
        )
    newest = max(numbers_in(names))
    if newest >= batch:
        raise _mismatch(
            f"{root} has entries up to batch {newest}, and the query comes to batch {batch}: it is the sink of another query, or "
            "this Spark checkpoint is older than the sink",
            _SAY,
        )
    if newest > committed:
        raise _mismatch(
            f"{root} has the rows of batch {newest}, which is not committed: left out and read again, they would be there twice",
            "Start the query once, so that it commits the batch without writing it again, and stop it.",
        )
    new = range(committed + 1, batch + 1)
    interval = _interval(recorded)
    files = _continued(root, storage, names, {*empty, *new}, batch, interval)
    return SinkPlan(
        sink=Sink(FILE, root, interval),
        entries=SinkEntries(root=root, storage=storage, files=files),
    )


def for_start(
    file_sink: str | os.PathLike[str] | None,
    recorded: Sink | None,
    *,
    batch: int,
    same_query: bool,
    settings: StorageSettings,
) -> SinkPlan:
    """Return what a new Spark checkpoint, whose query goes on after `batch`, has to do for the sink of that query.

    Args:
        file_sink: where the new query writes to: a path or URI, `none`, or None for nothing said.
        recorded: where the query wrote to that the Spark checkpoint is made of. It is only compared.
        same_query: a move: nobody else writes to that sink any more.
    Raises: InvalidInputError: FILE_SINK_UNKNOWN, FILE_SINK_INVALID, FILE_SINK_MISMATCH. Others: as `for_rescale`.
    """
    if file_sink is None:
        if recorded is None:
            return SinkPlan(warnings=(_unknown(batch),))
        if recorded.is_file:
            raise InvalidInputError(
                f"the query wrote to the file sink {recorded.path}, whose log must hold every batch number; the new one begins "
                f"with batch {batch + 1}, and nothing says where it writes to",
                kind=ErrorKind.FILE_SINK_UNKNOWN,
            )
    root = _root(file_sink, None)
    if root is None:
        return SinkPlan()
    if (
        not same_query
        and recorded is not None
        and recorded.path is not None
        and _same(root, recorded.path)
    ):
        raise _taken(root, "is the sink of the query that this one is made of")
    storage = open_storage(root, settings)
    names = _names(storage)
    interval = _interval(recorded)
    if not names or not same_query:
        files = _begun(root, storage, names, batch, interval)
        return SinkPlan(
            sink=Sink(FILE, root, interval),
            entries=SinkEntries(root=root, storage=storage, files=files),
        )
    newest = max(numbers_in(names))
    if newest > batch:
        # Even if the next batch has the same input: its state is made only where it is written.
        raise _mismatch(
            f"{root} has entries up to batch {newest}, and the query goes on with batch {batch + 1}: Spark would take the batches "
            f"up to {newest} for written, and leave them out",
            "Save the query once it has committed that batch, or let the new one write to an empty directory: --file-sink DIR.",
        )
    files = _continued(root, storage, names, (), batch, interval)
    return SinkPlan(
        sink=Sink(FILE, root, interval),
        entries=SinkEntries(root=root, storage=storage, files=files),
    )


def _begun(
    root: str, storage: Storage, names: Mapping[str, int], batch: int, interval: int
) -> dict[str, bytes]:
    """The entries of a new log. What a killed command left of just these is taken for them."""
    wanted = beginning(batch, interval)
    if any(size_bytes > _EMPTY_BYTES for size_bytes in names.values()) or not set(names) <= set(
        wanted
    ):
        raise _taken(root, "has the log of a query already")
    if not names and not _is_vacant(storage):
        raise InvalidInputError(
            f"{root} is not empty, and no file sink: with a log in it, readers would see none of its files",
            kind=ErrorKind.FILE_SINK_INVALID,
            hint="Name a directory that does not exist or is empty.",
        )
    return {layout.sink_entry_key(name): text for name, text in wanted.items() if name not in names}


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
            lambda name: storage.read(layout.sink_entry_key(name)),
            default=interval,
        )
    except MissingEntries as e:
        shown = ", ".join(map(str, e.numbers[:5])) + (", .." if len(e.numbers) > 5 else "")
        raise _mismatch(
            f"{root}/{layout.SINK_LOG_PREFIX} lacks the entries of batches {shown}: it is the sink of another query, or lost them",
            "docs/guides/sinks.md says how to mend a log by hand. " + _SAY,
        ) from e
    return {layout.sink_entry_key(name): text for name, text in made.items()}


def _interval(recorded: Sink | None) -> int:
    return (recorded.compact_interval if recorded is not None else None) or DEFAULT_INTERVAL


def _names(storage: Storage) -> dict[str, int]:
    """Names and sizes of the entries of the log in `storage`."""
    prefix = layout.SINK_LOG_PREFIX
    found = {info.key[len(prefix) :]: info.size_bytes for info in storage.list(prefix)}
    return {name: size for name, size in found.items() if layout.parse_sink_entry(name) is not None}


def _is_vacant(storage: Storage) -> bool:
    if isinstance(storage, LocalStorage):
        # lists of it are whole, and this may be any directory
        return not os.path.isfile(storage.root) and not any(
            files for _, _, files in os.walk(storage.root)
        )
    return next(storage.list(""), None) is None


def _root(file_sink: str | os.PathLike[str] | None, recorded: Sink | None) -> str | None:
    """Where the file sink is, None if there is none. Raises: InvalidInputError: no path or URI."""
    if file_sink is None:
        return recorded.path if recorded is not None and recorded.is_file else None
    return None if os.fspath(file_sink) == NONE else root_of(file_sink)


def _same(a: str, b: str) -> bool:
    first, second = layout.parse_root(a), layout.parse_root(b)
    if first.scheme == second.scheme == "file":
        return os.path.realpath(first.path) == os.path.realpath(second.path)
    return first == second


def _crc32(storage: Storage, key: str) -> int | None:
    try:
        return zlib.crc32(storage.read(key))
    except NotFoundError:
        return None


def _unknown(batch: int) -> str:
    return (
        "nothing says where the query writes to. If that is a file sink (parquet, json, csv, orc, text), it lacks the entry of "
        f"batch {batch}, and its readers fail with `{layout.SINK_LOG_PREFIX}{batch} doesn't exist`: give its directory with "
        "--file-sink DIR. If it is none, say --file-sink none."
    )


def _mismatch(message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.FILE_SINK_MISMATCH, hint=hint)


def _taken(root: str, why: str) -> InvalidInputError:
    return _mismatch(
        f"{root} {why}: two queries that write to one file sink lose each other's rows",
        "Name an empty directory; or, if the query that wrote there is never started again, say --keep-query-id.",
    )
