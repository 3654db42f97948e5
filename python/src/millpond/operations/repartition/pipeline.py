"""Repartitions the rows of a state over many processes.

The work has two steps. First each old store is read once, in any process: its rows are sorted by
new partition into files of blocks. Then each new changelog is made of its blocks.

The pipeline has two ends, because its callers publish differently. `write_changelogs` serves
restores and forks: nobody reads their target yet, so every process puts its changelogs there
itself, executors of Spark too. `changelog_files` serves a rescale in place: it leaves files, which
the rescale then puts beside the old state in the order of its journal. Joining blocks there is a
copy of bytes on one disk, which one process does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from millpond.format import layout
from millpond.local.scratch import scratch_directory
from millpond.model.ids import StoreId
from millpond.model.key_groups import KeyGroups
from millpond.operations.output.atomic_target import AtomicTarget, TargetAddress
from millpond.operations.output.copying import Progress
from millpond.operations.repartition.origin import Origin
from millpond.operations.repartition.plan import NewPartitions
from millpond.operations.repartition.store_writer import Blocks, StoreWriter
from millpond.operations.spread import BYTES_PER_PROCESS, Engine, engine_for
from millpond.query.image import Image, operator_info
from millpond.query.row_source import RowSource, StoreRows
from millpond.storage import Storage
from millpond.storage.local import translate, translate_restored

Share = tuple[StoreRows, ...]
"""The old stores that one job reads, ascending."""

NewStore = tuple[int, str, int]
"""A new store: the old number of its operator, its name, its new partition."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """What is to be done.

    read: opens the rows, in any process. image: says how they lay; its batch is that of the new
    changelogs. numbers: of operators, old to new; the others are left out. stores: those that are
    read.
    """

    read: Callable[[], RowSource]
    image: Image
    new: NewPartitions
    numbers: Mapping[int, int]
    stores: tuple[StoreRows, ...]
    key_groups: KeyGroups

    def writers(self) -> Iterator[StoreWriter]:
        """Yield the writer of each store of each operator.

        Raises: UnsupportedError: rows move, and their partition key is not known.
        """
        for op in self.image.operators:
            if op.operator in self.numbers:
                for name in operator_info(self.image, op.operator).stores:
                    yield self.writer(op.operator, name)

    def writer(self, operator: int, name: str) -> StoreWriter:
        """Return the writer of the store `name` of an operator (its old number)."""
        info = operator_info(self.image, operator)
        store = StoreId(self.numbers[operator], 0, name)
        return StoreWriter(
            self.image,
            self.new,
            info,
            store,
            operator,
            [rows for rows in self.stores if _is_of(rows, operator, name)],
            self.key_groups,
        )


def _is_of(rows: StoreRows, operator: int, name: str) -> bool:
    return (rows.store.operator, rows.store.name) == (operator, name)


def plan_repartition(
    read: Callable[[], RowSource], image: Image, new: NewPartitions, numbers: Mapping[int, int]
) -> Repartition:
    """Return what is to be done. Reads which stores there are, and no row.

    Args: as the fields of `Repartition`.
    """
    rows = read()
    stores = tuple(found for found in rows.stores() if found.store.operator in numbers)
    # A query without state has no key groups, and none of its rows asks for them.
    groups = rows.key_groups if stores else new.key_groups
    return Repartition(read, image, new, numbers, stores, groups)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all jobs share.

    folder: for blocks, on a disk that all processes reach; None: they reach only `address`.
    address: where the changelogs go; None: the caller puts them there.
    scratch: whether the folder is on this machine's disk for scratch files, or on the disk of the
    state.
    """

    what: Repartition
    folder: str | None
    address: TargetAddress | None
    scratch: bool

    def opened(self) -> Storage:
        assert self.address is not None
        return self.address.open()


