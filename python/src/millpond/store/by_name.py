"""One store's files, asked for by name: an object storage answers that cheaper and sooner than a
listing.

Spark asks for an id, and the id names a changelog. The changelog's header names the ids of its
ancestors down to the newest snapshot that its writer knew. So the header names every file that a
restore needs.

`UnlistedFiles` implements `restore.plan.StoreView`, but never says that a file is absent. It raises
`NeedsListing` instead. The caller then plans anew with `StoreFiles`, which knows what else there
is. `UnlistedFiles` does not see a snapshot that was published after the changelog was written; an
older snapshot with a longer chain makes the same state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial

from millpond.errors import FormatError, MillpondError, NotFoundError, UnsupportedError
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, read_header
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId, VersionId
from millpond.storage import ObjectInfo, Storage
from millpond.storage.local import translate_restored
from millpond.storage.parallel import Parallel
from millpond.store.files import StoreFiles


class NeedsListing(Exception):
    """A file is absent or not as expected; `cause` says which. Only a listing tells what to do."""

    def __init__(self, cause: MillpondError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class UnlistedFiles(StoreFiles):
    """Fetches changelogs whole into `local_dir`: whoever reads a header here reads the rows next.

    Args:
        parallel: fetches all files that one header names, side by side.
        most: if a header names more changelogs that are not fetched yet, a listing pays: there may
            be a newer snapshot. None: it never does.
        check_wanted: is called before each changelog is fetched; raises if nobody wants it any
            more.
    """

    def __init__(
        self,
        storage: Storage,
        store: StoreId,
        spark_format: int,
        *,
        local_dir: str,
        parallel: Parallel,
        most: int | None = None,
        check_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(storage, store, spark_format)
        self._local_dir = local_dir
        self._parallel = parallel
        self._most = most
        self._check_wanted = check_wanted
        # Name of the changelog -> path of the local copy, header.
        self._fetched: dict[str, tuple[str, ChangelogHeader]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._snapshots: set[int] = set()  # versions that some header names as its snapshot

    is_listed = False

    def has_changelog(self, version: VersionId) -> bool:
        self.header(version)
        return True

    def header(self, version: VersionId) -> ChangelogHeader:
        name = self.changelog_name(version)
        if name not in self._fetched:
            header = self._fetch(version)
            # The restore needs all files that this header names: fetch them at once.
            if self._most is not None and len(header.lineage) - 1 > self._most:
                many = f"store {self.store}: {name} names {len(header.lineage) - 1} changelogs"
                raise NeedsListing(NotFoundError(many))
            base = VersionId(header.lineage_base, header.lineage[0])
            between = enumerate(header.lineage[1:], start=header.lineage_base + 1)
            wanted: list[Callable[[], object]] = [
                partial(self._fetch, VersionId(number, id))
                for number, id in between
                if self.changelog_name(VersionId(number, id)) not in self._fetched
            ]
            if base.version > 0 and base.id:
                self._snapshots.add(base.version)
                wanted.append(partial(self._read_manifest, base))
            self._parallel.run(wanted)
        return self._fetched[name][1]

    def _fetch(self, version: VersionId) -> ChangelogHeader:
        self._check_wanted()
        name = self.changelog_name(version)
        path = os.path.join(self._local_dir, name)
        try:
            self.storage.get_to_file(
                layout.changelog_key(self.store, version, self.spark_format), path
            )
            with open(path, "rb") as file:
                header = read_header(file, name=name)
        except (NotFoundError, FormatError, UnsupportedError) as e:
            raise NeedsListing(e) from e
        except OSError as e:
            raise translate_restored(e, f"reading {path}") from e
        self._fetched[name] = (path, header)
        return header

    def changelog_info(self, version: VersionId) -> ObjectInfo:
        self.header(version)
        path = self._fetched[self.changelog_name(version)][0]
        return ObjectInfo(
            layout.changelog_key(self.store, version, self.spark_format), os.path.getsize(path), 0
        )

    def local_copy(self, version: VersionId) -> str | None:
        self.header(version)
        return self._fetched[self.changelog_name(version)][0]

    def has_manifest(self, version: VersionId) -> bool:
        return version.version in self._snapshots

    def usable_manifest(self, version: VersionId) -> Manifest:
        """Return the manifest without a look at its SSTs: fetching shows whether they exist."""
        name = self.manifest_name(version)
        if name not in self._manifests:
            self._read_manifest(version)
        return self._manifests[name]

    def _read_manifest(self, version: VersionId) -> None:
        try:
            self._manifests[self.manifest_name(version)] = self.read_manifest(version)
        except (NotFoundError, FormatError, UnsupportedError) as e:
            raise NeedsListing(e) from e

    def versions(self) -> Collection[int]:
        raise NeedsListing(
            NotFoundError(f"store {self.store}: its versions are not known without a listing")
        )

    def manifest_versions(self) -> Collection[int]:
        return self.versions()
