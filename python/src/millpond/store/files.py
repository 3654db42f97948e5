"""What is stored of one store: the listing of its directory; headers and manifests on demand."""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.format import layout
from millpond.format.changelog import END_MAGIC, MAGIC, ChangelogHeader, read_header
from millpond.format.manifest import Manifest, decode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.storage import ObjectInfo, Storage
from millpond.storage.paging import list_by_pages

# Files of Spark's own providers: HDFS (`12.delta`, `12.snapshot`) and RocksDB (`12.zip`,
# `12_<uuid>.zip`, `12_<uuid>.changelog`).
_FOREIGN = re.compile(r"[0-9]+(_[0-9A-Za-z\-]+)?\.(zip|delta|snapshot|changelog)")
_HEADER_HEAD = struct.Struct("<4sHHI")
_FOOTER = struct.Struct("<I4sQQQI")
_FIRST_READ_BYTES = 16 * 1024
_MAX_HEADER_BYTES = 64 * 1024 * 1024
_DEEPEST = 4  # slashes in the key of a folder: state/<operator>/<partition>/<store>/sst


@dataclass(slots=True)
class Listing:
    """The files of one store at one moment.

    In Spark checkpoint format 1 every key of the maps has the id "".
    """

    changelogs: dict[VersionId, ObjectInfo] = field(default_factory=dict)
    manifests: dict[VersionId, ObjectInfo] = field(default_factory=dict)
    ssts: dict[str, ObjectInfo] = field(default_factory=dict)  # `sst/<uuid>.sst` -> file
    staging: list[ObjectInfo] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # names of files of Spark's own providers

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever published here."""
        return not self.changelogs and not self.manifests

    @property
    def newest(self) -> int:
        """The newest version that has a file; 0: none has."""
        return max((id.version for id in (*self.changelogs, *self.manifests)), default=0)

    def lost(self, later: Listing) -> bool:
        """Whether a file of this listing is not in a later one."""
        return not (
            self.changelogs.keys() <= later.changelogs.keys()
            and self.manifests.keys() <= later.manifests.keys()
            and self.ssts.keys() <= later.ssts.keys()
        )


def list_state(storage: Storage, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the objects below `prefix`, which is empty or lies in `state/`, in no order.

    A listing of a storage follows no symbolic link but that of its first folder. A reader by key
    follows them all, so a store in a folder that somebody moved, and left a link, works. Whoever
    looks for all files of the state must find its files, too: each such listing goes through here.
    """
    prefixes = [prefix]
    while prefixes:
        for info in list_by_pages(storage, prefixes.pop()):
            parsed = layout.parse_key(info.key)
            if (parsed is None or parsed.file is None) and _is_link(storage, info.key):
                prefixes.append(info.key + "/")
            else:
                yield info


def _is_link(storage: Storage, key: str) -> bool:
    """Whether a listed object is a link to a folder. One that lies too deep holds no state: so a
    link to a folder above it has an end.
    """
    path = storage.local_path(key)
    return path is not None and key.count("/") <= _DEEPEST and os.path.isdir(path)


def read_listing(storage: Storage, store: StoreId) -> Listing:
    """List the directory of `store`. A directory that does not exist is empty."""
    listing = Listing()
    for info in list_state(storage, layout.store_prefix(store)):
        add_to_listing(listing, layout.parse_key(info.key), info, store)
    return listing


def list_stores(storage: Storage, prefix: str = layout.STATE_PREFIX) -> dict[StoreId, Listing]:
    """Return the files of all stores below `prefix`, which lies in `state/`."""
    found: dict[StoreId, Listing] = {}
    for info in list_state(storage, prefix):
        parsed = layout.parse_key(info.key)
        if parsed is not None:
            listing = found.setdefault(parsed.store, Listing())
            add_to_listing(listing, parsed, info, parsed.store)
    return found


