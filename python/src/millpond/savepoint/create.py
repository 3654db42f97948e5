"""Save a query: `create` a savepoint of it."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from millpond import layout
from millpond._version import __version__
from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from millpond.inspection.survey import survey
from millpond.pins import pinned
from millpond.rows import require_tools
from millpond.savepoint.copying import Progress, Written, damaged_state, write_image
from millpond.savepoint.exporting import export
from millpond.savepoint.from_checkpoint import look
from millpond.savepoint.image import Image, without_state
from millpond.savepoint.index import (
    CANONICAL,
    NATIVE,
    FileEntry,
    SavepointIndex,
    TableEntry,
    encode_index,
)
from millpond.savepoint.target import Target, building, check_vacant
from millpond.savepoint.whole import telling_what_is_left
from millpond.storage import Storage, open_checkpoint, real_root, root_of
from millpond.storage.owner import check_owner

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of a query whose batches expire faster than one is looked at, and where a file seems damaged: of that every look costs a copy.
_LOOKS_IF_EXPIRED, _LOOKS_IF_DAMAGED = 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateReport:
    """What `create` wrote, or would write. `to_json` is the contract of `millpond savepoint create --json`."""

    checkpoint: str
    savepoint: str
    batch: int
    operators: int
    keys: int  # -1: not counted
    files: int  # of a dry run: of the native format
    size_bytes: int  # likewise
    bytes_written: int
    bytes_copied: int  # within object storage: no byte came here
    bytes_linked: int  # of size_bytes, what shares blocks with the Spark checkpoint
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def create(
    checkpoint: str | os.PathLike[str],
    savepoint: str | os.PathLike[str],
    *,
    batch: int | None = None,
    format: str = NATIVE,
    link: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: Any = None,
) -> CreateReport:
    """Save the query of a Spark checkpoint as it was after a committed batch. It may run meanwhile, and is not disturbed.

    Args:
        checkpoint: path or URI of the Spark checkpoint.
        savepoint: path or URI that does not exist yet, or is an empty directory. It is complete or absent, whatever happens.
        batch: None: the last committed one.
        format: `native`: files as they are; `canonical`: the state as Parquet tables, for anything that reads Parquet.
        link: share blocks with the Spark checkpoint where both are on one file system (no bytes are moved), instead of copying.
        dry_run: write nothing.
        progress: called now and then: how much is done, how much there is in all.
        spark: a SparkSession whose executors are to write the tables of `canonical`, for state too large for one machine: a task for
            each store. They need the extra `tools` too, and reach both places: a file system that all share, or S3.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, TARGET_NOT_EMPTY, STATE_OWNED. UnsupportedError: FOREIGN_CHECKPOINT, FORMAT_TOO_NEW.
        NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED. FormatError: a file of the Spark checkpoint is damaged.
        UnavailableError: storage. UnsupportedError: UNSUPPORTED: canonical, and the extra `tools` is not installed.
    """
    if format not in (NATIVE, CANONICAL):
        raise InvalidInputError(f"format {format!r} is neither {NATIVE} nor {CANONICAL}")
    if format == CANONICAL:
        require_tools(load=False)
    origin, place = root_of(checkpoint), root_of(savepoint)
    check_apart(origin, place)
    check_vacant(place)
    source = open_checkpoint(origin)
    check_owner(source, origin)
    with telling_what_is_left(source, origin, batch):

        def make(image: Image) -> CreateReport:
            if dry_run:
                return _report(origin, place, image, Written(), dry_run=True)
            with pin_of(source, image), building(place) as target:
                written = _write(origin, source, image, target, format, link, progress, spark)
            return _report(origin, place, image, written, dry_run=False)

        return of_newest_look(source, origin, batch, make)


def of_newest_look(
    source: Storage, origin: str, batch: int | None, make: Callable[[Image], T]
) -> T:
    """Return what is made of the query's image. What is collected, or replaced by another attempt of its version, before it is
    pinned, is looked for and made anew."""
    for attempt in itertools.count(1):
        try:
            return make(look(source, survey(source, origin), origin, batch))
        except (NotFoundError, FormatError) as e:
            if attempt == (
                _LOOKS_IF_EXPIRED if isinstance(e, NotFoundError) else _LOOKS_IF_DAMAGED
            ):
                raise
    raise AssertionError("unreachable: the last look returns or raises")


def check_apart(origin: str, place: str) -> None:
    """Raise InvalidInputError if one of two places lies in the other, by whatever name."""
    a, b = layout.parse_root(real_root(origin)), layout.parse_root(real_root(place))
    if (a.scheme, a.authority) == (b.scheme, b.authority):
        first, second = f"{a.path}/", f"{b.path}/"
        if first.startswith(second) or second.startswith(first):
            raise InvalidInputError(
                f"{place} and {origin} lie in each other", hint="Name a place beside it."
            )


@contextmanager
def pin_of(source: Storage, image: Image) -> Iterator[None]:
    """Keep collection away from the files of `image` while the block runs.

    Where the Spark checkpoint may only be read, nothing is pinned: a file that is collected meanwhile is noticed, as ever.
    """

    def keys(
        kind: type[layout.ChangelogFile] | type[layout.ManifestFile], among: Iterable[str]
    ) -> list[str]:
        return [
            key
            for key in among
            if (parsed := layout.parse_key(key)) is not None and isinstance(parsed.file, kind)
        ]

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
    target: Target,
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
    target: Target,
    image: Image,
    written: Written,
    *,
    format: str = NATIVE,
    tables: tuple[TableEntry, ...] = (),
) -> None:
    """Make a savepoint of what was written. The last thing to do."""
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
