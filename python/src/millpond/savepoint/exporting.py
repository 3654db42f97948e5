"""Carries out the export of a canonical savepoint, store by store, here or elsewhere. What makes the tables is imported where it is done:
that takes as long as half a million rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.savepoint.copying import Progress
from millpond.savepoint.image import Image
from millpond.savepoint.index import FileEntry, TableEntry
from millpond.savepoint.row_source import NativeRows, StoreRows
from millpond.savepoint.target import Place, Target
from millpond.spread import engine_for
from millpond.storage import open_checkpoint

_PARALLEL_FROM_KEYS = 500_000  # below that, starting processes takes longer than it saves


@dataclass(frozen=True, slots=True)
class _Export:
    """What all parts of an export share. root: of the storage that `image` is of."""

    image: Image
    root: str
    place: Place


def export(
    image: Image, root: str, target: Target, *, spark: Any = None, progress: Progress | None = None
) -> tuple[list[TableEntry], dict[str, FileEntry]]:
    """Write the tables of all stores of `image`, which is in the storage at `root`. Returns them, and their files.

    Args:
        spark: a Spark session whose executors are to do it.
    """
    storage = open_checkpoint(root)
    stores = NativeRows(storage, image).stores()
    keys = [op.keys for op in image.operators]
    large = -1 in keys or sum(keys) >= _PARALLEL_FROM_KEYS
    engine = engine_for(spark, (storage, target.storage), large=large)
    tables: list[TableEntry] = []
    files: dict[str, FileEntry] = {}
    results = engine.map(_export_store, _Export(image, root, target.place), stores)
    for done, (found, written) in enumerate(results, 1):
        tables += found
        files |= {entry.key: entry for entry in written}
        if progress is not None:
            progress(done, len(stores))
    return tables, files


def _export_store(what: _Export, store: StoreRows) -> tuple[list[TableEntry], list[FileEntry]]:
    """Write the tables of one store. Returns them, and their files."""
    from millpond.savepoint.canonical import TableWriters, parts

    source, target = NativeRows(open_checkpoint(what.root), what.image), what.place.open()
    with what.place.scratch("export") as directory:
        writers = TableWriters(what.image, source.key_groups, directory)
        try:
            for part in parts(source, store):
                writers.write(store.store, part)
        finally:
            writers.close()
        files = writers.files()
        for path, entry in files:
            target.put_file(
                entry.key, path, link=True
            )  # again, where Spark does a task again: the bytes are the same
    return writers.tables(store), [entry for _, entry in files]
