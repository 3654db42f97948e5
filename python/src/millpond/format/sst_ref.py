"""One stored SST, as manifests name it. Source: docs/reference/format.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.format.layout import check_local_sst_name, check_sst_key
from millpond.model.json_fields import JsonFields


@dataclass(frozen=True, slots=True, kw_only=True)
class SstRef:
    """One immutable SST, as a manifest names it."""

    key: str  # relative to the store's directory: sst/<32 hex>.sst
    local_name: str  # the name by which the RocksDB manifest knows it: 000012.sst
    size_bytes: int  # > 0
    crc32: int  # zlib's, of the whole file
    smallest_hex: str  # smallest physical key, inclusive
    largest_hex: str  # largest physical key, inclusive
    entries: int
    deletions: int  # of the entries
    level: int

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "local_name": self.local_name,
            "size_bytes": self.size_bytes,
            "crc32": self.crc32,
            "smallest_hex": self.smallest_hex,
            "largest_hex": self.largest_hex,
            "entries": self.entries,
            "deletions": self.deletions,
            "level": self.level,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> SstRef:
        ref = SstRef(
            key=check_sst_key(fields.string("key")),
            local_name=check_local_sst_name(fields.string("local_name")),
            size_bytes=fields.integer("size_bytes", 1),
            crc32=fields.integer("crc32", 0, 0xFFFF_FFFF),
            smallest_hex=fields.string("smallest_hex"),
            largest_hex=fields.string("largest_hex"),
            entries=fields.integer("entries"),
            deletions=fields.integer("deletions"),
            level=fields.integer("level", 0, 99),
        )
        for text in (ref.smallest_hex, ref.largest_hex):
            try:
                bytes.fromhex(text)
            except ValueError as e:
                raise fields.fail("a key bound of an SST is no hexadecimal text") from e
        return ref
