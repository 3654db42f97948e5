"""A rescale that writes every row anew, into other key groups: for numbers of partitions that do not divide the max parallelism.

The new changelogs, one a store, are made first, in a folder beside the state: until all of them are there, nothing that counts
has changed. The rows are spread over processes where the state is on a local disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from millpond import layout
from millpond.errors import ErrorKind, error
from millpond.format_file import encode_format
from millpond.rescaling.composing import writing_of
from millpond.rescaling.read import Before
from millpond.rescaling.write import Writing
from millpond.rows import require_tools
from millpond.savepoint import rewrite
from millpond.savepoint.image import Image
from millpond.savepoint.rewrite import Blocks, StoreWriter
from millpond.savepoint.row_source import NativeRows
from millpond.scratch import lock, remove_abandoned, scratch_directory
from millpond.spread import Processes, process_count
from millpond.storage import LocalStorage, Storage
from millpond.storage.local import translate

# Below this the start of processes takes longer than they save.
_BYTES_PER_PROCESS = 16 * 1024 * 1024
_ROWS_PER_S = 250_000  # of small rows, by one process; measured: docs/benchmarks.md
_ROW_BYTES = 40  # where rows are not counted
# What is read is compressed otherwise than what is written, and of what is written two forms are there for a moment.
_SPACE_FACTOR = 2
_STAGING = ".rescale-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehash:
    """What is to be done.

    image: of the state before. processes: that share the work.
    """

    image: Image
    layout: rewrite.Layout
    processes: int
    state_bytes: int

    @property
    def rows(self) -> int:
        """Live rows as far as they are counted, else a guess."""
        counted = sum(op.keys for op in self.image.operators)
        return (
            counted
            if all(op.keys >= 0 for op in self.image.operators)
            else self.state_bytes // _ROW_BYTES
        )

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return 0.5 + self.rows / (_ROWS_PER_S * self.processes)


def plan_rehash(
    storage: Storage,
    image: Image | None,
    before: Before,
    partitions: int,
    max_parallelism: int | None,
    state_bytes: int,
) -> Rehash:
    """Return how to write every row anew, on `partitions`.

    Args:
        image: of the state before.
        max_parallelism: of the new key groups, a multiple of `partitions`; None: the default for that many.
    Raises:
        InvalidInputError: MAX_PARALLELISM_INVALID. UnsupportedError: the extra `tools` is not installed.
    """
    require_tools()
    assert image is not None and image.batch == before.committed
    processes = 1
    if isinstance(storage, LocalStorage):
        stores = sum(1 for op in image.operators for _ in op.stores)
        processes = max(1, min(process_count(), state_bytes // _BYTES_PER_PROCESS, stores))
    plan = rewrite.plan_layout(image, partitions, max_parallelism)
    return Rehash(image=image, layout=plan, processes=processes, state_bytes=state_bytes)


def check_space(storage: Storage, plan: Rehash) -> None:
    """Raise UnavailableError (STORAGE_FULL, LOCAL_DISK_FULL) unless the disk that rows are written to has the space."""
    needed = plan.state_bytes * _SPACE_FACTOR
    if isinstance(storage, LocalStorage):
        kind, place, free = ErrorKind.STORAGE_FULL, storage.root, storage.free_bytes()
    else:
        kind, place = ErrorKind.LOCAL_DISK_FULL, tempfile.gettempdir()
        free = shutil.disk_usage(place).free
    if free < needed:
        raise error(
            kind,
            f"every row has to be written anew, which takes up to {needed:,} bytes at {place}, where {free:,} are free; "
            "nothing was changed",
            hint="Free space there, or choose a number of partitions that divides the max parallelism: that moves no row.",
        )


@contextmanager
def rehashed(storage: Storage, before: Before, plan: Rehash) -> Iterator[Writing]:
    """Write all rows anew, and yield what is to be written to make them the state. Nothing that counts has changed by then.

    Raises: UnsupportedError: keys of a type that only Spark can place. UnavailableError: no space. FormatError, NotFoundError.
    """
    version = before.started + 2
    image = replace(plan.image, batch=version - 1)
    with _staging(storage) as directory:
        try:
            parts = _parts(storage, plan, directory)
            made: dict[str, str] = {}
            for writer in _writers(storage, plan, image):
                made |= dict(writer.assemble(parts[writer.operator, writer.store.name], directory))
        except OSError as e:
            raise translate(
                e, "writing rows anew", local=not isinstance(storage, LocalStorage)
            ) from e
        ids = {
            op: [list(stores) for stores in found]
            for op, found in rewrite.state_ids(image, plan.layout).items()
        }
        writing = writing_of(
            storage, before, plan.layout.partitions, {}, ids, time.time_ns() // 1_000_000
        )
        yield replace(
            writing,
            made=made,
            format=encode_format(before.format.rehashed(plan.layout.key_groups, version)),
            format_before=encode_format(before.format),
        )


def remove_leftovers(storage: Storage) -> None:
    """Remove what an earlier rescale that was killed had written for itself."""
    if isinstance(storage, LocalStorage):
        parent = os.path.join(storage.root, layout.MILLPOND_DIR)
        if os.path.isdir(parent):
            remove_abandoned(parent, _STAGING)


@contextmanager
def _staging(storage: Storage) -> Iterator[str]:
    """Yield a folder to write to: on the disk of the state, so that files become part of it without being copied."""
    if not isinstance(storage, LocalStorage):
        with scratch_directory("rescale") as directory:
            yield directory
        return
    try:
        directory = tempfile.mkdtemp(
            prefix=_STAGING, dir=os.path.join(storage.root, layout.MILLPOND_DIR)
        )
    except OSError as e:
        raise translate(e, f"writing to {storage.root}") from e
    descriptor = lock(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # the next rehash removes the rest
        os.close(descriptor)


def _writers(storage: Storage, plan: Rehash, image: Image) -> Iterator[StoreWriter]:
    source = NativeRows(storage, plan.image)
    numbers = {op.operator: op.operator for op in image.operators}
    return rewrite.store_writers(image, plan.layout, source, source.key_groups, numbers)


# ---- over processes ------------------------------------------------------------------------------------------------

Parts = dict[
    tuple[int, str], list[list[Blocks]]
]  # operator and store -> from each process -> of each new partition
_Work = list[tuple[int, int]]  # operator and old partition


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all parts of the work share. storage: of one process, any; of several, one that each of them reaches."""

    storage: Storage
    plan: Rehash
    directory: str