def add_to_listing(
    listing: Listing, parsed: layout.StoreKey | None, info: ObjectInfo, store: StoreId
) -> None:
    """Sort one listed object into `listing` if it belongs to `store`."""
    if parsed is None or parsed.store != store:
        return
    match parsed.file:
        case layout.ChangelogFile(version):
            listing.changelogs[version] = info
        case layout.ManifestFile(version):
            listing.manifests[version] = info
        case layout.SstFile():
            listing.ssts[parsed.name] = info
        case layout.StagingFile():
            listing.staging.append(info)
        case None:
            if _FOREIGN.fullmatch(parsed.name):
                listing.foreign.append(parsed.name)


def read_changelog_header(storage: Storage, key: str) -> ChangelogHeader:
    """Read only the header of the changelog at `key`.

    Raises: NotFoundError (CHANGELOG_MISSING), FormatError, UnsupportedError.
    """
    return read_header(io.BytesIO(_read_head(storage, key)), name=key)


def _read_head(storage: Storage, key: str) -> bytes:
    """Read the header and what comes with it: all of the changelog if it is small."""
    try:
        data = storage.read_range(key, 0, _FIRST_READ_BYTES)
        if len(data) >= _HEADER_HEAD.size:
            json_bytes = _HEADER_HEAD.unpack_from(data)[3]
            whole = _HEADER_HEAD.size + json_bytes + 4
            if len(data) < whole <= _MAX_HEADER_BYTES:
                data = storage.read_range(key, 0, whole)
    except NotFoundError as e:
        raise NotFoundError(f"{key} is not there", kind=ErrorKind.CHANGELOG_MISSING) from e
    return data


def check_end(storage: Storage, key: str, size_bytes: int) -> None:
    """Check that a changelog ends as a whole one does: it may have been cut. Takes one request.

    Raises: FormatError: CHANGELOG_DAMAGED.
    """
    if not _is_end(storage.read_range(key, max(0, size_bytes - _FOOTER.size), _FOOTER.size + 1)):
        raise FormatError(f"{key}: its end is damaged or missing", kind=ErrorKind.CHANGELOG_DAMAGED)


def _is_end(data: bytes) -> bool:
    if len(data) != _FOOTER.size:
        return False
    zero, magic, _, _, _, crc = _FOOTER.unpack(data)
    return (zero, magic, crc) == (0, END_MAGIC, zlib.crc32(data[:-4]))


def is_local(storage: Storage, store: StoreId) -> bool:
    """Return whether the files of a store are on this machine's disk."""
    return storage.local_path(layout.store_key(store, layout.SST_DIR)) is not None


