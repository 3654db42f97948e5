"""Garbage collection: decides what may go, from listings and lineages (pure).

There are two collections, because they know different things:
- *expire*, of one store: changelogs and manifests that no retained version needs. The anchor is a
  (version, id) that Spark asked for. It is the only proof of what is committed. An id that is not
  its ancestor proves nothing, unless its version is older.
- *sweep*, of a whole operator: SSTs that no manifest names, and staging files that nobody finished.
  An SST that no manifest ever named may be an upload in flight. It goes only if a sweep saw it
  unreferenced at least a grace period ago and it still is. One whose manifests have expired goes at
  once: they have waited for the grace period.

Invariants:
- Nothing at or above the anchor's version expires.
- Every version in (anchor - retain, anchor] on the anchor's lineage stays restorable.
- No sweep deletes an SST that a manifest names.

Source: docs/concepts/versions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from millpond.errors import FormatError, NotFoundError
from millpond.format.changelog import ChangelogHeader
from millpond.format.manifest import Manifest
from millpond.model.ids import VersionId
from millpond.model.lineage import walk
from millpond.storage import ObjectInfo
from millpond.store.collection.survey import Extent
from millpond.store.files import Listing, StoreFiles
from millpond.store.restore.plan import checked_header

MIN_STAGING_GRACE_MS = 60_000
# Maintenance keeps the staging file of a running batch young. It may come late.
_MAINTENANCES = 3


@dataclass(frozen=True, slots=True)
class Expiry:
    """What may go in one store.

    base: the oldest version that can be restored without older files; None: nothing expires.
    """

    base: VersionId | None
    files: tuple[ObjectInfo, ...]  # ascending by version
    problem: FormatError | NotFoundError | None = None  # why nothing may go that should

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

    The versions above `anchor - retain_versions` are retained. The base is the newest usable
    manifest on the lineage at or below the oldest of them. The base and everything above it stay.
    The base must itself be older than the grace period: a restore that was planned before the base
    was published still needs older files. Below the anchor, attempts that lost go too (in Spark
    checkpoint format 2: ids beside the lineage). Nothing younger than the grace period goes:
    another run may have written it since the anchor was proven.

    Args:
        files: its listing must be fresh; headers and manifests are read through it.
        anchor: a version that Spark asked for; in Spark checkpoint format 1 its id may be "".
        retain_versions: number of versions that stay restorable.
        grace_ms: what is younger stays.
        now_ms: since the epoch.
        pinned: keys that stay.
    """
    listing = files.listing
    try:
        start = anchor if files.exact_ids else VersionId(anchor.version, _stored_id(files, anchor))
        lineage, base = _walk_to_base(
            files, start, anchor.version - retain_versions + 1, now_ms - grace_ms
        )
    except _Rescaled:
        # Versions from before the rescale are still retained. Their lineage is another one: all of
        # them go together, later.
        return Expiry(None, ())
    except (FormatError, NotFoundError) as e:
        # Nobody can tell what is needed without the whole lineage. A restore of these versions
        # reports the same error.
        return Expiry(None, (), e)
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
            # No retained version goes back further than the base.
            below_base = base is not None and version.version < base.version
            # The base is a manifest: a restore that begins there reads no changelog of its version.
            covered = base is not None and version.version == base.version and what == "changelog"
            # An attempt whose id is not on the lineage was never asked for. Format 1 has none: a
            # later attempt replaced the earlier one's file.
            lost = files.exact_ids and lineage.get(version.version) != version.id
            if below_base or covered or lost:
                doomed.append((version.version, info))
    return Expiry(base, tuple(info for _, info in sorted(doomed, key=lambda d: (d[0], d[1].key))))


class _Rescaled(Exception):
    """The walk came to the version that a rescale made before it came to a base."""


def _stored_id(files: StoreFiles, anchor: VersionId) -> str:
    if files.has_changelog(anchor):
        return files.header(anchor).id
    return files.usable_manifest(anchor).id


