"""Manifest: names the SSTs of one snapshot of one store. Immutable records and their codec; no I/O.

Source: docs/reference/format.md.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.ids import StoreId, VersionId, valid_id
from millpond.json_fields import ColumnFamily, JsonFields, KeyGroupsInfo
from millpond.layout import check_local_sst_name, check_rocksdb_manifest_name, check_sst_key
from millpond.sealed import seal, unseal

KIND = "manifest"
_MAX_ROCKSDB_MANIFEST_BYTES = 1 << 30


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


@dataclass(frozen=True, slots=True)
class ParentSnapshot:
    """The snapshot from which the next one took over SSTs."""

    version: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One snapshot of one store."""

    store: StoreId
    version: int  # >= 1
    id: str  # 16 hex digits: of the attempt that wrote this version
    parent_snapshot: ParentSnapshot | None  # None for the first
    created_ms: int  # since the epoch
    created_by: str
    key_groups: KeyGroupsInfo
    slots: tuple[tuple[int, int], ...]  # owned slots: ascending half-open ranges
    column_families: tuple[ColumnFamily, ...]
    keys: int  # live keys; -1: not counted
    ssts: tuple[SstRef, ...]
    rocksdb_manifest_name: str  # MANIFEST-000005
    rocksdb_manifest: bytes  # content of that file, as it is in the RocksDB checkpoint

    @property
    def version_id(self) -> VersionId:
        return VersionId(self.version, self.id)

    @property
    def total_bytes(self) -> int:
        """Size of all SSTs."""
        return sum(sst.size_bytes for sst in self.ssts)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of the manifest's file."""
    groups = manifest.key_groups.to_json()
    parent = manifest.parent_snapshot
    body = {
        "store": {
            "operator": manifest.store.operator,
            "partition": manifest.store.partition,
            "name": manifest.store.name,
        },
        "version": manifest.version,
        "id": manifest.id,
        "parent_snapshot": None if parent is None else {"version": parent.version, "id": parent.id},
        "created_ms": manifest.created_ms,
        "created_by": manifest.created_by,
        "required_features": [],
        "key_groups": {
            "max_parallelism": groups["max_parallelism"],
            "base": groups["base"],
            "partitions": groups["partitions"],
            "slots": [list(pair) for pair in manifest.slots],
            "scalable": groups["scalable"],
            "reason": groups["reason"],
        },
        "column_families": [family.to_json() for family in manifest.column_families],
        "keys": manifest.keys,
        "ssts": [sst.to_json() for sst in manifest.ssts],
        "rocksdb": {
            "manifest_name": manifest.rocksdb_manifest_name,
            "manifest_zlib_b64": base64.b64encode(zlib.compress(manifest.rocksdb_manifest, 6)).decode("ascii"),
        },
        "sources": [],
    }
    return seal(KIND, body)


def decode_manifest(data: bytes, *, name: str = "manifest") -> Manifest:
    """Return the manifest whose file holds `data`.

    Args:
        name: of the file, for messages.
    Raises:
        FormatError: MANIFEST_DAMAGED; UNSAFE_PATH: it names a file outside its store.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    fields = unseal(KIND, data, name=name, damaged=ErrorKind.MANIFEST_DAMAGED)
    store = fields.child("store")
    groups = fields.child("key_groups")
    rocksdb = fields.child("rocksdb")
    if fields.array("sources"):
        raise UnsupportedError(
            f"{name}: a composed manifest, which this version cannot read", kind=ErrorKind.FORMAT_TOO_NEW
        )
    version_id = fields.string("id")
    if not valid_id(version_id):
        raise fields.fail("field id is no id")
    try:
        store_id = StoreId(store.integer("operator"), store.integer("partition"), store.string("name"))
    except InvalidInputError as e:
        raise fields.fail("field store names no store") from e
    parent: ParentSnapshot | None = None
    if not fields.is_null("parent_snapshot"):
        child = fields.child("parent_snapshot")
        parent = ParentSnapshot(child.integer("version", 1), child.string("id"))
        if not valid_id(parent.id):
            raise fields.fail("field parent_snapshot.id is no id")
    key_groups = KeyGroupsInfo.from_json(groups)
    ssts = tuple(SstRef.from_json(entry) for entry in fields.children("ssts"))
    if len({sst.local_name for sst in ssts}) != len(ssts) or len({sst.key for sst in ssts}) != len(ssts):
        raise fields.fail("names an SST twice")
    return Manifest(
        store=store_id,
        version=fields.integer("version", 1),
        id=version_id,
        parent_snapshot=parent,
        created_ms=fields.integer("created_ms"),
        created_by=fields.string("created_by"),
        key_groups=key_groups,
        slots=_slots(groups, key_groups.max_parallelism),
        column_families=tuple(ColumnFamily.from_json(entry) for entry in fields.children("column_families")),
        keys=fields.integer("keys", -1),
        ssts=ssts,
        rocksdb_manifest_name=check_rocksdb_manifest_name(rocksdb.string("manifest_name")),
        rocksdb_manifest=_inflate(rocksdb.string("manifest_zlib_b64"), name),
    )


def _slots(groups: JsonFields, max_parallelism: int) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for pair in groups.array("slots"):
        whole = isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)
        if not whole or not (ranges[-1][1] if ranges else 0) <= pair[0] < pair[1] <= max_parallelism:
            raise groups.fail("field key_groups.slots is no ascending list of ranges")
        ranges.append((pair[0], pair[1]))
    return tuple(ranges)


def _inflate(text: str, name: str) -> bytes:
    try:
        inflater = zlib.decompressobj()
        content = inflater.decompress(base64.b64decode(text, validate=True), _MAX_ROCKSDB_MANIFEST_BYTES)
    except (binascii.Error, zlib.error, ValueError) as e:
        raise FormatError(f"{name}: the RocksDB manifest in it is damaged", kind=ErrorKind.MANIFEST_DAMAGED) from e
    if not inflater.eof or inflater.unused_data:
        raise FormatError(f"{name}: the RocksDB manifest in it is not whole", kind=ErrorKind.MANIFEST_DAMAGED)
    return content
