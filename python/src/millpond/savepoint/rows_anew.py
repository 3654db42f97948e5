"""Rows written anew by many: each old store is read once, in any process, and its rows are sorted by new partition into files of blocks;
then each new changelog is the concatenation of its blocks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millpond import layout as paths
from millpond.ids import StoreId
from millpond.keygroups import KeyGroups
from millpond.savepoint.copying import Progress
from millpond.savepoint.image import Image, operator_info
from millpond.savepoint.index import CANONICAL, SavepointIndex
from millpond.savepoint.rewrite import Blocks, Layout, StoreWriter
from millpond.savepoint.row_source import NativeRows, RowSource, StoreRows
from millpond.savepoint.target import Place, Target
from millpond.scratch import scratch_directory
from millpond.spread import engine_for
from millpond.storage import Storage, open_checkpoint, open_storage
from millpond.storage.local import translate

_PARALLEL_FROM_BYTES = 16 * 1024 * 1024  # below that, starting processes takes longer than it saves


@dataclass(frozen=True, slots=True)
class Origin:
    """What is restored or forked. index: of a savepoint; None: it is the Spark checkpoint of a query."""

    root: str
    image: Image
    index: SavepointIndex | None = None

    @property
    def canonical(self) -> bool:
        return self.index is not None and self.index.format == CANONICAL

    def rows(self) -> RowSource:
        """Return the rows of its state."""
        if self.index is None:
            return NativeRows(open_checkpoint(self.root), self.image)
        if self.index.format != CANONICAL:
            return NativeRows(open_storage(self.root), self.image)
        from millpond.savepoint.canonical import CanonicalRows  # needs the extra `tools`

        return CanonicalRows(open_storage(self.root), self.index)

    @property
    def state_bytes(self) -> int:
        if self.index is not None:
            return self.index.size_bytes
        return sum(file.size_bytes for file in self.image.files)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What is to be done. numbers: of operators, old to new; the others are left out. stores: those that are read."""

    origin: Origin
    layout: Layout
    numbers: Mapping[int, int]
    stores: tuple[StoreRows, ...]
    key_groups: KeyGroups

    def writers(self) -> Iterator[StoreWriter]:
        """Yield what writes each store of each operator. Raises: UnsupportedError: rows cannot be placed anew."""
        for op in self.origin.image.operators:
            if op.operator in self.numbers:
                for name in operator_info(self.origin.image, op.operator).stores:
                    yield self.writer(op.operator, name)

    def writer(self, operator: int, name: str) -> StoreWriter:
        """Return what writes the store `name` of an operator (its old number)."""
        mine = [
            rows
            for rows in self.stores
            if (rows.store.operator, rows.store.name) == (operator, name)
        ]
        info = operator_info(self.origin.image, operator)
        new = StoreId(self.numbers[operator], 0, name)
        return StoreWriter(
            self.origin.image, self.layout, info, new, operator, mine, self.key_groups
        )


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all parts of the work share. scratch: a directory that they share too; None: only the target is shared."""

    what: Rewrite
    place: Place
    scratch: str | None


def write_rows(
    origin: Origin,
    layout: Layout,
    numbers: Mapping[int, int],
    source: Storage,
    target: Target,
    *,
    spark: Any = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write the changelogs of the new state; return their keys and sizes in bytes.

    Args:
        numbers: of operators, old to new; the others are left out.
        source: the storage of the origin.
        spark: a Spark session whose executors are to do it.
    Raises: UnsupportedError: rows must be placed anew, and their partition key is not known.
    """
    engine = engine_for(
        spark, (source, target.storage), large=origin.state_bytes >= _PARALLEL_FROM_BYTES
    )
    rows = origin.rows()
    stores = [rows for rows in rows.stores() if rows.store.operator in numbers]
    what = Rewrite(origin, layout, numbers, tuple(stores), rows.key_groups)
    blocks: dict[tuple[int, str, int], list[Blocks]] = {
        (writer.operator, writer.store.name, partition): []
        for writer in what.writers()
        for partition in range(writer.count)
    }
    total, written = len(stores) + len(blocks), {}
    with target.place.scratch("rows") as directory:
        shared = _Shared(
            what,
            target.place,
            directory if spark is None or target.place.local is not None else None,
        )
        for done, (store, found) in enumerate(
            zip(stores, engine.map(_sorted, shared, stores), strict=True), 1
        ):
            for partition, some in enumerate(found):
                if some.totals.records:
                    blocks[store.store.operator, store.store.name, partition].append(some)
            if progress is not None:
                progress(done, total)
        jobs = [(*place, tuple(found)) for place, found in blocks.items()]
        for done, (job, (key, size_bytes)) in enumerate(
            zip(jobs, engine.map(_joined, shared, jobs), strict=True), 1
        ):
            written[key] = size_bytes
            _remove(shared, target, job[3])
            if progress is not None:
                progress(len(stores) + done, total)
    return written


def _remove(shared: _Shared, target: Target, parts: Sequence[Blocks]) -> None:
    if shared.scratch is None:
        target.storage.delete([blocks.path for blocks in parts])
    else:
        for blocks in parts:
            os.unlink(blocks.path)


def _sorted(shared: _Shared, store: StoreRows) -> list[Blocks]:
    """Sort the rows of an old store by new partition."""
    source = shared.what.origin.rows()
    writer = shared.what.writer(store.store.operator, store.store.name)
    try:
        if shared.scratch is not None:
            return writer.part(source, [store], shared.scratch)
        target = shared.place.open()
        with scratch_directory("rows") as directory:
            found = []
            for blocks in writer.part(source, [store], directory):
                key = paths.scratch_key(os.path.basename(blocks.path))
                if blocks.totals.records:
                    target.put_file(key, blocks.path)
                found.append(replace(blocks, path=key))
            return found
    except OSError as e:
        raise translate(e, "writing rows anew", local=True) from e


def _joined(shared: _Shared, job: tuple[int, str, int, tuple[Blocks, ...]]) -> tuple[str, int]:
    """Make a changelog of its blocks; return its key and its size in bytes."""
    operator, name, partition, parts = job
    writer = shared.what.writer(operator, name)
    target = shared.place.open()
    try:
        with tempfile.TemporaryDirectory(prefix="joined-", dir=shared.scratch) as directory:
            mine = []
            for number, blocks in enumerate(parts):
                path = os.path.join(directory, str(number))
                if shared.scratch is None:
                    target.get_to_file(blocks.path, path)
                else:
                    os.link(blocks.path, path)  # it is used up, and the job may be done again
                mine.append(replace(blocks, path=path))
            key, path = writer.changelog(mine, partition, directory)
            target.put_file(key, path, link=True)
            return key, os.path.getsize(path)
    except OSError as e:
        raise translate(e, "writing rows anew", local=True) from e
