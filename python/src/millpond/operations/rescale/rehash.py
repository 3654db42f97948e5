"""A rescale that writes every row anew, into other key groups.

It is for numbers of partitions that do not divide the max parallelism; and for partitions that
number their column families differently, whose key groups stay. It first makes the new
changelogs, one a store, in a folder beside the state. Until all are there, the state has not
changed. If the state is on a local disk, several processes share the work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from millpond.errors import ErrorKind, error
from millpond.format.format_file import encode_format
from millpond.local.scratch import scratch_space
from millpond.operations.repartition.folder import staging
from millpond.operations.repartition.pipeline import Share, changelog_files, plan_repartition
from millpond.operations.repartition.plan import (
    NewPartitions,
    check_placeable,
    plan_partitions,
    state_ids,
)
from millpond.operations.rescale.new_files import writing_of
from millpond.operations.rescale.read import Before
from millpond.operations.rescale.write import Writing
from millpond.operations.spread import BYTES_PER_PROCESS, Processes, process_count
from millpond.query.image import Image
from millpond.query.row_source import NativeRows, StoreRows
from millpond.rows import require_tools
from millpond.storage import LocalStorage, Storage

_ROWS_PER_S = 250_000  # of small rows, by one process; measured: docs/measurements.md
_ROW_BYTES = 40  # an estimate, for rows that are not counted
# The old state is compressed differently than the new changelogs. For a moment these are there in
# two forms.
_SPACE_FACTOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehash:
    """What is to be done."""

    image: Image  # of the state before
    new: NewPartitions
    processes: int  # that share the work
    state_bytes: int

    @property
    def rows(self) -> int:
        """Live rows; an estimate if they are not counted."""
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
    image: Image,
    partitions: int,
    max_parallelism: int | None,
    state_bytes: int,
) -> Rehash:
    """Return how to write every row anew, on `partitions`.

    Args:
        image: of the state before.
        max_parallelism: number of the new key groups, a multiple of `partitions`; None: the default
            for `partitions`.
    Raises: InvalidInputError: MAX_PARALLELISM_INVALID. UnsupportedError: the extra `tools` is not
        installed; only Spark can hash keys of this type.
    """
    require_tools()
    processes = 1
    if isinstance(storage, LocalStorage):
        stores = sum(1 for op in image.operators for _ in op.stores)
        processes = max(1, min(process_count(), state_bytes // BYTES_PER_PROCESS, stores))
    new = plan_partitions(image, partitions, max_parallelism)
    check_placeable(image, new, {op.operator for op in image.operators})
    return Rehash(image=image, new=new, processes=processes, state_bytes=state_bytes)


def check_space(storage: Storage, plan: Rehash) -> None:
    """Raise UnavailableError (STORAGE_FULL, LOCAL_DISK_FULL) unless the disk has the space that
    the new changelogs need.

    Raises: also as `scratch_directory`, if the state is on no local disk.
    """
    needed = plan.state_bytes * _SPACE_FACTOR
    if isinstance(storage, LocalStorage):
        kind, place, free = ErrorKind.STORAGE_FULL, storage.root, storage.free_bytes()
    else:
        kind = ErrorKind.LOCAL_DISK_FULL
        place, free = scratch_space()
    if free < needed:
        raise error(
            kind,
            f"every row has to be written anew, which takes up to {needed:,} bytes at {place},"
            f" where {free:,} are free; nothing was changed",
            hint=(
                "Free space there, or choose a number of partitions that divides the max"
                " parallelism: that moves no row."
            ),
        )


@contextmanager
def rehashed(storage: Storage, before: Before, plan: Rehash) -> Iterator[Writing]:
    """Write all rows anew, and yield what makes them the state. Until then the state has not
    changed.

    Raises: UnsupportedError: only Spark can hash keys of this type. UnavailableError: no space.
        FormatError, NotFoundError.
    """
    version = before.started + 2
    image = replace(plan.image, batch=version - 1)
    numbers = {op.operator: op.operator for op in image.operators}
    with staging(storage) as directory:
        what = plan_repartition(partial(NativeRows, storage, plan.image), image, plan.new, numbers)
        made = changelog_files(
            what,
            _shares(plan, what.stores),
            Processes(plan.processes),
            directory,
            scratch=not isinstance(storage, LocalStorage),
        )
        ids = {
            op: [list(stores) for stores in found]
            for op, found in state_ids(image, plan.new).items()
        }
        created_ms, groups = time.time_ns() // 1_000_000, plan.new.key_groups
        writing = replace(
            writing_of(storage, before, plan.new.count, {}, ids, created_ms), made=made
        )
        if groups != before.format.key_groups:
            writing = replace(
                writing,
                format=encode_format(before.format.rehashed(groups, version)),
                format_before=encode_format(before.format),
            )
        yield writing


# ---- over processes ------------------------------------------------------------------------------


def _shares(plan: Rehash, stores: Sequence[StoreRows]) -> list[Share]:
    """Return the old stores by process.

    Stores of one old partition stay together. The largest partition goes first, each to the
    process that has the least to do.
    """
    sizes: dict[tuple[int, int], int] = {}
    for op in plan.image.operators:
        for store in op.stores:
            partition = (op.operator, store.partition)
            sizes[partition] = sizes.get(partition, 0) + store.size_bytes + 1
    process: dict[tuple[int, int], int] = {}
    loads = [0] * plan.processes
    for partition in sorted(sizes, key=lambda p: (-sizes[p], p)):
        least = loads.index(min(loads))
        process[partition] = least
        loads[least] += sizes[partition]
    shares: list[list[StoreRows]] = [[] for _ in loads]
    for rows in stores:
        shares[process[rows.store.operator, rows.store.partition]].append(rows)
    return [tuple(share) for share in shares]