def _parts(storage: Storage, plan: Rehash, directory: str) -> Parts:
    every: Parts = {}
    for parts in Processes(plan.processes).map(
        _write_parts, _Shared(storage, plan, directory), _shares(plan)
    ):
        for store, lists in parts.items():
            every.setdefault(store, []).extend(lists)
    return every


def _shares(plan: Rehash) -> list[_Work]:
    """Old partitions by process, the largest first, each to the process that has the least to do."""
    sizes: dict[tuple[int, int], int] = {}
    for op in plan.image.operators:
        for store in op.stores:
            place = (op.operator, store.partition)
            sizes[place] = sizes.get(place, 0) + store.size_bytes + 1
    shares: list[_Work] = [[] for _ in range(plan.processes)]
    loads = [0] * plan.processes
    for place in sorted(sizes, key=lambda p: (-sizes[p], p)):
        least = loads.index(min(loads))
        shares[least].append(place)
        loads[least] += sizes[place]
    return shares


def _write_parts(shared: _Shared, work: _Work) -> Parts:
    """Write the rows of some old partitions anew."""
    source = NativeRows(shared.storage, shared.plan.image)
    parts: Parts = {}
    for writer in _writers(shared.storage, shared.plan, shared.plan.image):
        mine = [
            rows for rows in writer.stores if (rows.store.operator, rows.store.partition) in work
        ]
        parts[writer.operator, writer.store.name] = [writer.part(source, mine, shared.directory)]
    return parts