class StoreFiles:
    """One store's files, seen through one listing. Implements `restore.plan.StoreView`.

    Headers are kept across listings while the file is the same (size and time): every collection
    walks over the same lineage.
    """

    is_listed = True  # once refreshed, `listing` tells what there is

    def __init__(self, storage: Storage, store: StoreId, spark_format: int) -> None:
        self.storage = storage
        self.store = store
        self.spark_format = spark_format
        self.listing = Listing()
        self._headers: dict[str, tuple[ObjectInfo, ChangelogHeader]] = {}
        # Keys of changelogs that were read to a whole end together with the header.
        self.ended: set[str] = set()

    def refresh(self) -> Listing:
        """List again."""
        self.listing = read_listing(self.storage, self.store)
        present = {info.key for info in self.listing.changelogs.values()}
        self._headers = {key: entry for key, entry in self._headers.items() if key in present}
        return self.listing

    def forget_young(self, since_ms: int) -> None:
        """Forget what was read of changelogs that were modified since then, in Spark checkpoint
        format 1: another attempt may replace one within the resolution of its modification time.
        """
        if not self.exact_ids:
            self._headers = {
                key: entry
                for key, entry in self._headers.items()
                if entry[0].modified_ms < since_ms
            }

    @property
    def exact_ids(self) -> bool:
        return self.spark_format >= 2

    def _stored_id(self, version: VersionId) -> VersionId:
        return version if self.exact_ids else VersionId(version.version)

    def changelog_name(self, version: VersionId) -> str:
        return layout.changelog_name(version, self.spark_format)

    def manifest_name(self, version: VersionId) -> str:
        return layout.manifest_name(version, self.spark_format)

    def has_changelog(self, version: VersionId) -> bool:
        return self._stored_id(version) in self.listing.changelogs

    def has_manifest(self, version: VersionId) -> bool:
        return self._stored_id(version) in self.listing.manifests

    def changelog_info(self, version: VersionId) -> ObjectInfo:
        """Return the listed file. Raises: NotFoundError: CHANGELOG_MISSING."""
        info = self.listing.changelogs.get(self._stored_id(version))
        if info is None:
            raise NotFoundError(
                f"store {self.store}: {self.changelog_name(version)} is not there",
                kind=ErrorKind.CHANGELOG_MISSING,
            )
        return info

    def local_copy(self, version: VersionId) -> str | None:
        """Return the path of a changelog that is already on this machine, None if it is not."""
        return None

    def manifest_info(self, version: VersionId) -> ObjectInfo:
        """Return the listed file. Raises: NotFoundError."""
        info = self.listing.manifests.get(self._stored_id(version))
        if info is None:
            raise NotFoundError(f"store {self.store}: {self.manifest_name(version)} is not there")
        return info

    def header(self, version: VersionId) -> ChangelogHeader:
        info = self.changelog_info(version)
        known = self._headers.get(info.key)
        if known is not None and known[0] == info:
            return known[1]
        data = _read_head(self.storage, info.key)
        header = read_header(io.BytesIO(data), name=info.key)
        if len(data) == info.size_bytes and _is_end(data[-_FOOTER.size :]):
            self.ended.add(info.key)
        self._headers[info.key] = (info, header)
        return header

    def usable_manifest(self, version: VersionId) -> Manifest:
        manifest = self.read_manifest(version)
        self.check_ssts(manifest)
        return manifest

    def check_ssts(self, manifest: Manifest) -> None:
        """Check that the SSTs of a manifest are listed. Raises: NotFoundError, FormatError."""
        for sst in manifest.ssts:
            stored = self.listing.ssts.get(sst.key)
            if stored is None:
                name = self.manifest_name(manifest.version_id)
                raise NotFoundError(
                    f"store {self.store}: {sst.key} is not there, and {name} names it",
                    kind=ErrorKind.SST_MISSING,
                )
            if stored.size_bytes != sst.size_bytes:
                raise FormatError(
                    f"store {self.store}: {sst.key} has {stored.size_bytes} bytes, expected"
                    f" {sst.size_bytes}",
                    kind=ErrorKind.SST_DAMAGED,
                )

    def read_manifest(self, version: VersionId) -> Manifest:
        """Read and check one manifest. Does not look for its SSTs.

        Raises: FormatError, NotFoundError, UnsupportedError.
        """
        key = layout.manifest_key(self.store, version, self.spark_format)
        manifest = decode_manifest(self.storage.read(key), name=key)
        wrong_id = self.exact_ids and manifest.id != version.id
        if manifest.version != version.version or wrong_id or manifest.store != self.store:
            raise FormatError(
                f"{key} says that it is version {manifest.version_id} of store {manifest.store}",
                kind=ErrorKind.MANIFEST_DAMAGED,
            )
        return manifest

    def versions(self) -> Collection[int]:
        return {v.version for v in self.listing.changelogs} | {
            v.version for v in self.listing.manifests
        }

    def manifest_versions(self) -> Collection[int]:
        return {v.version for v in self.listing.manifests}

    def has_foreign_changelog(self) -> bool:
        """Whether the newest file named like a changelog is not Millpond's.

        Spark's RocksDB provider uses such names too.
        """
        newest = max(
            self.listing.changelogs.values(), key=lambda info: info.modified_ms, default=None
        )
        if newest is None:
            return False
        try:
            head = self.storage.read_range(newest.key, 0, len(MAGIC))
        except NotFoundError:
            return False
        return head != MAGIC
