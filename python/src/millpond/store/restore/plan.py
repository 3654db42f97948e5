"""Decide from which manifest and changelogs a version is restored (pure: all I/O is behind
`StoreView`).

State at version v = the newest usable manifest on v's lineage at or below v, plus the changelogs
above it in order. A manifest is passed over if it is damaged or missing, or if an SST that it names
is missing; an older one with a longer chain makes the same state. If a needed changelog is missing
or damaged, that is an error. A restore never yields a wrong value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from millpond.errors import ErrorKind, FormatError, MillpondError, NotFoundError, error
from millpond.format.changelog import ChangelogHeader
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId, VersionId
from millpond.model.lineage import walk


class StoreView(Protocol):
    """What planning asks about the files of one store.

    `VersionId.id` counts only where Spark hands out ids.
    """

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
        """Read the manifest and check that its SSTs are there.

        Raises: FormatError, NotFoundError, UnsupportedError.
        """

    def versions(self) -> Collection[int]:
        """All versions that have a changelog or a manifest."""

    def manifest_versions(self) -> Collection[int]:
        """All versions that have a manifest."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A manifest on the lineage that was passed over, and why."""

    name: str
    kind: ErrorKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """How to make `target`.

    base: version of the manifest. Without a manifest: the version of the empty state (id "") where
    the chain starts.
    headers: of the changelogs above `base`, ascending; the last one is that of `target`. Empty if
    the manifest is that of `target`.
    """

    target: VersionId
    base: VersionId
    manifest: Manifest | None
    headers: tuple[ChangelogHeader, ...]
    rejected: tuple[Rejection, ...] = ()

    @property
    def newest(self) -> ChangelogHeader | Manifest | None:
        """What describes the store at `target`; None: the state is empty."""
        return self.headers[-1] if self.headers else self.manifest

    @property
    def lineage(self) -> tuple[str, ...]:
        """Ids of the versions `base.version .. target.version`, as restored."""
        return (self.base.id, *(header.id for header in self.headers))


EMPTY = VersionId(0)


def empty_plan(target: VersionId) -> RestorePlan:
    """Return the plan of an empty state at version `target`."""
    return RestorePlan(target=target, base=VersionId(target.version), manifest=None, headers=())


