"""Sources of a composed manifest: the parts of other partitions that make up a rescaled store.

Records and their codec; no I/O. A rescale moves no row. It gives each new partition a manifest that
names SSTs and changelogs of the old partitions, and the slots of them that are now its own. The
shim puts them together when it first opens the store. The next snapshot is an ordinary one again.
Source: docs/reference/format.md.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millpond.format.layout import ChangelogFile, check_rocksdb_manifest_name, parse_store_file
from millpond.format.sst_ref import SstRef
from millpond.model.ids import VersionId, valid_id
from millpond.model.json_fields import JsonFields

FEATURE = "composed"  # in `required_features` of a manifest that has sources
SlotRanges = tuple[tuple[int, int], ...]  # ascending, disjoint, half-open

_MAX_ROCKSDB_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A part of a RocksDB database of another partition (or of the same, before the rescale)."""

    partition: int  # the SSTs lie in its directory; operator and store name are the manifest's
    slots: SlotRanges  # the rows to take
    ssts: tuple[SstRef, ...]
    rocksdb_manifest_name: str
    rocksdb_manifest: bytes

    @property
    def total_bytes(self) -> int:
        """Size of the SSTs."""
        return sum(sst.size_bytes for sst in self.ssts)

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "slots": [list(pair) for pair in self.slots],
            "ssts": [sst.to_json() for sst in self.ssts],
            "rocksdb": rocksdb_to_json(self.rocksdb_manifest_name, self.rocksdb_manifest),
        }

    @staticmethod
    def from_json(fields: JsonFields, max_parallelism: int) -> SnapshotSource:
        name, content = rocksdb_from_json(fields.child("rocksdb"))
        return SnapshotSource(
            partition=fields.integer("partition", 0, 65_535),
            slots=slots_from_json(fields, max_parallelism),
            ssts=ssts_from_json(fields),
            rocksdb_manifest_name=name,
            rocksdb_manifest=content,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogSource:
    """A changelog of another partition, and the slots of it to apply."""

    partition: int
    name: str  # `<version>[_<id>].changelog`, in that partition's directory
    version: VersionId  # with its id, even if the name has none
    size_bytes: int
    slots: SlotRanges

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "name": self.name,
            "version": self.version.version,
            "id": self.version.id,
            "size_bytes": self.size_bytes,
            "slots": [list(pair) for pair in self.slots],
        }

    @staticmethod
    def from_json(fields: JsonFields, max_parallelism: int) -> ChangelogSource:
        name, version, version_id = (
            fields.string("name"),
            fields.integer("version", 1),
            fields.string("id"),
        )
        file = parse_store_file(name)
        named = (
            isinstance(file, ChangelogFile)
            and file.version.version == version
            and file.version.id in ("", version_id)
        )
        if not named or not valid_id(version_id):
            raise fields.fail("a source names a changelog that it cannot be")
        return ChangelogSource(
            partition=fields.integer("partition", 0, 65_535),
            name=name,
            version=VersionId(version, version_id),
            size_bytes=fields.integer("size_bytes"),
            slots=slots_from_json(fields, max_parallelism),
        )


def slots_from_json(fields: JsonFields, max_parallelism: int) -> SlotRanges:
    """Return the field `slots`.

    Raises the fields' error if it is no ascending list of half-open ranges.
    """
    ranges: list[tuple[int, int]] = []
    for pair in fields.array("slots"):
        whole = (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(number) is int for number in pair)
        )
        if (
            not whole
            or not (ranges[-1][1] if ranges else 0) <= pair[0] < pair[1] <= max_parallelism
        ):
            raise fields.fail("field slots is no ascending list of ranges")
        ranges.append((pair[0], pair[1]))
    return tuple(ranges)


def ssts_from_json(fields: JsonFields) -> tuple[SstRef, ...]:
    """Return the field `ssts`. Raises the fields' error if it names an SST twice."""
    ssts = tuple(SstRef.from_json(entry) for entry in fields.children("ssts"))
    if len({sst.local_name for sst in ssts}) != len(ssts) or len({sst.key for sst in ssts}) != len(
        ssts
    ):
        raise fields.fail("names an SST twice")
    return ssts


def rocksdb_to_json(name: str, content: bytes) -> dict[str, Any]:
    """Return the field `rocksdb`: name and content of RocksDB's own manifest file."""
    return {
        "manifest_name": name,
        "manifest_zlib_b64": base64.b64encode(zlib.compress(content, 6)).decode("ascii"),
    }


def rocksdb_from_json(fields: JsonFields) -> tuple[str, bytes]:
    """Return name and content of RocksDB's manifest file."""
    name = check_rocksdb_manifest_name(fields.string("manifest_name"))
    try:
        inflater = zlib.decompressobj()
        data = base64.b64decode(fields.string("manifest_zlib_b64"), validate=True)
        content = inflater.decompress(data, _MAX_ROCKSDB_MANIFEST_BYTES)
    except (binascii.Error, zlib.error, ValueError) as e:
        raise fields.fail("the RocksDB manifest in it is damaged") from e
    if not inflater.eof or inflater.unused_data:
        raise fields.fail("the RocksDB manifest in it is not whole")
    return name, content


def intersect(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> SlotRanges:
    """Return the slots that lie in both lists of ascending ranges."""
    result: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            result.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def contains(slots: SlotRanges, slot: int) -> bool:
    """Return whether `slot` lies in one of the ranges."""
    return any(start <= slot < end for start, end in slots)
