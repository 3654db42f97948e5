"""Decides what the stores of an operator consist of after a rescale (pure).

With key groups a new partition is made of slots of old ones. So no row moves. The manifest of the
new partition names the SSTs and changelogs of the old partitions, and says which of their slots are
its own. Source: docs/design/0004-rescale.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from millpond._version import __version__
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError, error
from millpond.format.composed import ChangelogSource, SlotRanges, SnapshotSource, intersect
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo, is_unproven
from millpond.model.key_groups import MAX_PARALLELISM_LIMIT, KeyGroups, merge_ranges
from millpond.store.restore.plan import RestorePlan

_FIRST_BATCH = (
    "Start the query on this Spark checkpoint, stop it when its first batch is done, and say this"
    " again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OldStore:
    """One store before the rescale, at the last committed version.

    changelog_files: name and size in bytes of the changelog of each version above the plan's base.
    """

    store: StoreId
    plan: RestorePlan
    changelog_files: Mapping[int, tuple[str, int]]

    @property
    def key_groups(self) -> KeyGroupsInfo | None:
        """What the newest file says about its key groups; None: the store was always empty."""
        if self.plan.headers:
            return self.plan.headers[-1].key_groups
        return self.plan.manifest.key_groups if self.plan.manifest is not None else None

    @property
    def column_families(self) -> tuple[ColumnFamily, ...]:
        """The column families of the newest file."""
        if self.plan.headers:
            return self.plan.headers[-1].column_families
        return self.plan.manifest.column_families if self.plan.manifest is not None else ()

    @property
    def keys(self) -> tuple[int, ...] | None:
        """Live keys of each of its key groups, ascending; None: no file tells."""
        newest = self.plan.newest
        if newest is None or newest.group_keys is None:
            return None
        owned = newest.key_groups.max_parallelism // newest.key_groups.partitions
        agree = len(newest.group_keys) == owned and sum(newest.group_keys) == newest.keys
        return newest.group_keys if agree else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """The version that the rescale makes: `version`, of the batch before it, on `partitions`."""

    partitions: int
    version: int
    created_ms: int


def check_partitions(partitions: int, current: int) -> None:
    """Raise InvalidInputError (PARTITIONS_INVALID) unless the state can be rescaled from
    `current` to `partitions`.
    """
    if not 1 <= partitions <= MAX_PARALLELISM_LIMIT:
        raise InvalidInputError(
            f"{partitions} partitions: state can have 1 to {MAX_PARALLELISM_LIMIT}",
            kind=ErrorKind.PARTITIONS_INVALID,
        )
    if partitions == current:
        raise InvalidInputError(
            f"the state has {current} partitions already",
            kind=ErrorKind.PARTITIONS_INVALID,
            hint="Nothing is to be done.",
        )


def check_scalable(stores: Sequence[OldStore], current: int) -> None:
    """Raise unless every store can be cut by key groups.

    Raises: UnsupportedError: STORE_UNSCALABLE: a store holds rows whose key group its partition
        does not own. FormatError: KEY_GROUP_MISMATCH: a store was written for another number of
        partitions than `current`.
    """
    for old in stores:
        info = old.key_groups
        if info is None:
            continue
        if not info.scalable:
            raise UnsupportedError(
                f"store {old.store} cannot be rescaled: {info.reason}",
                kind=ErrorKind.STORE_UNSCALABLE,
                hint=_FIRST_BATCH if is_unproven(info.reason) else "",
            )
        if info.partitions != current:
            raise error(
                ErrorKind.KEY_GROUP_MISMATCH,
                f"store {old.store} was written for {info.partitions} partitions, the offset log"
                f" says {current}",
            )


def compose(
    stores: Sequence[OldStore], groups: KeyGroups, current: int, new: NewVersion, ids: Sequence[str]
) -> tuple[Manifest, ...]:
    """Return the manifests of the new partitions of one store name of one operator.

    Args:
        stores: of all old partitions, ascending from 0; only that of partition 0 if the operator's
            state lies there alone.
        groups: the key groups, divided evenly by `current` and by `new.partitions`.
        ids: fresh ids of version `new.version`, one per new partition; only one if the operator's
            state lies in partition 0 alone.

    The partitions number their column families alike.
    """
    families = merge_families(stores)
    assert families is not None
    manifests = []
    for partition, version_id in enumerate(ids):
        slots = tuple(groups.slot_ranges(partition, new.partitions))
        sources: list[SnapshotSource] = []
        changelogs: list[ChangelogSource] = []
        for old in stores:
            own = tuple(groups.slot_ranges(old.store.partition, current))
            if intersect(own, slots):
                _add(old, own, slots, sources, changelogs)
        first = stores[0].store
        keys = _keys(stores, groups, current, partition, new.partitions)
        manifests.append(
            Manifest(
                store=StoreId(first.operator, partition, first.name),
                version=new.version,
                id=version_id,
                parent_snapshot=None,
                created_ms=new.created_ms,
                created_by=f"millpond {__version__}",
                key_groups=KeyGroupsInfo(
                    max_parallelism=groups.max_parallelism,
                    base=groups.base,
                    partitions=new.partitions,
                ),
                slots=slots,
                column_families=families,
                keys=-1 if keys is None else sum(keys),
                group_keys=keys,
                ssts=(),
                rocksdb_manifest_name="",
                rocksdb_manifest=b"",
                sources=_unite(
                    sources,
                    lambda s: (s.partition, s.rocksdb_manifest_name, tuple(t.key for t in s.ssts)),
                ),
                # All changelogs of a key have ascending versions, whatever partition they are of.
                changelogs=tuple(
                    sorted(
                        _unite(changelogs, lambda c: (c.partition, c.name, c.version)),
                        key=lambda c: (c.version.version, c.partition),
                    )
                ),
                composed=True,
            )
        )
    return tuple(manifests)


def _keys(
    stores: Sequence[OldStore], groups: KeyGroups, current: int, partition: int, partitions: int
) -> tuple[int, ...] | None:
    """Return the live keys of each key group of a new partition, ascending.

    None: an old partition does not tell its own.
    """
    found: list[int] = []
    for group in groups.groups_of(partition, partitions):
        old = group % current
        if old >= len(stores):
            found.append(0)  # the operator's state lies in partition 0 alone
            continue
        keys = stores[old].keys
        if keys is None:
            return None
        found.append(keys[group // current])
    return tuple(found)


def _add(
    old: OldStore,
    own: SlotRanges,
    wanted: SlotRanges,
    sources: list[SnapshotSource],
    changelogs: list[ChangelogSource],
) -> None:
    """Add what a new partition takes of an old one.

    That is its snapshot, or what that was composed of, and then its changelogs.
    """
    manifest, partition = old.plan.manifest, old.store.partition
    if manifest is not None and manifest.composed:
        # There was a rescale, and no snapshot since: cut the same sources further.
        for source in manifest.sources:
            if cut := intersect(source.slots, wanted):
                sources.append(replace(source, slots=cut))
        for changelog in manifest.changelogs:
            if cut := intersect(changelog.slots, wanted):
                changelogs.append(replace(changelog, slots=cut))
    elif manifest is not None and manifest.ssts:
        sources.append(
            SnapshotSource(
                partition=partition,
                slots=intersect(own, wanted),
                ssts=manifest.ssts,
                rocksdb_manifest_name=manifest.rocksdb_manifest_name,
                rocksdb_manifest=manifest.rocksdb_manifest,
            )
        )
    for header in old.plan.headers:
        name, size_bytes = old.changelog_files[header.version]
        changelogs.append(
            ChangelogSource(
                partition=partition,
                name=name,
                version=VersionId(header.version, header.id),
                size_bytes=size_bytes,
                slots=intersect(own, wanted),
            )
        )


Source = TypeVar("Source", SnapshotSource, ChangelogSource)


def _unite(parts: Sequence[Source], identity: Callable[[Source], object]) -> tuple[Source, ...]:
    """Name each file once, with all slots that are taken of it. Its parts share no slot."""
    files: dict[object, list[Source]] = {}
    for part in parts:
        files.setdefault(identity(part), []).append(part)
    return tuple(
        replace(same[0], slots=merge_ranges([pair for part in same for pair in part.slots]))
        for same in files.values()
    )


def merge_families(stores: Sequence[OldStore]) -> tuple[ColumnFamily, ...] | None:
    """Return the column families of all partitions as one list, ascending by id.

    None: one id, or one name, means two column families. Each partition numbers its own, and gives
    the number of a dropped one again once a snapshot holds its deletes: that is at another batch in
    each. So where a job drops one and makes another, or the same again, they may differ for good.
    """
    by_id: dict[int, ColumnFamily] = {}
    names: dict[str, int] = {}
    for old in stores:
        for family in old.column_families:
            known = by_id.setdefault(family.id, family)
            if (
                replace(known, removed=False) != replace(family, removed=False)
                or names.setdefault(family.name, family.id) != family.id
            ):
                return None
            if known.removed and not family.removed:
                by_id[family.id] = family
    return tuple(family for _, family in sorted(by_id.items()))
