"""One store's files on a remote storage, for a reader that needs all rows of its changelogs: each
is fetched whole, once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from millpond.errors import ErrorKind, NotFoundError
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, read_header
from millpond.model.ids import StoreId, VersionId
from millpond.storage import ObjectInfo, Storage
from millpond.storage.local import translate_restored
from millpond.store.files import Listing, StoreFiles, add_to_listing
from millpond.store.partial_database import FETCHES


class FetchedFiles(StoreFiles):
    """Fetches the changelogs that a header names down to the newest snapshot, side by side.

    Args:
        local_dir: for the changelogs. Those that are there already are not fetched.
        sizes: key -> size in bytes, of all files of a savepoint; None: list the store.
    """

    def __init__(
        self,
        storage: Storage,
        store: StoreId,
        spark_format: int,
        *,
        local_dir: str,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(storage, store, spark_format)
        self._sizes, self._local_dir = sizes, local_dir
        self._fetched: dict[str, tuple[str, ChangelogHeader]] = {}  # by key

    def refresh(self) -> Listing:
        if self._sizes is None:
            return super().refresh()
        self.listing = Listing()
        for key, size_bytes in self._sizes.items():
            info = ObjectInfo(key, size_bytes, 0)
            add_to_listing(self.listing, layout.parse_key(key), info, self.store)
        return self.listing

    def header(self, version: VersionId) -> ChangelogHeader:
        return self._copy(version)[1]

    def local_copy(self, version: VersionId) -> str | None:
        return self._copy(version)[0]

    def _copy(self, version: VersionId) -> tuple[str, ChangelogHeader]:
        key = self.changelog_info(version).key
        if key not in self._fetched:
            header = self._fetch(key)
            wanted = []
            if not self.has_manifest(version):
                for number in range(version.version - 1, header.lineage_base, -1):
                    before = VersionId(number, header.lineage[number - header.lineage_base])
                    if self.has_manifest(before) or not self.has_changelog(before):
                        break
                    wanted.append(self.changelog_info(before).key)
            missing = [one for one in wanted if one not in self._fetched]
            FETCHES.run([partial(self._fetch, one) for one in missing])
        return self._fetched[key]

    def _fetch(self, key: str) -> ChangelogHeader:
        path = os.path.join(self._local_dir, key.rpartition("/")[2])
        try:
            if not os.path.exists(path):
                self.storage.get_to_file(key, path)
            with open(path, "rb") as file:
                header = read_header(file, name=key)
        except NotFoundError as e:
            raise NotFoundError(f"{key} is not there", kind=ErrorKind.CHANGELOG_MISSING) from e
        except OSError as e:
            raise translate_restored(e, f"reading {path}") from e
        self._fetched[key] = path, header
        return header
