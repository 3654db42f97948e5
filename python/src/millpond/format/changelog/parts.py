"""What a changelog consists of: header, records, footer, and how their fixed parts are packed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from millpond.errors import InvalidInputError
from millpond.model.ids import StoreId, VersionId, valid_id
from millpond.model.json_fields import (
    ColumnFamily,
    JsonFields,
    KeyGroupsInfo,
    column_families_from_json,
    group_keys_from_json,
)

FORMAT = 1
# A flag of the header: keys may repeat, and merges occur. Files of early versions have such records
# without the flag.
REPEATS = 1
MAGIC = b"MPCL"
END_MAGIC = b"MPCE"
DEFAULT_BLOCK_BYTES = 256 * 1024

HEAD = struct.Struct("<4sHHI")
BLOCK = struct.Struct("<IIIB3s")
FOOTER_REST = struct.Struct("<4sQQQ")
CRC = struct.Struct("<I")
READ_BYTES = 4 * 1024 * 1024


class Op(IntEnum):
    """What a record does."""

    PUT = 1  # key := value
    DELETE = 2  # key removed; no value
    MERGE = 3  # value appended to the values of key
    DELETE_RANGE = 4  # [key, value) removed; the format has it, nothing writes it


class Record(NamedTuple):
    """One change. `value` is None for DELETE, and the exclusive end key for DELETE_RANGE."""

    op: Op
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogHeader:
    """What a changelog says about itself."""

    version: int  # the version that it makes, >= 1
    id: str  # of the attempt that wrote it
    lineage_base: int  # the newest snapshot of the lineage that the writer knew; 0: none
    lineage: tuple[str, ...]  # ids of the versions lineage_base..version-1; "" for version 0
    empty_base: bool = False  # the state before it is empty, whatever its version
    run_id: str  # of the query's run
    store: StoreId
    key_groups: KeyGroupsInfo
    column_families: tuple[ColumnFamily, ...]
    keys: int  # live keys after this version; -1: not counted
    # Live keys of the partition's key groups, groups ascending. None: the writer does not tell.
    group_keys: tuple[int, ...] | None = None
    created_by: str

    @property
    def version_id(self) -> VersionId:
        return VersionId(self.version, self.id)

    @property
    def parent(self) -> VersionId:
        """The version on which this one builds. Its id is "" if it is version 0, or empty."""
        return VersionId(self.version - 1, self.lineage[-1] if self.version > 1 else "")

    def to_json(self) -> dict[str, Any]:
        value = {
            "version": self.version,
            "id": self.id,
            "lineage_base": self.lineage_base,
            "lineage": list(self.lineage),
            "empty_base": self.empty_base,
            "run_id": self.run_id,
            "store": {
                "operator": self.store.operator,
                "partition": self.store.partition,
                "name": self.store.name,
            },
            "key_groups": self.key_groups.to_json(),
            "column_families": [family.to_json() for family in self.column_families],
            "keys": self.keys,
            "created_by": self.created_by,
        }
        if self.group_keys is not None:
            value["group_keys"] = list(self.group_keys)
        return value

    @staticmethod
    def from_json(fields: JsonFields) -> ChangelogHeader:
        store = fields.child("store")
        try:
            store_id = StoreId(
                store.integer("operator"), store.integer("partition"), store.string("name")
            )
        except InvalidInputError as e:
            raise fields.fail("field store names no store") from e
        header = ChangelogHeader(
            version=fields.integer("version", 1),
            id=fields.string("id"),
            lineage_base=fields.integer("lineage_base"),
            lineage=fields.strings("lineage"),
            empty_base=fields.boolean("empty_base"),
            run_id=fields.string("run_id"),
            store=store_id,
            key_groups=KeyGroupsInfo.from_json(fields.child("key_groups")),
            column_families=column_families_from_json(fields),
            keys=fields.integer("keys", -1),
            group_keys=group_keys_from_json(fields),
            created_by=fields.string("created_by"),
        )
        if not valid_id(header.id) or not all(
            text == "" or valid_id(text) for text in header.lineage
        ):
            raise fields.fail("an id in the header is no id")
        if not header.lineage or len(header.lineage) != header.version - header.lineage_base:
            raise fields.fail("field lineage does not lead from lineage_base to version - 1")
        return header


@dataclass(frozen=True, slots=True)
class ChangelogFooter:
    """Totals at the end of a changelog."""

    records: int
    puts: int  # records with Op.PUT
    raw_bytes: int  # of all blocks, uncompressed
