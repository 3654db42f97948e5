"""Garbage collection: what may go (pure), decided from listings and lineages.

Two collections, because they know different things:
- *expire*, per store: changelogs and manifests that no retained version needs. The anchor, a (version, id) that Spark asked
  for, is the only proof of what is committed; ids that are not its ancestors prove nothing while they are not older.
- *sweep*, over a whole operator: SSTs that no manifest names, and staging files that nobody finished. An SST goes only if it
  was seen unreferenced at least a grace period ago and still is: an upload in flight is unreferenced until its manifest is
  published.

Invariants: nothing at or above the anchor's version is expired; every version in (anchor - retain, anchor] on the anchor's
lineage stays restorable; no SST that a manifest names is swept. Source: docs/concepts/versions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from millpond.changelog import ChangelogHeader
from millpond.errors import FormatError, NotFoundError
from millpond.ids import StoreId, VersionId
from millpond.lineage import walk
from millpond.restore.plan import checked_header
from millpond.storage import ObjectInfo
from millpond.store_files import Listing, StoreFiles

MIN_STAGING_GRACE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Expiry:
    """What may go in one store. `base`: the oldest version that is restored without anything older; None: nothing expires."""

    base: VersionId | None
    files: tuple[ObjectInfo, ...]  # ascending by version
    reason: str = ""  # why nothing may go, where something should

    @property
    def keys(self) -> list[str]:
        return [info.key for info in self.files]

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.files)


def plan_expiry(
    files: StoreFiles,
    anchor: VersionId,
    *,
    retain_versions: int,
    grace_ms: int,
    now_ms: int,
    pinned: Collection[str] = (),
) -> Expiry:
    """Return which changelogs and manifests of one store no retained version needs.

    Retained are the versions above `anchor - retain_versions`. Kept is the newest usable manifest on the lineage at or below
    the oldest of them, and all that lies above it. That manifest must itself be older than the grace period: a restore that
    was planned before it was published still needs what is older. Attempts that lost (ids beside the lineage, in Spark
    checkpoint format 2) go below the anchor. Nothing goes that is younger than the grace period: what another run wrote since
    the anchor was proven is not known here.

    Reads headers and manifests through `files`, whose listing must be fresh.
    """
    listing = files.listing
    try:
        start = anchor if files.exact_ids else VersionId(anchor.version, _stored_id(files, anchor))
        lineage, base = _walk_to_base(
            files, start, anchor.version - retain_versions + 1, now_ms - grace_ms
        )
    except _Rescaled:
        # Versions from before the rescale are still retained, and their lineage is another one: they go together, later.
        return Expiry(None, ())
    except (FormatError, NotFoundError) as e:
        # Without the whole lineage nobody can tell what is needed. Restores of these versions report the same.
        return Expiry(None, (), f"{type(e).__name__}: {e}")
    old_enough = now_ms - grace_ms
    doomed: list[tuple[int, ObjectInfo]] = []
    for what, found in (("manifest", listing.manifests), ("changelog", listing.changelogs)):
        for version, info in found.items():
            if (
                version.version >= anchor.version
                or info.key in pinned
                or info.modified_ms > old_enough
            ):
                continue
            below_base = base is not None and version.version < base.version
            covered = base is not None and version.version == base.version and what == "changelog"
            # Format 1 has no siblings: a later attempt replaced the earlier one's file.
            lost = files.exact_ids and lineage.get(version.version) != version.id
            if below_base or covered or lost:
                doomed.append((version.version, info))
    return Expiry(base, tuple(info for _, info in sorted(doomed, key=lambda d: (d[0], d[1].key))))


class _Rescaled(Exception):
    """The walk ended at the version that a rescale made, before it came to what needs nothing older."""


def _stored_id(files: StoreFiles, anchor: VersionId) -> str:
    if files.has_changelog(anchor):
        return files.header(anchor).id
    return files.usable_manifest(anchor).id


def _walk_to_base(
    files: StoreFiles, start: VersionId, oldest_retained: int, newest_base_ms: int
) -> tuple[dict[int, str], VersionId | None]:
    """Walk down to a version at or below `oldest_retained` that needs nothing older. Return the ids passed, and it or None."""
    lineage: dict[int, str] = {}

    def header_of(version: VersionId) -> ChangelogHeader:
        if (
            files.has_manifest(version)
            and not files.has_changelog(version)
            and files.usable_manifest(version).composed
        ):
            raise _Rescaled
        return checked_header(files, version)

    for step in walk(start, header_of):
        lineage[step.version] = step.id
        if step.id == "":
            if step.version >= max(oldest_retained, 1):
                # Below it the store held something else, before a rescale that wrote every row anew.
                raise _Rescaled
            # The empty state needs nothing. At version 0 there is also nothing below it.
            return lineage, step if step.version > 0 else None
        if (
            not files.has_changelog(step)
            and files.has_manifest(step)
            and step.version <= min(files.versions())
        ):
            # The oldest file there is, the first snapshot after a savepoint was restored: nothing tells its parents, nor need it.
            return lineage, None
        if step.version > oldest_retained or not files.has_manifest(step):
            continue
        if files.manifest_info(step).modified_ms > newest_base_ms:
            continue
        try:
            manifest = files.usable_manifest(step)
        except (FormatError, NotFoundError):
            continue  # a restore passes over it too
        if manifest.id == step.id:
            return lineage, step
    raise AssertionError("unreachable: a walk ends with the empty state")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep of one operator decides. `candidates`: SSTs seen unreferenced, and when first (ms since the epoch)."""

    doomed: tuple[ObjectInfo, ...]
    candidates: dict[str, int]


