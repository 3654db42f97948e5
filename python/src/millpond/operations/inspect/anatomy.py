"""Shows the files of one store: attempts, snapshots with the SSTs that they share, key groups."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from millpond.format.manifest import Manifest, decode_manifest
from millpond.model.ids import StoreId
from millpond.query.survey import Survey, survey
from millpond.storage import Storage
from millpond.store.files import Listing, read_changelog_header

Fate = Literal["committed", "lost", "not committed", "not known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One changelog. `id` is "" in Spark checkpoint format 1, where a later attempt replaces it."""

    version: int
    id: str
    bytes: int
    written_ms: int
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSst:
    """One SST, and the versions of the snapshots that name it, ascending. None: nothing needs it,
    or nothing yet.
    """

    name: str
    bytes: int
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The files of a store. Versions ascend.

    manifests: (version, id, keys, created_ms, bytes of SSTs that it brought, bytes of those that
        the snapshot before it names, or, if a rescale made it, those before it of other stores).
    """

    operator: int
    partition: int
    store: str
    attempts: tuple[Attempt, ...]
    manifests: tuple[tuple[int, str, int, int, int, int], ...]
    ssts: tuple[SharedSst, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Live keys of one store name of an operator.

    groups: by partition, those of its key groups, ascending by the group's number; None: no file of
    that partition tells. Partition p of n has the groups p, p + n, p + 2n, ...
    unknown: the partitions of these that have files.
    """

    operator: int
    name: str
    store: str
    groups: tuple[tuple[int, ...] | None, ...]
    unknown: tuple[int, ...]


def anatomy(storage: Storage, checkpoint: str, store: StoreId) -> Anatomy:
    """Return the files of one store of a Spark checkpoint. A query may run meanwhile.

    Raises: as `survey`; InvalidInputError: INVALID_ARGUMENT: there is no such store.
    """
    found = survey(storage, checkpoint)
    listing = found.stores.get(store)
    if listing is None:
        raise InvalidInputError(
            f"{checkpoint} has no store {store}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="`millpond checkpoint show` lists the operators, partitions and stores.",
        )
    problems: list[str] = []
    shown = []
    named: dict[str, set[int]] = {}  # versions of snapshots by the keys of their SSTs
    before: set[str] = set()
    for manifest in _manifests(storage, listing, problems):
        sizes = manifest.sst_sizes(store)
        # What a rescale put together names SSTs of before it alone.
        shared = sum(size for key, size in sizes.items() if manifest.composed or key in before)
        own = sum(sizes.values()) - shared
        shown.append(
            (manifest.version, manifest.id, manifest.keys, manifest.created_ms, own, shared)
        )
        for key in sizes:
            named.setdefault(key, set()).add(manifest.version)
        before = set(sizes)
    _add_composed(storage, found, store, named)
    return Anatomy(
        operator=store.operator,
        partition=store.partition,
        store=store.name,
        attempts=tuple(_attempts(found, store, listing)),
        manifests=tuple(shown),
        ssts=tuple(
            SharedSst(
                name=name.rpartition("/")[2],
                bytes=info.size_bytes,
                snapshots=tuple(sorted(named.get(info.key, ()))),
            )
            for name, info in sorted(listing.ssts.items(), key=lambda item: item[1].modified_ms)
        ),
        problems=tuple(problems),
    )


def _add_composed(
    storage: Storage, found: Survey, store: StoreId, named: dict[str, set[int]]
) -> None:
    """Add what other partitions name: after a rescale the SSTs of a store are parts of several."""
    for other, listing in found.stores.items():
        alike = (other.operator, other.name) == (store.operator, store.name)
        if alike and other != store:
            for manifest in _manifests(storage, listing, []):
                if manifest.composed:
                    for key in manifest.sst_keys(other):
                        named.setdefault(key, set()).add(manifest.version)


def _manifests(storage: Storage, listing: Listing, problems: list[str]) -> list[Manifest]:
    found = []
    for _, info in sorted(listing.manifests.items()):
        try:
            found.append(decode_manifest(storage.read(info.key), name=info.key))
        except (FormatError, UnsupportedError) as e:
            problems.append(e.message)
        except NotFoundError:
            continue  # a running query collected it after the listing
    return found


def _attempts(found: Survey, store: StoreId, listing: Listing) -> list[Attempt]:
    info = found.operators.get(store.operator)
    names = info.stores if info is not None else ()
    commits = found.spark.commits if found.spark is not None else {}
    last = found.spark.last_committed_batch if found.spark is not None else None
    attempts = []
    for version, file in sorted(listing.changelogs.items()):
        commit = commits.get(version.version - 1)  # batch 0 makes version 1
        fate: Fate = "not known"
        if last is None or version.version - 1 > last:
            fate = "not committed"
        elif commit is not None and commit.has_state_ids and version.id:
            fate = "committed" if commit.id_of(store, names) == version.id else "lost"
        elif not version.id:
            fate = "committed"
        attempts.append(
            Attempt(
                version=version.version,
                id=version.id,
                bytes=file.size_bytes,
                written_ms=file.modified_ms,
                fate=fate,
            )
        )
    return attempts


def group_counts(storage: Storage, checkpoint: str) -> tuple[GroupCounts, ...]:
    """Return the live keys of all key groups, by operator and store name.

    Reads one header, or one manifest, of each store. Raises: as `survey`.
    """
    found = survey(storage, checkpoint)
    partitions = found.spark.partitions if found.spark is not None else None
    counts: dict[tuple[int, str], dict[int, tuple[int, ...] | None]] = {}
    for store, listing in found.stores.items():
        if not listing.is_empty:
            by_partition = counts.setdefault((store.operator, store.name), {})
            by_partition[store.partition] = _groups_of(storage, listing)
    told = []
    for (operator, name), by_partition in sorted(counts.items()):
        # Files of more partitions are those of before a rescale.
        numbers = range(partitions or max(by_partition) + 1)
        told.append(
            GroupCounts(
                operator=operator,
                name=found.operators[operator].name if operator in found.operators else "",
                store=name,
                groups=tuple(by_partition.get(number) for number in numbers),
                unknown=tuple(n for n in numbers if by_partition.get(n, ()) is None),
            )
        )
    return tuple(told)


def _groups_of(storage: Storage, listing: Listing) -> tuple[int, ...] | None:
    try:
        if listing.changelogs:
            newest = max(listing.changelogs)
            if not listing.manifests or max(listing.manifests).version <= newest.version:
                header = read_changelog_header(storage, listing.changelogs[newest].key)
                return header.group_keys
        if listing.manifests:
            key = listing.manifests[max(listing.manifests)].key
            return decode_manifest(storage.read(key), name=key).group_keys
    except (NotFoundError, FormatError, UnsupportedError):
        return None  # `verify` says why; or a running query collected it
    return None
