"""Which files of a store are written anew, so that a key is in none of them. Pure: no I/O but
through `StoreFiles`.

Of each store that has the key, what is left is one changelog for each retained version. The oldest
has all rows; each other has what changed since, as before, without the key. Where nothing tells
what changed (a rescale made the version, or retention removed its changelog), it has all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from millpond._version import __version__
from millpond.errors import NotFoundError
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId, VersionId
from millpond.store.files import StoreFiles
from millpond.store.restore.plan import RestorePlan, checked_header, plan_restore


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A changelog that is written anew.

    whole: it has all rows. base: version of the newest whole one at or below it.
    keys, group_keys: live keys after the version, as in a changelog's header.
    """

    store: StoreId
    version: VersionId  # with the id that its files have
    whole: bool
    base: int
    keys: int = -1
    group_keys: tuple[int, ...] | None = None

    def key(self, spark_format: int) -> str:
        """Return the key of the changelog."""
        return layout.changelog_key(self.store, self.version, spark_format)


def rewrites_of(
    files: StoreFiles, targets: Sequence[VersionId]
) -> list[tuple[Rewrite, RestorePlan]]:
    """Return what becomes of a store, ascending by version, with the plans of its versions.

    Args:
        files: with a fresh listing.
        targets: the retained versions, ascending.
    Raises: as `plan_restore`.
    """
    found: list[tuple[Rewrite, RestorePlan]] = []
    for target in targets:
        plan = plan_restore(files, target)
        newest = plan.newest
        if newest is None:
            continue
        version = VersionId(target.version, newest.id)
        before = found[-1][0] if found else None
        whole = before is None or not _continues(files, version, before.version)
        base = version.version if whole or before is None else before.base
        rewrite = Rewrite(store=files.store, version=version, whole=whole, base=base)
        found.append((rewrite, plan))
    return found


def _continues(files: StoreFiles, version: VersionId, before: VersionId) -> bool:
    """Whether a changelog tells what changed between two versions."""
    if version.version != before.version + 1 or not files.has_changelog(version):
        return False
    header = checked_header(files, version)
    if header.empty_base or header.id != version.id:
        return False
    return not files.exact_ids or header.parent.id == before.id


def counted(
    rewrite: Rewrite, described: ChangelogHeader | Manifest, gone: Mapping[int, int]
) -> Rewrite:
    """Return the rewrite with the live keys that are left.

    Args:
        described: what the version says about itself now.
        gone: key group -> live keys that go.
    """
    if described.keys < 0:
        return rewrite
    groups = described.group_keys
    if groups is not None:
        info = described.key_groups
        left = list(groups)
        for group, count in gone.items():
            left[(group - rewrite.store.partition) // info.partitions] -= count
        groups = tuple(left)
    return replace(rewrite, keys=described.keys - sum(gone.values()), group_keys=groups)


def uncounted(rewrite: Rewrite) -> Rewrite:
    """Return the rewrite of a version whose own count may be wrong: an erasure that did not end has
    written some versions anew, and the query went on with rows that these do not have.
    """
    return replace(rewrite, keys=-1, group_keys=None)


def header_of(rewrite: Rewrite, described: ChangelogHeader | Manifest) -> ChangelogHeader:
    """Return the header of the new changelog.

    Args:
        described: what the version says about itself now.
    """
    families = described.column_families
    header = ChangelogHeader(
        version=rewrite.version.version,
        id=rewrite.version.id,
        lineage_base=rewrite.version.version - 1,
        lineage=("",),
        empty_base=True,
        run_id="",
        store=rewrite.store,
        key_groups=described.key_groups,
        column_families=tuple(f for f in families if not f.removed),
        keys=rewrite.keys,
        group_keys=rewrite.group_keys,
        created_by=f"millpond {__version__}",
    )
    if rewrite.whole:
        return header
    if not isinstance(described, ChangelogHeader):
        raise NotFoundError(f"store {rewrite.store}: no changelog of {rewrite.version}")
    # The lineage below the oldest whole version leads to files that are gone.
    base = max(described.lineage_base, rewrite.base)
    return replace(
        described,
        lineage_base=base,
        lineage=described.lineage[base - described.lineage_base :],
        keys=rewrite.keys,
        group_keys=rewrite.group_keys,
    )
