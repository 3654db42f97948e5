"""Decide from which manifest and changelogs a version is restored (pure: all I/O is behind `StoreView`).

State at version v = newest usable manifest on v's lineage at or below v, plus the changelogs above it in order. A manifest
that is damaged, missing, or names SSTs that are not there is passed over for an older one with a longer chain. A changelog
that is needed and missing or damaged is an error: never a wrong value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from millpond.changelog import ChangelogHeader
from millpond.errors import ErrorKind, FormatError, MillpondError, NotFoundError, error
from millpond.ids import StoreId, VersionId
from millpond.lineage import walk
from millpond.manifest import Manifest


class StoreView(Protocol):
    """What is stored of one store, as far as planning asks. `VersionId.id` counts only where Spark hands out ids."""

    @property
    def store(self) -> StoreId: ...
    @property
    def exact_ids(self) -> bool:
        """Whether files are named by id (Spark checkpoint format 2)."""

    def has_changelog(self, version: VersionId) -> bool: ...
    def changelog_name(self, version: VersionId) -> str: ...
    def manifest_name(self, version: VersionId) -> str: ...
    def header(self, version: VersionId) -> ChangelogHeader:
        """Read the header. Raises: FormatError, NotFoundError (deleted meanwhile)."""

    def has_manifest(self, version: VersionId) -> bool: ...
    def usable_manifest(self, version: VersionId) -> Manifest:
        """Read the manifest and check that its SSTs are there. Raises: FormatError, NotFoundError, UnsupportedError."""

    def versions(self) -> Collection[int]:
        """All versions of which a changelog or a manifest is there."""

    def manifest_versions(self) -> Collection[int]:
        """All versions of which a manifest is there."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A manifest on the lineage that was passed over, and why."""

    name: str
    kind: ErrorKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """How to make `target`.

    base: version of the manifest, or of the empty state (id "") where the chain starts from nothing.
    headers: of the changelogs above `base`, ascending, the last one that of `target`; empty if the manifest is `target`'s.
    """

    target: VersionId
    base: VersionId
    manifest: Manifest | None
    headers: tuple[ChangelogHeader, ...]
    rejected: tuple[Rejection, ...] = ()

    @property
    def lineage(self) -> tuple[str, ...]:
        """Ids of the versions `base.version .. target.version`, as restored."""
        return (self.base.id, *(header.id for header in self.headers))


EMPTY = VersionId(0)


def empty_plan(target: VersionId) -> RestorePlan:
    """Return the plan of an empty state positioned at `target`."""
    return RestorePlan(target=target, base=VersionId(target.version), manifest=None, headers=())


def plan_restore(
    view: StoreView, target: VersionId, *, excluded: Mapping[str, Rejection] = {}, retain_versions: int | None = None
) -> RestorePlan:
    """Return how to restore `target`.

    Args:
        target: in Spark checkpoint format 1 its id is "" and is found in the file.
        excluded: manifests, by name, that were found unusable while they were used.
        retain_versions: number of versions that stay restorable, to tell an expired version from a lost one; None: unknown.
    Raises:
        NotFoundError: CHANGELOG_MISSING, VERSION_EXPIRED, or what made the newest manifest unusable if only that is in the way.
        FormatError: CHANGELOG_DAMAGED, or as above (MANIFEST_DAMAGED, SST_MISSING, ...).
        UnsupportedError: FORMAT_TOO_NEW.
    """
    if target.version == 0:
        return empty_plan(target)
    rejected: list[Rejection] = []
    start = target
    if not view.exact_ids:
        if not view.has_changelog(target):
            # The changelog at a snapshot's own version may have been collected; then the manifest is all there is of it.
            snapshot = _usable(view, target, excluded, rejected)
            if snapshot is None:
                raise _missing(view, target, target, rejected, retain_versions)
            return RestorePlan(
                target=snapshot.version_id, base=snapshot.version_id, manifest=snapshot, headers=(), rejected=()
            )
        start = VersionId(target.version, checked_header(view, target).id)
    chain: list[VersionId] = []
    headers: dict[int, ChangelogHeader] = {}

    def header_of(version: VersionId) -> ChangelogHeader:
        if version.version not in headers:
            headers[version.version] = checked_header(view, version)
        return headers[version.version]

    manifest: Manifest | None = None
    base = EMPTY
    for step in walk(start, header_of):
        base = step
        if step.id == "":
            break
        manifest = _usable(view, step, excluded, rejected)
        if manifest is not None:
            break
        if not view.has_changelog(step):
            raise _missing(view, start, step, rejected, retain_versions)
        chain.append(step)
    return RestorePlan(
        target=start,
        base=base,
        manifest=manifest,
        headers=tuple(header_of(step) for step in reversed(chain)),
        rejected=tuple(rejected),
    )


def _usable(
    view: StoreView, step: VersionId, excluded: Mapping[str, Rejection], rejected: list[Rejection]
) -> Manifest | None:
    if not view.has_manifest(step):
        return None
    name = view.manifest_name(step)
    if name in excluded:
        rejected.append(excluded[name])
        return None
    try:
        manifest = view.usable_manifest(step)
    except (FormatError, NotFoundError) as e:
        rejected.append(Rejection(name, e.kind, str(e)))
        return None
    if step.id not in ("", manifest.id):
        # Checkpoint format 1: another attempt of this version wrote it. Not damaged, only not ours.
        return None
    return manifest


def checked_header(view: StoreView, version: VersionId) -> ChangelogHeader:
    """Read a header and check that the file is what its name and place say. Raises: FormatError, NotFoundError."""
    header = view.header(version)
    name = view.changelog_name(version)
    if header.version != version.version or (view.exact_ids and header.id != version.id):
        raise FormatError(
            f"store {view.store}: {name} says that it is version {header.version_id}",
            kind=ErrorKind.CHANGELOG_DAMAGED,
        )
    if (header.store.partition, header.store.name) != (view.store.partition, view.store.name):
        raise FormatError(
            f"store {view.store}: {name} belongs to store {header.store}", kind=ErrorKind.CHANGELOG_DAMAGED
        )
    return header


def _missing(
    view: StoreView,
    target: VersionId,
    step: VersionId,
    rejected: list[Rejection],
    retain_versions: int | None,
) -> MillpondError:
    name = view.changelog_name(step)
    what = f"store {view.store}: {name} is needed for version {target.version} and is not there"
    if rejected:
        reasons = "; ".join(f"{r.name} is unusable: {r.reason}" for r in rejected)
        return error(rejected[0].kind, f"{what}; {reasons}")
    versions, snapshots = view.versions(), view.manifest_versions()
    if (
        retain_versions is not None
        and snapshots
        and target.version < min(snapshots)
        and max(versions) - target.version >= retain_versions
    ):
        return error(
            ErrorKind.VERSION_EXPIRED,
            f"store {view.store}: version {target.version} has expired: the oldest that is kept is {min(snapshots)} "
            f"(newest {max(versions)}, {retain_versions} retained); {name} was collected",
        )
    return error(ErrorKind.CHANGELOG_MISSING, what)
