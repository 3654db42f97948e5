"""`savepoint.json`: describes the query of a savepoint, and lists every file of the savepoint with
size and checksum.

Source: docs/reference/format.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, FormatError, InvalidInputError, NotFoundError
from millpond.format import layout, table_names
from millpond.format.format_file import ERASING, refuse_erasing
from millpond.format.sealed import seal, unseal
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily, JsonFields
from millpond.query.image import Image, OperatorImage, StoreImage, image_json
from millpond.query.parts import is_part, is_state
from millpond.spark.sinks.recorded import Sink
from millpond.storage import Storage

KIND = "savepoint"
NATIVE = "native"
CANONICAL = "canonical"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a savepoint."""

    key: str
    size_bytes: int
    crc32: int  # zlib's, of the whole file


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One column family of one store in a canonical savepoint."""

    store: StoreId
    family: ColumnFamily
    rows: int
    key: str | None  # of the table's file; None: there are no rows
    scalable: bool  # whether the key of each row determined where it lay
    reason: str  # why not; "" if scalable


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointIndex:
    """A savepoint. `image` has neither texts nor files: the storage has them."""

    format: str  # "native" or "canonical"
    created_by: str
    created_ms: int  # since the epoch
    image: Image
    files: Mapping[str, FileEntry]
    tables: tuple[TableEntry, ...] = ()  # only of a canonical savepoint

    @property
    def size_bytes(self) -> int:
        """Size of all files but the index."""
        return sum(entry.size_bytes for entry in self.files.values())

    def state_bytes(self, operator: int) -> int:
        """Return the size of an operator's changelogs and SSTs, or of its tables."""
        tables = {table.key for table in self.tables if table.store.operator == operator}
        return sum(
            entry.size_bytes
            for key, entry in self.files.items()
            if key in tables or _has_rows(key, operator)
        )


def _has_rows(key: str, operator: int) -> bool:
    parsed = layout.parse_key(key)
    return (
        parsed is not None
        and parsed.store.operator == operator
        and isinstance(parsed.file, layout.ChangelogFile | layout.SstFile)
    )


def encode_index(index: SavepointIndex, *, erasing: bool = False) -> bytes:
    """Return the content of `savepoint.json`; with `erasing`, only `state erase` accepts it."""
    tables = (
        {"tables": [_table_json(table) for table in index.tables]}
        if index.format == CANONICAL
        else {}
    )
    body = {
        "required_features": [ERASING] if erasing else [],
        "format": index.format,
        "created_by": index.created_by,
        "created_ms": index.created_ms,
        "image": image_json(index.image),
        **tables,
        "files": [
            {"key": entry.key, "size_bytes": entry.size_bytes, "crc32": entry.crc32}
            for _, entry in sorted(index.files.items())
        ],
    }
    return seal(KIND, body)


def decode_index(
    data: bytes, *, name: str = layout.SAVEPOINT_KEY, erasing: bool = False
) -> SavepointIndex:
    """Parse the content of `savepoint.json`.

    Args:
        erasing: accept that an erasure has not ended.
    Raises:
        FormatError: SAVEPOINT_DAMAGED; UNSAFE_PATH: it names a file that is no part of a savepoint.
        UnsupportedError: FORMAT_TOO_NEW. ConflictError: ERASE_UNFINISHED.
    """
    fields = unseal(KIND, data, name=name, damaged=ErrorKind.SAVEPOINT_DAMAGED, features=[ERASING])
    refuse_erasing(fields, name, erasing)
    entries: dict[str, FileEntry] = {}
    for entry in fields.children("files"):
        key = layout.check_relative(entry.string("key"))
        if key in entries or key == layout.SAVEPOINT_KEY:
            raise fields.fail(f"names {key} twice, or itself")
        entries[key] = FileEntry(
            key=key,
            size_bytes=entry.integer("size_bytes"),
            crc32=entry.integer("crc32", 0, 0xFFFF_FFFF),
        )
    index = SavepointIndex(
        format=fields.string("format"),
        created_by=fields.string("created_by"),
        created_ms=fields.integer("created_ms"),
        image=_image(fields.child("image")),
        files=entries,
        tables=tuple(_table(table, entries) for table in fields.children("tables"))
        if fields.has("tables")
        else (),
    )
    _check_parts(index)
    return index


def _check_parts(index: SavepointIndex) -> None:
    """Check that every file of the index can be part of a savepoint.

    Raises: FormatError: UNSAFE_PATH.
    """
    if index.format not in (NATIVE, CANONICAL):
        return  # a newer version wrote it: whoever wants its files refuses it
    tables = {table.key for table in index.tables}
    for key in index.files:
        if index.format == CANONICAL and key in tables:
            continue
        if not is_part(key, index.image.batch) or (index.format == CANONICAL and is_state(key)):
            raise unsafe(f"the index names {key!r}, which is no part of a savepoint")


def _table_json(table: TableEntry) -> dict[str, Any]:
    return {
        "operator": table.store.operator,
        "store": table.store.name,
        "partition": table.store.partition,
        "column_family": table.family.to_json(),
        "rows": table.rows,
        "key": table.key,
        "scalable": table.scalable,
        "reason": table.reason,
    }