def plan_restore(
    view: StoreView,
    target: VersionId,
    *,
    excluded: Mapping[str, Rejection] = {},
    retain_versions: int | None = None,
    snapshot: VersionId | None = None,
) -> RestorePlan:
    """Return how to restore `target`.

    Args:
        target: in Spark checkpoint format 1 its id is ""; the id is read from the file.
        excluded: by name, manifests that turned out to be unusable.
        retain_versions: number of versions that stay restorable; tells an expired version from a
            lost one. None: unknown.
        snapshot: begin with the manifest of this version, at or below `target`, and no other; its
            id may be "": the one on the lineage. None: begin with the newest usable one.
    Raises:
        NotFoundError: VERSION_NOT_FOUND: `snapshot` has no manifest on the lineage.
            CHANGELOG_MISSING, VERSION_EXPIRED. If only unusable manifests are in the way: what is
            wrong with the newest one (SST_MISSING, ...).
        FormatError: CHANGELOG_DAMAGED; or what is wrong with the newest manifest
            (MANIFEST_DAMAGED, ...).
        UnsupportedError: FORMAT_TOO_NEW.
    """
    if target.version == 0:
        return empty_plan(target)
    rejected: list[Rejection] = []
    start = target
    if snapshot is not None and snapshot.version not in view.manifest_versions():
        raise _no_snapshot(view, snapshot, rejected)
    if not view.exact_ids:
        if not view.has_changelog(target):
            # A collection may have removed the changelog at a snapshot's own version. Then only the
            # manifest has this version.
            whole = _usable(view, target, excluded, rejected)
            if whole is None:
                raise _missing(view, target, target, rejected, retain_versions)
            if snapshot is not None and snapshot.version != target.version:
                raise _missing(view, target, target, [], retain_versions)
            return RestorePlan(
                target=whole.version_id,
                base=whole.version_id,
                manifest=whole,
                headers=(),
                rejected=(),
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
        # A newer changelog may name another attempt of `step`.
        above = None if view.exact_ids or not chain else header_of(chain[-1])
        if snapshot is not None and step.version <= snapshot.version:
            manifest = _chosen(view, step, snapshot, excluded, rejected, above)
            break
        if step.id == "":
            break
        if snapshot is None:
            manifest = _usable(view, step, excluded, rejected, above)
        if manifest is not None:
            break
        if not view.has_changelog(step):
            raise _missing(view, start, step, rejected, retain_versions)
        chain.append(step)
        if header_of(step).empty_base:
            # It has all rows. A changelog above it may still name what was below it once.
            base = VersionId(step.version - 1)
            break
    return RestorePlan(
        target=start,
        base=base,
        manifest=manifest,
        headers=tuple(header_of(step) for step in reversed(chain)),
        rejected=tuple(rejected),
    )


def plan_changes(
    view: StoreView, start_version: int, target: VersionId, *, retain_versions: int | None = None
) -> tuple[ChangelogHeader, ...]:
    """Return the headers of the changelogs of versions `start_version .. target.version` on
    `target`'s lineage, ascending.

    Args:
        start_version: at least 1, at most `target.version`.
        target: in Spark checkpoint format 1 its id is ""; the id is read from the file.
        retain_versions: number of versions that stay restorable; tells an expired version from a
            lost one. None: unknown.
    Raises:
        NotFoundError: VERSION_EXPIRED or CHANGELOG_MISSING, naming the first missing changelog;
            VERSION_NOT_FOUND: the lineage begins above `start_version`, or one of the versions was
            written anew.
        FormatError: CHANGELOG_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    headers: list[ChangelogHeader] = []
    start = target
    if not view.exact_ids:
        if not view.has_changelog(target):
            raise _changes_missing(view, start_version, target, retain_versions)
        start = VersionId(target.version, checked_header(view, target).id)
    for step in walk(start, lambda version: checked_header(view, version)):
        if step.version < start_version:
            break
        if step.id == "":
            raise error(
                ErrorKind.VERSION_NOT_FOUND,
                f"store {view.store}: the state begins with version {step.version}, nothing tells"
                " what changed before",
            )
        if not view.has_changelog(step):
            raise _changes_missing(view, start_version, step, retain_versions)
        header = checked_header(view, step)
        if header.empty_base:
            raise error(
                ErrorKind.VERSION_NOT_FOUND,
                f"store {view.store}: the state of version {step.version} was written anew, by a"
                " rescale, a restore or an erasure: nothing tells what its batch changed",
            )
        headers.append(header)
    return tuple(reversed(headers))


def _changes_missing(
    view: StoreView, start_version: int, step: VersionId, retain_versions: int | None
) -> MillpondError:
    name, versions, snapshots = view.changelog_name(step), view.versions(), view.manifest_versions()
    what = (
        f"store {view.store}: {name} is needed for the changes since version {start_version} and is"
        " not there"
    )
    if versions and step.version > max(versions):
        return error(ErrorKind.VERSION_NOT_FOUND, f"{what}; the newest version is {max(versions)}")
    # A collection removes the changelogs up to the oldest manifest that it keeps.
    if snapshots and step.version <= min(snapshots):
        kept = "" if retain_versions is None else f" ({retain_versions} versions are retained)"
        return error(
            ErrorKind.VERSION_EXPIRED,
            f"{what}; it was collected: changes are kept from version {min(snapshots) + 1}"
            f" on{kept}",
        )
    return error(ErrorKind.CHANGELOG_MISSING, what)


def _chosen(
    view: StoreView,
    step: VersionId,
    snapshot: VersionId,
    excluded: Mapping[str, Rejection],
    rejected: list[Rejection],
    above: ChangelogHeader | None,
) -> Manifest:
    """Return the manifest on which the caller insists.

    Args:
        step: the version of the lineage that must have it.
        above: as for `_usable`.
    """
    manifest = None
    if step.version == snapshot.version and snapshot.id in ("", step.id):
        manifest = _usable(view, step, excluded, rejected, above)
    if manifest is None:
        raise _no_snapshot(view, snapshot, rejected)
    return manifest


def _no_snapshot(view: StoreView, snapshot: VersionId, rejected: list[Rejection]) -> MillpondError:
    why = "; ".join(f"{r.name} is unusable: {r.reason}" for r in rejected)
    there = ", ".join(map(str, sorted(view.manifest_versions()))) or "none"
    return error(
        ErrorKind.VERSION_NOT_FOUND,
        f"store {view.store}: version {snapshot.version} has no snapshot on this lineage; there"
        f" are: {there}" + (f"; {why}" if why else ""),
    )


def _usable(
    view: StoreView,
    step: VersionId,
    excluded: Mapping[str, Rejection],
    rejected: list[Rejection],
    above: ChangelogHeader | None = None,
) -> Manifest | None:
    """Return the manifest of `step`; None, with the reason in `rejected`, if it cannot be used.

    Args:
        above: header of the changelog that continues `step`. A newer changelog may name another
            attempt of `step` than this one does.
    """
    if not view.has_manifest(step):
        return None
    name = view.manifest_name(step)
    if name in excluded:
        rejected.append(excluded[name])
        return None
    try:
        manifest = view.usable_manifest(step)
    except (FormatError, NotFoundError) as e:
        rejected.append(Rejection(name, e.kind, e.message))
        return None
    if step.id not in ("", manifest.id) and (above is None or manifest.id != above.lineage[-1]):
        # Spark checkpoint format 1: another attempt of this version wrote it. It is not damaged,
        # but does not belong to this lineage.
        return None
    return manifest


def checked_header(view: StoreView, version: VersionId) -> ChangelogHeader:
    """Read a header and check that it is that of this version and this store.

    Raises: FormatError, NotFoundError.
    """
    return check_header(view, version, view.header(version))


def check_header(view: StoreView, version: VersionId, header: ChangelogHeader) -> ChangelogHeader:
    """Return the header if it is that of this version and this store. Raises: FormatError."""
    name = view.changelog_name(version)
    if header.version != version.version or (view.exact_ids and header.id != version.id):
        raise FormatError(
            f"store {view.store}: {name} says that it is version {header.version_id}",
            kind=ErrorKind.CHANGELOG_DAMAGED,
        )
    if (header.store.partition, header.store.name) != (view.store.partition, view.store.name):
        raise FormatError(
            f"store {view.store}: {name} belongs to store {header.store}",
            kind=ErrorKind.CHANGELOG_DAMAGED,
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
            f"store {view.store}: version {target.version} has expired: the oldest that is kept is"
            f" {min(snapshots)} (newest {max(versions)}, {retain_versions} retained); {name} was"
            " collected",
        )
    newest = max(versions, default=0)
    if step != target or step.version <= newest or view.exact_ids:
        return error(ErrorKind.CHANGELOG_MISSING, what)
    # In Spark checkpoint format 2 the batch itself would have failed: it tells the ids that it
    # made.
    batch = step.version - 1
    return error(
        ErrorKind.CHANGELOG_MISSING,
        f"{what}; the newest version here is {newest}",
        hint=(
            f"If a foreachBatch function, or the sink, left batch {batch} out without reading it,"
            " nobody made its state: let the function read every batch. Else restore the file from"
            " a copy. `millpond checkpoint verify <checkpoint>` lists what is missing, and names"
            " the command that goes back to the newest whole batch."
        ),
    )