def plan_sweep(
    ssts: Iterable[ObjectInfo],
    staging: Iterable[ObjectInfo],
    referenced: Collection[str],
    candidates: Mapping[str, int],
    *,
    grace_ms: int,
    now_ms: int,
) -> Sweep:
    """Return which SSTs and staging files may go, and which SSTs to look at again.

    Args:
        referenced: keys of all SSTs that any manifest of the operator names.
        candidates: of the sweep before.
    """
    seen: dict[str, int] = {}
    doomed: list[ObjectInfo] = []
    for info in ssts:
        if info.key in referenced:
            continue
        # A clock that was set back must not make a candidate older than it is.
        first_seen_ms = min(candidates.get(info.key, now_ms), now_ms)
        if now_ms - first_seen_ms >= grace_ms and now_ms - info.modified_ms >= grace_ms:
            doomed.append(info)
        else:
            seen[info.key] = first_seen_ms
    # whatever the option says: a commit in flight is a staging file for some milliseconds, on a slow disk for seconds
    staging_grace_ms = max(grace_ms, MIN_STAGING_GRACE_MS)
    doomed += [info for info in staging if now_ms - info.modified_ms >= staging_grace_ms]
    return Sweep(tuple(doomed), seen)


def plan_left_behind(
    listings: Mapping[StoreId, Listing],
    partitions: int,
    oldest_retained: int,
    *,
    grace_ms: int,
    now_ms: int,
    pinned: Collection[str] = (),
) -> list[ObjectInfo]:
    """Return the changelogs and manifests of partitions that a rescale did away with, once no retained version needs them.

    No task opens such a partition any more, so none collects in it.

    Args:
        partitions: of the query now.
        oldest_retained: the oldest version that must stay restorable.
    """
    doomed: list[ObjectInfo] = []
    for store, listing in listings.items():
        if store.partition < partitions:
            continue
        files = [*listing.changelogs.items(), *listing.manifests.items()]
        expired = all(version.version < oldest_retained for version, _ in files)
        if expired and all(now_ms - info.modified_ms >= grace_ms for _, info in files):
            doomed += [info for _, info in files if info.key not in pinned]
    return doomed