def _table(fields: JsonFields, entries: Mapping[str, FileEntry]) -> TableEntry:
    try:
        store = StoreId(
            fields.integer("operator"), fields.integer("partition"), fields.string("store")
        )
    except InvalidInputError as e:
        raise fields.fail(e.message) from e
    key = None if fields.is_null("key") else fields.string("key")
    if key is not None and key not in entries:
        raise fields.fail(f"a table in {key}, which the index does not list as a file")
    family = ColumnFamily.from_json(fields.child("column_family"))
    if key is not None and not table_names.is_table_key(key, store, family.name):
        raise unsafe(f"the index has a table of store {store} in {key!r}")
    return TableEntry(
        store=store,
        family=family,
        rows=fields.integer("rows"),
        key=key,
        scalable=fields.boolean("scalable"),
        reason=fields.string("reason"),
    )


def _image(fields: JsonFields) -> Image:
    operators = tuple(
        OperatorImage(
            operator=op.integer("operator"),
            name=op.string("name"),
            stores=tuple(_store(op.integer("operator"), store) for store in op.children("stores")),
        )
        for op in fields.children("operators")
    )
    spark_format = fields.integer("spark_checkpoint_format", 1, 2)
    return Image(
        batch=fields.integer("batch"),
        planned_batch=_integer(fields, "planned_batch"),
        query_id=None if fields.is_null("query_id") else fields.string("query_id"),
        provider=None if fields.is_null("provider") else fields.string("provider"),
        spark_checkpoint_format=spark_format,
        partitions=_integer(fields, "partitions"),
        max_parallelism=_integer(fields, "max_parallelism"),
        key_group_base=_integer(fields, "key_group_base"),
        watermark_ms=fields.integer("watermark_ms", None),
        timestamp_ms=fields.integer("timestamp_ms", None),
        operators=operators,
        texts={},
        files=(),
        sink=_sink(fields.child("sink")) if fields.has("sink") else None,
    )


def _sink(fields: JsonFields) -> Sink:
    if not fields.has("path"):
        return Sink(fields.string("sink"))
    return Sink(fields.string("sink"), fields.string("path"), _integer(fields, "compact_interval"))


def _store(operator: int, fields: JsonFields) -> StoreImage:
    try:
        store = StoreId(operator, fields.integer("partition"), fields.string("name"))
        version = VersionId(fields.integer("version", 1), fields.string("id"))
    except InvalidInputError as e:
        raise fields.fail(e.message) from e
    return StoreImage(
        partition=store.partition,
        name=store.name,
        version=version.version,
        id=version.id,
        keys=fields.integer("keys", -1),
        size_bytes=fields.integer("size_bytes"),
    )


def _integer(fields: JsonFields, name: str) -> int | None:
    return None if fields.is_null(name) else fields.integer(name)


def read_index(storage: Storage, savepoint: str, *, erasing: bool = False) -> SavepointIndex:
    """Read the index of the savepoint in `storage`.

    Args:
        savepoint: its name, for messages.
        erasing: as for `decode_index`.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT. FormatError: SAVEPOINT_DAMAGED, UNSAFE_PATH.
            UnsupportedError: FORMAT_TOO_NEW. ConflictError: ERASE_UNFINISHED.
    """
    try:
        data = storage.read(layout.SAVEPOINT_KEY)
    except NotFoundError as e:
        raise no_savepoint(savepoint) from e
    return decode_index(data, name=layout.SAVEPOINT_KEY, erasing=erasing)


def no_savepoint(savepoint: str) -> InvalidInputError:
    """Return the error for a place that has no index."""
    return InvalidInputError(
        f"no savepoint: {savepoint} (it has no {layout.SAVEPOINT_KEY})",
        kind=ErrorKind.NOT_A_SAVEPOINT,
    )


def check_listed(storage: Storage, index: SavepointIndex) -> list[tuple[str, FormatError]]:
    """Compare the index with a listing.

    Returns: keys of files that are missing, have another size, or are symbolic links, each with its
    error.
    """
    sizes = {info.key: info.size_bytes for info in storage.list("")}
    wrong: list[tuple[str, FormatError]] = []
    for key, entry in sorted(index.files.items()):
        size_bytes = sizes.get(key)
        path = storage.local_path(key)
        if path is not None and os.path.islink(path):
            wrong.append((key, unsafe(f"{key} is a symbolic link")))
        elif size_bytes is None:
            wrong.append((key, damaged(f"{key} is not there")))
        elif size_bytes != entry.size_bytes:
            wrong.append(
                (key, damaged(f"{key} has {size_bytes} bytes, expected {entry.size_bytes}"))
            )
    return wrong


def refuse_links(storage: Storage) -> None:
    """Raise FormatError (UNSAFE_PATH) if a folder or a file of the savepoint is a link."""
    for info in storage.list(""):
        path = storage.local_path(info.key)
        if path is not None and os.path.islink(path):
            raise unsafe(f"{info.key} is a symbolic link")


def unsafe(message: str) -> FormatError:
    """Return the error for a savepoint with a path that leads elsewhere."""
    return FormatError(
        message,
        kind=ErrorKind.UNSAFE_PATH,
        hint="Do not use this savepoint: somebody tampered with it, or it is damaged.",
    )


def damaged(message: str) -> FormatError:
    """Return the error for a savepoint whose files are not what its index says."""
    return FormatError(message, kind=ErrorKind.SAVEPOINT_DAMAGED)