def write_changelogs(
    origin: Origin,
    new: NewPartitions,
    numbers: Mapping[int, int],
    source: Storage,
    target: AtomicTarget,
    *,
    spark: Any = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write the changelogs of the new state into `target`; return their keys and sizes in bytes.

    Args:
        numbers: of operators, old to new; the others are left out.
        source: the storage of the origin.
        spark: a Spark session whose executors are to do it.
    Raises: UnsupportedError: rows move, and their partition key is not known.
    """
    engine = engine_for(
        spark, (source, target.storage), large=origin.state_bytes >= BYTES_PER_PROCESS
    )
    what = plan_repartition(origin.rows, origin.image, new, numbers)
    shares = [(store,) for store in what.stores]
    with target.address.scratch("rows") as directory:
        folder = directory if spark is None or target.address.local is not None else None
        shared = _Shared(what, folder, target.address, scratch=True)
        total = len(shares) + sum(writer.count for writer in what.writers())

        def step(done: int) -> None:
            if progress is not None:
                progress(done, total)

        blocks = _sort_all(shared, shares, engine, step)
        jobs = list(blocks.items())
        written: dict[str, int] = {}
        results = zip(jobs, engine.map(_joined, shared, jobs), strict=True)
        for done, ((_, parts), (key, size_bytes)) in enumerate(results, len(shares) + 1):
            written[key] = size_bytes
            _remove(shared, target, parts)
            step(done)
    if shared.folder is None:
        # Spark may repeat a task. An attempt whose answer nobody got has left its blocks.
        target.storage.delete([info.key for info in target.storage.list(layout.SCRATCH_PREFIX)])
    return written


def changelog_files(
    what: Repartition, shares: Sequence[Share], engine: Engine, folder: str, *, scratch: bool
) -> dict[str, str]:
    """Make the changelogs of the new state; return, of each key, its file below `folder`.

    Args:
        folder: on a disk that all processes of `engine` reach.
        scratch: whether that is this machine's disk for scratch files, or the disk of the state.
    Raises: UnsupportedError: rows move, and their partition key is not known.
    """
    shared = _Shared(what, folder, None, scratch)
    made: dict[str, str] = {}
    with _told(shared):
        for (operator, name, partition), blocks in _sort_all(shared, shares, engine).items():
            key, path = what.writer(operator, name).changelog(blocks, partition, folder)
            made[key] = path
    return made


# ---- sorting -------------------------------------------------------------------------------------


def _sort_all(
    shared: _Shared,
    shares: Sequence[Share],
    engine: Engine,
    step: Callable[[int], None] = lambda done: None,
) -> dict[NewStore, list[Blocks]]:
    """Sort the rows of all shares; return the blocks of each new store, in the order of shares."""
    found: dict[NewStore, list[Blocks]] = {
        (writer.operator, writer.store.name, partition): []
        for writer in shared.what.writers()
        for partition in range(writer.count)
    }
    for done, blocks in enumerate(engine.map(_sorted, shared, shares), 1):
        for store, some in blocks:
            found[store].append(some)
        step(done)
    return found


def _sorted(shared: _Shared, share: Share) -> list[tuple[NewStore, Blocks]]:
    """Sort the rows of some old stores by new store; leave out new stores that get none."""
    with _told(shared):
        if shared.folder is not None:
            return list(_sorted_into(shared.folder, shared.what, share))
        target = shared.opened()
        found = []
        with scratch_directory("rows") as directory:
            for store, blocks in _sorted_into(directory, shared.what, share):
                key = layout.scratch_key(os.path.basename(blocks.path))
                target.put_file(key, blocks.path)
                found.append((store, replace(blocks, path=key)))
        return found


def _sorted_into(
    directory: str, what: Repartition, share: Share
) -> Iterator[tuple[NewStore, Blocks]]:
    source = what.read()
    for operator, name in dict.fromkeys((rows.store.operator, rows.store.name) for rows in share):
        mine = [rows for rows in share if _is_of(rows, operator, name)]
        parts = what.writer(operator, name).part(source, mine, directory)
        for partition, blocks in enumerate(parts):
            if blocks.totals.records:
                yield (operator, name, partition), blocks


# ---- joining -------------------------------------------------------------------------------------


def _joined(shared: _Shared, job: tuple[NewStore, list[Blocks]]) -> tuple[str, int]:
    """Make a changelog of its blocks, and put it; return its key and its size in bytes."""
    (operator, name, partition), parts = job
    writer = shared.what.writer(operator, name)
    target = shared.opened()
    with (
        _told(shared),
        tempfile.TemporaryDirectory(prefix="joined-", dir=shared.folder) as directory,
    ):
        mine = []
        for number, blocks in enumerate(parts):
            path = os.path.join(directory, str(number))
            if shared.folder is None:
                target.get_to_file(blocks.path, path)
            else:
                os.link(blocks.path, path)  # the writer removes it, and Spark may repeat the job
            mine.append(replace(blocks, path=path))
        key, path = writer.changelog(mine, partition, directory)
        target.put_file(key, path, link=True)
        return key, os.path.getsize(path)


def _remove(shared: _Shared, target: AtomicTarget, parts: Sequence[Blocks]) -> None:
    if shared.folder is None:
        target.storage.delete([blocks.path for blocks in parts])
    else:
        for blocks in parts:
            os.unlink(blocks.path)


@contextmanager
def _told(shared: _Shared) -> Iterator[None]:
    """Raise what the disk refuses as Millpond's error."""
    try:
        yield
    except OSError as e:
        told = translate_restored if shared.scratch else translate
        raise told(e, "writing rows anew") from e
