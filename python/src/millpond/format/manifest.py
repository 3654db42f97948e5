"""Manifest: names the SSTs of one snapshot of one store. Records and their codec; no I/O.

Source: docs/reference/format.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format.composed import (
    FEATURE,
    ChangelogSource,
    SlotRanges,
    SnapshotSource,
    rocksdb_from_json,
    rocksdb_to_json,
    slots_from_json,
    ssts_from_json,
)
from millpond.format.layout import store_key
from millpond.format.sealed import seal, unseal
from millpond.format.sst_ref import SstRef
from millpond.model.ids import StoreId, VersionId, valid_id
from millpond.model.json_fields import (
    ColumnFamily,
    KeyGroupsInfo,
    column_families_from_json,
    group_keys_from_json,
)

__all__ = ["Manifest", "ParentSnapshot", "SstRef", "decode_manifest", "encode_manifest"]

KIND = "manifest"


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
    id: str  # of the attempt that wrote this version: 16 hex digits
    parent_snapshot: ParentSnapshot | None  # None for the first
    created_ms: int  # since the epoch
    created_by: str
    key_groups: KeyGroupsInfo
    slots: SlotRanges  # owned slots: ascending half-open ranges
    column_families: tuple[ColumnFamily, ...]
    keys: int  # live keys; -1: not counted
    ssts: tuple[SstRef, ...]
    rocksdb_manifest_name: str  # MANIFEST-000005; "" if composed
    rocksdb_manifest: bytes  # content of that file in the RocksDB checkpoint; b"" if composed
    sources: tuple[SnapshotSource, ...] = ()  # if composed: it has no SSTs of its own
    changelogs: tuple[ChangelogSource, ...] = ()  # to apply to the sources, in this order
    group_keys: tuple[int, ...] | None = None  # as in a changelog's header
    # True: a rescale put it together from `sources` and `changelogs`. Both may be empty.
    composed: bool = False

    @property
    def version_id(self) -> VersionId:
        return VersionId(self.version, self.id)

    @property
    def total_bytes(self) -> int:
        """Size of all SSTs. If composed, size of all its sources and changelogs."""
        return sum(self.sizes(self.store).values())

    def sibling(self, partition: int) -> StoreId:
        """Return the store of the same name in another partition."""
        return StoreId(self.store.operator, partition, self.store.name)

    def sst_sizes(self, store: StoreId) -> dict[str, int]:
        """Return the size in bytes of each SST that it needs, by its key, which is relative to the
        Spark checkpoint.

        Args:
            store: the store in whose directory the manifest lies.
        """
        sizes = {store_key(store, sst.key): sst.size_bytes for sst in self.ssts}
        for source in self.sources:
            lies_in = self.sibling(source.partition)
            sizes |= {store_key(lies_in, sst.key): sst.size_bytes for sst in source.ssts}
        return sizes

    def sizes(self, store: StoreId) -> dict[str, int]:
        """Return the size in bytes of each SST and changelog that it needs, as `sst_sizes` does.

        Of a composed one, those of other partitions may name the same files.
        """
        changelogs = zip(self.changelog_keys(), self.changelogs, strict=True)
        return self.sst_sizes(store) | {key: named.size_bytes for key, named in changelogs}

    def sst_keys(self, store: StoreId) -> Iterator[str]:
        """Yield the keys of all SSTs that it needs, as `sst_sizes` does."""
        yield from self.sst_sizes(store)

    def changelog_keys(self) -> Iterator[str]:
        """Yield the keys of its changelogs, relative to the Spark checkpoint."""
        for changelog in self.changelogs:
            yield store_key(self.sibling(changelog.partition), changelog.name)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of the manifest's file."""
    groups = manifest.key_groups.to_json()
    parent = manifest.parent_snapshot
    body: dict[str, Any] = {
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
        "required_features": [FEATURE] if manifest.composed else [],
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
        "rocksdb": None
        if manifest.composed
        else rocksdb_to_json(manifest.rocksdb_manifest_name, manifest.rocksdb_manifest),
        "sources": [source.to_json() for source in manifest.sources],
    }
    if manifest.group_keys is not None:
        body["group_keys"] = list(manifest.group_keys)
    if manifest.composed:
        body["changelogs"] = [changelog.to_json() for changelog in manifest.changelogs]
    return seal(KIND, body)


def decode_manifest(data: bytes, *, name: str = "manifest") -> Manifest:
    """Return the manifest whose file holds `data`.

    Args:
        name: of the file, for messages.
    Raises:
        FormatError: MANIFEST_DAMAGED; UNSAFE_PATH: it names a file outside its store.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    fields = unseal(KIND, data, name=name, damaged=ErrorKind.MANIFEST_DAMAGED, features=(FEATURE,))
    store = fields.child("store")
    groups = fields.child("key_groups")
    composed = FEATURE in fields.strings("required_features")
    rocksdb_name, rocksdb = ("", b"") if composed else rocksdb_from_json(fields.child("rocksdb"))
    version_id = fields.string("id")
    if not valid_id(version_id):
        raise fields.fail("field id is no id")
    try:
        store_id = StoreId(
            store.integer("operator"), store.integer("partition"), store.string("name")
        )
    except InvalidInputError as e:
        raise fields.fail("field store names no store") from e
    parent: ParentSnapshot | None = None
    if not fields.is_null("parent_snapshot"):
        child = fields.child("parent_snapshot")
        parent = ParentSnapshot(child.integer("version", 1), child.string("id"))
        if not valid_id(parent.id):
            raise fields.fail("field parent_snapshot.id is no id")
    key_groups = KeyGroupsInfo.from_json(groups)
    ssts = ssts_from_json(fields)
    sources, changelogs = (
        fields.children("sources"),
        fields.children("changelogs") if composed else (),
    )
    if (sources and not composed) or (composed and ssts):
        raise fields.fail("has both SSTs of its own and sources")
    groups_count = key_groups.max_parallelism
    return Manifest(
        store=store_id,
        version=fields.integer("version", 1),
        id=version_id,
        parent_snapshot=parent,
        created_ms=fields.integer("created_ms"),
        created_by=fields.string("created_by"),
        key_groups=key_groups,
        slots=slots_from_json(groups, groups_count),
        column_families=column_families_from_json(fields),
        keys=fields.integer("keys", -1),
        group_keys=group_keys_from_json(fields),
        ssts=ssts,
        rocksdb_manifest_name=rocksdb_name,
        rocksdb_manifest=rocksdb,
        sources=tuple(SnapshotSource.from_json(entry, groups_count) for entry in sources),
        changelogs=tuple(ChangelogSource.from_json(entry, groups_count) for entry in changelogs),
        composed=composed,
    )
