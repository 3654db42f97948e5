"""`create`: makes a savepoint of a query."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from millpond._version import __version__
from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from millpond.format import layout
from millpond.operations.output.atomic_target import AtomicTarget, building, check_vacant
from millpond.operations.output.copying import Progress, Written, damaged_state, write_image
from millpond.operations.savepoint.export import export
from millpond.operations.savepoint.retention import (
    check_keep,
    new_name,
    remove_left,
    remove_older,
)
from millpond.query.erasing import read_erasures, refuse_erased
from millpond.query.from_checkpoint import look
from millpond.query.image import Image, without_state
from millpond.query.index import (
    CANONICAL,
    NATIVE,
    FileEntry,
    SavepointIndex,
    TableEntry,
    encode_index,
)
from millpond.query.survey import survey
from millpond.query.whole import telling_what_is_left
from millpond.rows import require_tools
from millpond.storage import Storage, open_checkpoint, open_storage, root_of
from millpond.storage.given import takes_options
from millpond.storage.owner import check_owner
from millpond.storage.place import place_to_read
from millpond.storage.same_place import one_name
from millpond.store.collection.pins import pinned

log = logging.getLogger(__name__)

T = TypeVar("T")

# Batches of a fast query may expire while one is read. If a file seems damaged, each look costs
# another copy.
_LOOKS_IF_EXPIRED, _LOOKS_IF_DAMAGED = 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateReport:
    """What `create` wrote, or would write.

    `to_json` is the contract of `millpond savepoint create --json`.
    """

    checkpoint: str
    savepoint: str
    batch: int
    operators: int
    keys: int  # -1: not counted
    files: int  # in a dry run: as if the format were native
    size_bytes: int  # in a dry run: as if the format were native
    bytes_written: int
    bytes_copied: int  # by the object storage itself: no byte came here
    bytes_linked: int  # the part of size_bytes that shares blocks with the Spark checkpoint
    dry_run: bool
    deleted: tuple[str, ...] = ()  # older savepoints, with `keep`

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@takes_options
def create(
    checkpoint: str | os.PathLike[str],
    savepoint: str | os.PathLike[str],
    *,
    batch: int | None = None,
    keep: int | None = None,
    format: str = NATIVE,
    copy: bool = False,
    link: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: Any = None,
    options: Mapping[str, object] | None = None,
) -> CreateReport:
    """Save the query of a Spark checkpoint as it was after a committed batch. The query may run
    meanwhile, and is not disturbed.

    Args:
        checkpoint: path or URI of the Spark checkpoint.
        savepoint: path or URI that does not exist yet, or is an empty directory. Afterwards it is
            complete or absent, whatever happens.
        batch: None: the last committed one.
        keep: `savepoint` is a directory of savepoints, which gets a new one, named by the time.
            Then the oldest such savepoints of this query go, until this many are left. None:
            `savepoint` is the place of the savepoint itself, and nothing is deleted.
        format: `native`: files as they are; `canonical`: the state as Parquet tables, for any
            program that reads Parquet.
        copy: copy files, even if both are on one file system, where the savepoint could share
            blocks with the Spark checkpoint.
        link: the older name: `link=False` is `copy=True`.
        dry_run: write nothing.
        progress: called now and then with how much is done, and how much there is in all.
        spark: a SparkSession whose executors write the tables of `canonical`, for state too large
            for one machine: a task for each store. They need the extra `tools` too, and must reach
            both directories: on a file system that all share, or on S3.
        options: of the storages, by name.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, TARGET_NOT_EMPTY, STATE_OWNED. UnsupportedError:
            FOREIGN_CHECKPOINT, FORMAT_TOO_NEW.
        NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED. FormatError: a file of the Spark
            checkpoint is damaged. ConflictError: ERASE_UNFINISHED: a key is being erased, or was
            meanwhile.
        UnavailableError: storage. UnsupportedError: UNSUPPORTED: canonical, and the extra `tools`
            is not installed.
    """
    if format not in (NATIVE, CANONICAL):
        raise InvalidInputError(
            f"format {format!r} is neither {NATIVE} nor {CANONICAL}",
            hint="Write native for files as they are, canonical for Parquet tables.",
        )
    if format == CANONICAL:
        require_tools(load=False)
    directory = os.fspath(savepoint)
    if keep is not None:
        check_keep(keep)
        savepoint = new_name(directory, time.time_ns() // 1_000_000)
        if not dry_run:
            remove_left(directory)
    origin, new_root = origin_and_new(checkpoint, savepoint)
    source = open_checkpoint(origin)
    check_owner(source, origin)
    erased = read_erasures(source)
    query_id: list[str | None] = []
    with telling_what_is_left(source, origin, batch):

        def make(image: Image) -> CreateReport:
            query_id[:] = [image.query_id]
            if dry_run:
                return _report(origin, new_root, image, Written(), dry_run=True)
            with pin_of(source, image), building(new_root) as target:
                sharing = link and not copy
                written = _write(origin, source, image, target, format, sharing, progress, spark)
                refuse_erased(source, origin, erased)
            return _report(origin, new_root, image, written, dry_run=False)

        report = of_newest_look(source, origin, batch, make)
    if keep is None:
        return report
    gone = remove_older(directory, query_id[0], keep, planned=report.savepoint, dry_run=dry_run)
    return replace(report, deleted=gone)


def of_newest_look(
    source: Storage, origin: str, batch: int | None, make: Callable[[Image], T]
) -> T:
    """Return what `make` makes of the query's image.

    A file may be collected before it is pinned, or replaced by another attempt of its version. Then
    this looks again, and calls `make` again.
    """
    for attempt in itertools.count(1):
        try:
            return make(look(source, survey(source, origin), origin, batch))
        except (NotFoundError, FormatError) as e:
            if attempt == (
                _LOOKS_IF_EXPIRED if isinstance(e, NotFoundError) else _LOOKS_IF_DAMAGED
            ):
                raise
    raise AssertionError("unreachable: the last look returns or raises")


def origin_and_new(origin: str | os.PathLike[str], new: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the absolute names of what is read, and of what is to be made of it.

    Raises: InvalidInputError: one lies in the other; TARGET_NOT_EMPTY. As `check_apart`.
    """
    old_root, new_root = root_of(origin), root_of(new)
    check_apart(old_root, new_root)
    check_vacant(new_root)
    return old_root, new_root


