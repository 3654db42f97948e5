"""Spark's state schema files: names of key columns, as far as Millpond asks. Source: SPARK_CONTRACT section 7.3 (Spark 4.3.0).

Version 1 and 2 lie in partition 0 of their store and describe one column family; version 3 (operators with column families)
is not read here.
"""

from __future__ import annotations

import json
import struct

from millpond import layout
from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.ids import StoreId
from millpond.storage import Storage


def read_key_columns(storage: Storage, operator: int, store: str) -> tuple[str, ...] | None:
    """Return the names of the columns of the state key of a store without column families, None if Spark wrote no such schema.

    Raises: FormatError: FORMAT_DAMAGED.
    """
    key = layout.state_schema_key(StoreId(operator, 0, store))
    try:
        data = storage.read(key)
    except NotFoundError:
        return None
    try:
        reader = _Reader(data)
        version = reader.text()
        if version not in ("v1", "v2"):
            return None
        schema = json.loads(reader.text() if version == "v1" else reader.chunked())
        return tuple(str(field["name"]) for field in schema["fields"])
    except (struct.error, UnicodeDecodeError, ValueError, KeyError, TypeError) as e:
        raise FormatError(f"{key}: no state schema that Spark writes", kind=ErrorKind.FORMAT_DAMAGED) from e


class _Reader:
    """Reads what Java's `DataOutputStream` wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def text(self) -> str:
        """`writeUTF`: length as u16, then modified UTF-8, which differs only for NUL and beyond the basic plane."""
        (length,) = struct.unpack_from(">H", self._data, self._at)
        start = self._at + 2
        self._at = start + length
        if self._at > len(self._data):
            raise ValueError("the file ends within a text")
        return self._data[start : self._at].decode("utf-8", "surrogatepass")

    def chunked(self) -> str:
        """A text in chunks, each written by `writeUTF`."""
        (count,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return "".join(self.text() for _ in range(count))
