"""Erases a key from the tables of a canonical savepoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from millpond.operations.erase.journal import Journal
from millpond.operations.erase.matching import Matcher
from millpond.operations.erase.scan import Found
from millpond.query.image import Image
from millpond.query.index import FileEntry, SavepointIndex, TableEntry
from millpond.query.row_source import Rows, StoreRows
from millpond.state.canonical import CanonicalRows, TableWriters
from millpond.storage import Storage, is_there
from millpond.storage.sums import size_and_crc32


@dataclass(frozen=True, slots=True)
class NewTables:
    """Tables that are written anew.

    journal: what is to be done. paths: of the new files, by key. index: the savepoint's afterwards.
    """

    journal: Journal
    paths: Mapping[str, str]
    index: SavepointIndex


def as_replaced(storage: Storage, index: SavepointIndex, journal: Journal) -> SavepointIndex:
    """Return the index of a savepoint in which an erasure has replaced some tables."""
    entries, rows = dict(index.files), dict[str, int]()
    for key, (crc32, count) in journal.tables.items():
        size_bytes, now = size_and_crc32(storage, key)
        if now == crc32:
            entries[key] = FileEntry(key=key, size_bytes=size_bytes, crc32=crc32)
            rows[key] = count
    gone = {key for key in journal.deletes if not is_there(storage, key)}
    tables = [
        replace(table, rows=rows[table.key]) if table.key in rows else table
        for table in index.tables
    ]
    return _without(replace(index, files=entries, tables=tuple(tables)), gone)


def plan_tables(
    storage: Storage,
    index: SavepointIndex,
    image: Image,
    matcher: Matcher,
    job: str,
    found: Found,
    directory: str,
) -> NewTables:
    """Write the tables without the key into `directory`.

    Args:
        found: gets what is found of the key.
    Raises: FormatError: SAVEPOINT_DAMAGED. UnavailableError: LOCAL_DISK_FULL.
    """
    source = CanonicalRows(storage, index)
    writers = TableWriters(image, source.key_groups, directory)
    changed: dict[str, TableEntry] = {}
    with closing(writers):
        for table in index.tables:
            if table.key is None or table.store.operator != matcher.operator:
                continue
            before = found.rows
            for rows in source.table_rows(table):
                for n, goes in enumerate(matcher.mask(table.store.name, table.family, rows.keys)):
                    if goes:
                        found.rows += 1
                        found.live += not table.family.internal
                        found.note(rows.keys[n], rows.values[n])
            if found.rows == before:
                continue
            changed[table.key] = table
            for rows in source.table_rows(table):
                mask = matcher.mask(table.store.name, table.family, rows.keys).tolist()
                kept = [n for n, goes in enumerate(mask) if not goes]
                if kept:
                    left = Rows(
                        rows.family,
                        [rows.groups[n] for n in kept],
                        [rows.keys[n] for n in kept],
                        [rows.values[n] for n in kept],
                    )
                    writers.write(table.store, left)
    files = {entry.key: (path, entry) for path, entry in writers.files()}
    tables, news = [], dict[str, tuple[int, int]]()
    for table in index.tables:
        if table.key in files:
            (count,) = [
                one.rows for key, one in _written(writers, changed[table.key]) if key == table.key
            ]
            tables.append(replace(table, rows=count))
            news[table.key] = files[table.key][1].crc32, count
        else:
            tables.append(table)
    entries = {**index.files, **{key: entry for key, (_, entry) in files.items()}}
    deletes = tuple(sorted(changed.keys() - files.keys()))
    return NewTables(
        Journal(
            job=job,
            operator=matcher.operator,
            shown=matcher.shown,
            created_ms=time.time_ns() // 1_000_000,
            deletes=deletes,
            tables=news,
        ),
        {key: path for key, (path, _) in files.items()},
        _without(replace(index, files=entries, tables=tuple(tables)), set(deletes)),
    )


def _written(writers: TableWriters, table: TableEntry) -> list[tuple[str | None, TableEntry]]:
    store = StoreRows(
        store=table.store, families=(table.family,), scalable=table.scalable, reason=table.reason
    )
    return [(entry.key, entry) for entry in writers.tables(store)]


def _without(index: SavepointIndex, gone: set[str]) -> SavepointIndex:
    """Return the index without some tables: there are no rows any more."""
    files = {key: entry for key, entry in index.files.items() if key not in gone}
    tables = tuple(
        replace(table, key=None, rows=0) if table.key in gone else table for table in index.tables
    )
    return replace(index, files=files, tables=tables)