def check_apart(origin: str, new_root: str) -> None:
    """Raise InvalidInputError if `new_root` lies in `origin`, or around it, by whatever name.

    The place of the state of `origin` (option storage.uri) counts as well.

    Raises: also as `open_storage` and `place_to_read`, of `origin`.
    """
    new = _name(new_root)
    for old in (origin, place_to_read(open_storage(origin))):
        if old is not None and (_name(old).startswith(new) or new.startswith(_name(old))):
            raise InvalidInputError(
                f"{new_root} and {old} lie in each other", hint="Name a place beside it."
            )


def check_sink_apart(sink: str, new_root: str) -> None:
    """Raise InvalidInputError (TARGET_NOT_EMPTY) if the file sink `sink` lies in `new_root`."""
    if _name(sink).startswith(_name(new_root)):
        raise InvalidInputError(
            f"the file sink {sink} lies in the new Spark checkpoint {new_root}",
            kind=ErrorKind.TARGET_NOT_EMPTY,
            hint="Name a directory outside of it for one of them.",
        )


def _name(root: str) -> str:
    return one_name(root).rstrip("/") + "/"


@contextmanager
def pin_of(source: Storage, image: Image) -> Iterator[None]:
    """Pin the files of `image` while the block runs, so that no collection deletes them.

    If the Spark checkpoint may only be read, nothing is pinned. Whoever copies a file notices that
    it was collected.
    """

    def keys(
        kind: type[layout.ChangelogFile] | type[layout.ManifestFile], among: Iterable[str]
    ) -> list[str]:
        return [key for key in among if isinstance(layout.file_of(key), kind)]

    manifests = keys(layout.ManifestFile, image.texts)
    changelogs = keys(layout.ChangelogFile, (file.source for file in image.files))
    with ExitStack() as stack:
        if manifests or changelogs:
            try:
                stack.enter_context(pinned(source, manifests=manifests, changelogs=changelogs))
            except UnavailableError as e:
                if e.kind is not ErrorKind.STORAGE_DENIED:
                    raise
                log.warning(
                    "the Spark checkpoint is not pinned, because it cannot be written to: %s", e
                )
        yield


def _write(
    origin: str,
    source: Storage,
    image: Image,
    target: AtomicTarget,
    format: str,
    link: bool,
    progress: Progress | None,
    spark: Any,
) -> Written:
    tables: tuple[TableEntry, ...] = ()
    table_files: dict[str, FileEntry] = {}
    if format == CANONICAL:
        found, table_files = export(image, origin, target, spark=spark, progress=progress)
        tables, image = tuple(found), without_state(image)
    written = write_image(
        image, source, target, link=link, verify=False, damaged=damaged_state, progress=progress
    )
    written.files |= table_files
    written.bytes_written += sum(entry.size_bytes for entry in table_files.values())
    write_index(target, image, written, format=format, tables=tables)
    return written


def write_index(
    target: AtomicTarget,
    image: Image,
    written: Written,
    *,
    format: str = NATIVE,
    tables: tuple[TableEntry, ...] = (),
) -> None:
    """Write the index, the last file: with it the target is a savepoint."""
    index = SavepointIndex(
        format=format,
        created_by=f"millpond {__version__}",
        created_ms=time.time_ns() // 1_000_000,
        image=replace(image, texts={}, files=()),
        files=written.files,
        tables=tables,
    )
    data = encode_index(index)
    target.storage.put_bytes(layout.SAVEPOINT_KEY, data, if_absent=True)
    written.bytes_written += len(data)


def _report(
    checkpoint: str, savepoint: str, image: Image, written: Written, *, dry_run: bool
) -> CreateReport:
    counts = [operator.keys for operator in image.operators]
    return CreateReport(
        checkpoint=checkpoint,
        savepoint=savepoint,
        batch=image.batch,
        operators=len(image.operators),
        keys=-1 if -1 in counts else sum(counts),
        files=len(written.files) or len(image.texts) + len(image.files),
        size_bytes=sum(entry.size_bytes for entry in written.files.values()) or image.size_bytes,
        bytes_written=written.bytes_written,
        bytes_copied=written.bytes_copied,
        bytes_linked=written.bytes_linked,
        dry_run=dry_run,
    )
