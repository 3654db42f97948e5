"""What one listing of an operator tells its sweep.

An operator of 1,000 stores has 130,000 files or more, and one executor sweeps it. Nearly all of
them are changelogs, and SSTs that manifests name: of those only sums are kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from millpond.errors import MillpondError, NotFoundError
from millpond.format import layout
from millpond.format.manifest import decode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.storage import ObjectInfo, Storage
from millpond.store.files import list_state

# A younger file could be replaced within the resolution of its modification time.
CACHEABLE_AGE_MS = 2_000

# Key of a manifest -> the file that was read, and the SSTs and changelogs that it names.
Marks = dict[str, tuple[ObjectInfo, tuple[str, ...]]]


@dataclass(slots=True)
class Extent:
    """The changelogs and manifests of one store, summed up."""

    newest_version: int = 0
    newest_ms: int = 0  # since the epoch
    unpinned: int = 0  # files

    def add(self, version: VersionId, info: ObjectInfo, pinned: Collection[str]) -> None:
        self.newest_version = max(self.newest_version, version.version)
        self.newest_ms = max(self.newest_ms, info.modified_ms)
        self.unpinned += info.key not in pinned

    def is_over(self, oldest_retained: int, *, grace_ms: int, now_ms: int) -> bool:
        """Return whether no retained version needs any of the files, and one of them may go.

        Args:
            oldest_retained: the oldest version that must stay restorable.
            grace_ms: if one file is younger, all stay.
            now_ms: since the epoch.
        """
        return (
            self.newest_version < oldest_retained
            and now_ms - self.newest_ms >= grace_ms
            and self.unpinned > 0
        )


@dataclass(slots=True)
class Survey:
    """An operator's files at one moment.

    referenced: keys of all SSTs and changelogs that manifests name, each by itself: all marks have
        the same text.
    ssts: those that no manifest named that was listed before them.
    marks: of all manifests that cannot be replaced unseen any more.
    unreadable: why a manifest could not be read; then nobody knows what it names.
    """

    referenced: dict[str, str] = field(default_factory=dict)
    manifests: set[str] = field(default_factory=set)
    ssts: list[ObjectInfo] = field(default_factory=list)
    staging: list[ObjectInfo] = field(default_factory=list)
    stores: dict[StoreId, Extent] = field(default_factory=dict)
    marks: Marks = field(default_factory=dict)
    unreadable: MillpondError | None = None

    def check(self) -> None:
        """Raises: MillpondError: a manifest could not be read."""
        if self.unreadable is not None:
            raise self.unreadable


def survey(
    storage: Storage, operator: int, known: Marks, pinned: Collection[str], *, now_ms: int
) -> Survey:
    """List an operator, and read the manifests that are not in `known`.

    Args:
        pinned: keys of changelogs and manifests.
        now_ms: since the epoch.
    Raises: UnavailableError: it cannot be listed.
    """
    seen = Survey()
    for info in list_state(storage, layout.operator_dir(operator) + "/"):
        parsed = layout.parse_key(info.key)
        if parsed is None:
            continue
        match parsed.file:
            case layout.ManifestFile(version):
                seen.stores.setdefault(parsed.store, Extent()).add(version, info, pinned)
                seen.manifests.add(info.key)
                _mark(seen, storage, parsed.store, info, known, now_ms)
            case layout.ChangelogFile(version):
                seen.stores.setdefault(parsed.store, Extent()).add(version, info, pinned)
            case layout.SstFile() if info.key not in seen.referenced:
                seen.ssts.append(info)
            case layout.StagingFile():
                seen.staging.append(info)
    return seen


def _mark(
    seen: Survey, storage: Storage, store: StoreId, info: ObjectInfo, known: Marks, now_ms: int
) -> None:
    entry = known.get(info.key)
    if entry is None or entry[0] != info:
        try:
            manifest = decode_manifest(storage.read(info.key), name=info.key)
        except NotFoundError:
            return  # it expired after the listing: it names nothing any more
        except MillpondError as e:
            seen.unreadable = e
            return
        named = (*manifest.sst_keys(store), *manifest.changelog_keys())
        entry = info, tuple(seen.referenced.setdefault(key, key) for key in named)
    else:
        seen.referenced.update(zip(entry[1], entry[1], strict=True))
    if now_ms - info.modified_ms >= CACHEABLE_AGE_MS:
        seen.marks[info.key] = entry
