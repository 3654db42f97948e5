"""Writes the tables of a canonical savepoint, store by store, over processes.

It is no repartition: rows stay in their stores, and become Parquet. A process that writes tables
imports pyarrow, which takes as long as half a million rows. So this module does not import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.operations.output.atomic_target import AtomicTarget, TargetAddress
from millpond.operations.output.copying import Progress
from millpond.operations.spread import engine_for
from millpond.query.image import Image
from millpond.query.index import FileEntry, TableEntry
from millpond.query.row_source import NativeRows, StoreRows
from millpond.storage import open_checkpoint

_PARALLEL_FROM_KEYS = 500_000  # below that, starting processes takes longer than it saves


@dataclass(frozen=True, slots=True)
class _Export:
    """What all jobs share."""

    image: Image
    root: str  # of the storage that `image` is of
    address: TargetAddress


def export(
    image: Image,
    root: str,
    target: AtomicTarget,
    *,
    spark: Any = None,
    progress: Progress | None = None,
) -> tuple[list[TableEntry], dict[str, FileEntry]]:
    """Write the tables of all stores of `image`, which is in the storage at `root`.

    Return the tables, and their files.

    Args:
        spark: a Spark session whose executors do it; None: this machine does.
    """
    storage = open_checkpoint(root)
    stores = NativeRows(storage, image).stores()
    keys = [op.keys for op in image.operators]
    large = -1 in keys or sum(keys) >= _PARALLEL_FROM_KEYS
    engine = engine_for(spark, (storage, target.storage), large=large)
    tables: list[TableEntry] = []
    files: dict[str, FileEntry] = {}
    results = engine.map(_export_store, _Export(image, root, target.address), stores)
    for done, (found, written) in enumerate(results, 1):
        tables += found
        files |= {entry.key: entry for entry in written}
        if progress is not None:
            progress(done, len(stores))
    return tables, files


def _export_store(what: _Export, store: StoreRows) -> tuple[list[TableEntry], list[FileEntry]]:
    """Write the tables of one store. Return them, and their files."""
    from millpond.state.canonical import TableWriters, parts  # start-up time: pyarrow

    source, target = NativeRows(open_checkpoint(what.root), what.image), what.address.open()
    with what.address.scratch("export") as directory:
        writers = TableWriters(what.image, source.key_groups, directory)
        try:
            for part in parts(source, store):
                writers.write(store.store, part)
        finally:
            writers.close()
        files = writers.files()
        for path, entry in files:
            # Spark may do a task again: it writes the same bytes.
            target.put_file(entry.key, path, link=True)
    return writers.tables(store), [entry for _, entry in files]