def _walk_to_base(
    files: StoreFiles, start: VersionId, oldest_retained: int, newest_base_ms: int
) -> tuple[dict[int, str], VersionId | None]:
    """Walk down to a version at or below `oldest_retained` that needs no older files.

    Returns: version -> id of the versions on the way; the version that was found, None if there is
    none.
    """
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
                # Below this version the store held other rows: a rescale then wrote every row anew.
                raise _Rescaled
            # The empty state needs no files. Below version 0 there is nothing to expire.
            return lineage, step if step.version > 0 else None
        if (
            not files.has_changelog(step)
            and files.has_manifest(step)
            and step.version <= min(files.versions())
        ):
            # The oldest file of all: the first snapshot after a savepoint was restored. Nothing
            # names its parents, and nothing needs them.
            return lineage, None
        if step.version > oldest_retained or not files.has_manifest(step):
            continue
        if files.manifest_info(step).modified_ms > newest_base_ms:
            continue
        try:
            manifest = files.usable_manifest(step)
        except (FormatError, NotFoundError):
            continue  # a restore passes over this manifest too
        if manifest.id == step.id and (files.exact_ids or _is_continued(files, manifest, start)):
            return lineage, step
    raise AssertionError("unreachable: a walk ends with the empty state")


def _is_continued(files: StoreFiles, manifest: Manifest, start: VersionId) -> bool:
    """Tell whether every later version leads back to `manifest`, in Spark checkpoint format 1.

    Two executors may each have made this version, and each goes on with its own. All later versions
    pass the changelog directly above, and restores accept the attempt that it names. So that
    changelog must be there.
    """
    if manifest.version >= start.version:
        return False
    return checked_header(files, VersionId(manifest.version + 1)).lineage[-1] == manifest.id


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep of one operator decides.

    ssts, staging: those that may go. staging_grace_ms: how long nobody has written to the latter.
    candidates: key of an SST -> when a sweep first saw it unreferenced (ms since the epoch).
    """

    ssts: tuple[ObjectInfo, ...]
    staging: tuple[ObjectInfo, ...]
    staging_grace_ms: int
    candidates: dict[str, int]

    @property
    def doomed(self) -> tuple[ObjectInfo, ...]:
        return self.ssts + self.staging

    def still_doomed(self, stored_ms: int) -> tuple[ObjectInfo, ...]:
        """Return what is doomed by the storage's clock, too: the sweeper's may be ahead of it, and
        a staging file may be one of a running batch.

        Args:
            stored_ms: when the storage has just stored something.
        """
        old = (i for i in self.staging if stored_ms - i.modified_ms >= self.staging_grace_ms)
        return (*self.ssts, *old)


def plan_sweep(
    ssts: Iterable[ObjectInfo],
    staging: Iterable[ObjectInfo],
    referenced: Collection[str],
    candidates: Mapping[str, int],
    *,
    released: Collection[str] = (),
    grace_ms: int,
    maintenance_ms: int = 0,
    now_ms: int,
) -> Sweep:
    """Return which SSTs and staging files may go, and which SSTs the next sweep must look at again.

    Args:
        referenced: keys of all SSTs that any manifest of the operator names.
        candidates: those of the previous sweep.
        released: keys of SSTs that manifests named which have gone since the previous sweep.
        grace_ms: how long a file must have been unreferenced, and unmodified.
        maintenance_ms: how often each store has its maintenance; 0: not known.
        now_ms: since the epoch.
    """
    seen: dict[str, int] = {}
    doomed: list[ObjectInfo] = []
    for info in ssts:
        if info.key in referenced:
            continue
        # A clock that was set back must not make a candidate older than it is.
        first_seen_ms = min(candidates.get(info.key, now_ms), now_ms)
        waited = info.key in released or now_ms - first_seen_ms >= grace_ms
        if waited and now_ms - info.modified_ms >= grace_ms:
            doomed.append(info)
        else:
            seen[info.key] = first_seen_ms
    # Holds whatever the option says: each commit in flight is a staging file for milliseconds, on a
    # slow disk for seconds.
    staging_grace_ms = max(grace_ms, MIN_STAGING_GRACE_MS, _MAINTENANCES * maintenance_ms)
    left = tuple(info for info in staging if now_ms - info.modified_ms >= staging_grace_ms)
    return Sweep(tuple(doomed), left, staging_grace_ms, seen)


def plan_left_behind(
    listing: Listing,
    oldest_retained: int,
    *,
    grace_ms: int,
    now_ms: int,
    pinned: Collection[str] = (),
) -> list[ObjectInfo]:
    """Return the changelogs and manifests of one store of a partition that a rescale removed, once
    no retained version needs them.

    No task opens such a partition any more, so no task expires its files.

    Args:
        oldest_retained: the oldest version that must stay restorable.
    """
    files = [*listing.changelogs.items(), *listing.manifests.items()]
    extent = Extent()
    for version, info in files:
        extent.add(version, info, pinned)
    if not extent.is_over(oldest_retained, grace_ms=grace_ms, now_ms=now_ms):
        return []
    return [info for _, info in files if info.key not in pinned]
