"""Decide which SSTs of a local RocksDB checkpoint are already stored (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from millpond.format.manifest import SstRef
from millpond.store.local_ssts import FileIdentity, LocalSst


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSst:
    """One SST of a local RocksDB checkpoint, as RocksDB describes it.

    Key bounds are inclusive, hexadecimal.
    """

    name: str
    size_bytes: int
    smallest_hex: str
    largest_hex: str
    entries: int
    deletions: int
    level: int


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Which files to upload, and which stored SSTs to name again.

    Both are in the order of the RocksDB checkpoint's files.
    """

    new: tuple[CheckpointSst, ...]
    reused: tuple[SstRef, ...]

    @property
    def new_bytes(self) -> int:
        return sum(sst.size_bytes for sst in self.new)

    @property
    def reused_bytes(self) -> int:
        return sum(sst.size_bytes for sst in self.reused)


def plan_snapshot(
    files: Sequence[CheckpointSst],
    identities: Mapping[str, FileIdentity],
    known: Mapping[FileIdentity, LocalSst],
    protected: Mapping[str, Collection[str]],
    stored: Mapping[str, int],
) -> SnapshotPlan:
    """Return which of `files` are new.

    An SST is named again only if a manifest that exists now names it. An SST that no manifest names
    may be collected at any moment.

    Args:
        identities: name in the RocksDB checkpoint -> identity.
        known: files that were uploaded or fetched before.
        protected: manifest name -> keys of the SSTs it names, for the manifests that exist now.
        stored: key -> size of the SSTs that exist now.
    """
    new: list[CheckpointSst] = []
    reused: list[SstRef] = []
    for file in files:
        entry = known.get(identities[file.name])
        if (
            entry is not None
            and entry.ref.size_bytes == file.size_bytes
            and entry.ref.key in protected.get(entry.manifest, ())
            and stored.get(entry.ref.key) == file.size_bytes
        ):
            reused.append(describe(file, entry.ref.key, entry.ref.crc32))
        else:
            new.append(file)
    return SnapshotPlan(tuple(new), tuple(reused))


def describe(file: CheckpointSst, key: str, crc32: int) -> SstRef:
    """Return how a manifest names `file`, stored under `key`."""
    return SstRef(
        key=key,
        local_name=file.name,
        size_bytes=file.size_bytes,
        crc32=crc32,
        smallest_hex=file.smallest_hex,
        largest_hex=file.largest_hex,
        entries=file.entries,
        deletions=file.deletions,
        level=file.level,
    )
