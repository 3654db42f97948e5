"""Store the new SSTs of a local RocksDB checkpoint and publish the manifest that names them all."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from millpond._version import __version__
from millpond.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
)
from millpond.format import layout
from millpond.format.checksums import file_crc32
from millpond.format.layout import check_rocksdb_manifest_name
from millpond.format.manifest import Manifest, ParentSnapshot, SstRef
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo
from millpond.storage.local import translate_restored
from millpond.store.collection import announcements
from millpond.store.files import StoreFiles
from millpond.store.local_ssts import FileIdentity, LocalSst, identify
from millpond.store.snapshot.plan import CheckpointSst, SnapshotPlan, describe, plan_snapshot
from millpond.store.snapshot.publishing import collected, publish_manifest
from millpond.store.snapshot.uploads import Uploads
from millpond.store.sst_cache import SstCache

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """What the shim hands over: a RocksDB checkpoint, and a description of it."""

    version: VersionId
    db_checkpoint: str  # directory: SSTs, CURRENT, MANIFEST-*
    files: tuple[CheckpointSst, ...]
    keys: int
    group_keys: tuple[int, ...] | None = None
    column_families: tuple[ColumnFamily, ...]
    key_groups: KeyGroupsInfo
    slots: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A published snapshot, and the cache entries for those local files whose SSTs it names."""

    manifest_name: str
    plan: SnapshotPlan
    local_ssts: tuple[LocalSst, ...]


def publish_snapshot(
    files: StoreFiles,
    request: SnapshotRequest,
    known: dict[FileIdentity, LocalSst],
    *,
    now_ms: int,
    cache: SstCache | None = None,
    uploads: Uploads | None = None,
    check_wanted: Callable[[], None] = lambda: None,
    shunned: frozenset[str] = frozenset(),
    distrusted: Collection[str] = (),
) -> Published:
    """Upload the new SSTs and publish the manifest.

    An equivalent manifest that is there already stays, and is then the snapshot. A sweep finds the
    SSTs that were uploaded in vain.

    Args:
        files: of the store; listed again.
        known: local files whose bytes are stored.
        now_ms: since the epoch.
        cache: keeps the uploaded files.
        uploads: SSTs that it has are not uploaded again.
        check_wanted: is called before each file; raises if nobody wants the snapshot any more.
        shunned: keys of SSTs that the manifest must not name.
        distrusted: names of manifests that turned out to be unusable.
    Raises:
        InvalidInputError: the RocksDB checkpoint is not what the request says.
        ConflictError: OBJECT_EXISTS: see `publish_manifest`; or a key was erased from the version.
        UnavailableError: the storage does not answer; or an SST was collected meanwhile (then
            the snapshot is not there).
    """
    started = time.monotonic()
    name, content = read_rocksdb_manifest(request.db_checkpoint)
    identities = _identities(request)
    protected, parents, stored = _protectors(files, known)
    stored = {key: size_bytes for key, size_bytes in stored.items() if key not in shunned}
    plan = plan_snapshot(request.files, identities, known, protected, stored)
    refs = {ref.local_name: ref for ref in plan.reused}
    for file in plan.new:
        check_wanted()
        stored_ref = uploads.find(identities[file.name]) if uploads is not None else None
        if stored_ref is not None:
            refs[file.name] = describe(file, stored_ref.key, stored_ref.crc32)
            continue
        refs[file.name] = _upload(files, request.db_checkpoint, file, cache)
        if uploads is not None:
            uploads.add(identities[file.name], refs[file.name])
    used = {known[identities[ref.local_name]].manifest for ref in plan.reused}
    parent = max((parents[name] for name in used), key=lambda p: p.version, default=None)
    manifest = Manifest(
        store=files.store,
        version=request.version.version,
        id=request.version.id,
        parent_snapshot=parent,
        created_ms=now_ms,
        created_by=f"millpond {__version__}",
        key_groups=request.key_groups,
        slots=request.slots,
        column_families=request.column_families,
        keys=request.keys,
        group_keys=request.group_keys,
        ssts=tuple(refs[file.name] for file in request.files),
        rocksdb_manifest_name=name,
        rocksdb_manifest=content,
    )
    manifest_name = files.manifest_name(request.version)
    published = publish_manifest(files, manifest, distrusted)
    told = announcements.announced(files.storage, files.store.operator)
    if uploads is not None:
        uploads.clear()  # the manifest names them from now on
    named = {sst.key for sst in published.ssts}
    uploaded = {refs[file.name].key for file in plan.new}
    # Nobody else names what this publisher has uploaded.
    is_own = published is manifest or not named.isdisjoint(uploaded)
    if manifest.version <= told.erased_version:
        if is_own:  # the erasure may still read that of another publisher, and then deletes it
            _take_back(files, published)
        files.storage.delete(layout.store_key(files.store, key) for key in uploaded)
        raise erased(files.store, manifest.version)
    missing = _missing(files, published, told.condemned)
    if missing:
        if is_own:
            _take_back(files, published)
        if is_own and missing <= {sst.key for sst in plan.reused} - shunned:
            log.warning("store %s: uploading SSTs again that a sweep has condemned", files.store)
            return publish_snapshot(
                files,
                request,
                known,
                now_ms=now_ms,
                cache=cache,
                uploads=uploads,
                check_wanted=check_wanted,
                shunned=shunned | missing,
                distrusted=distrusted,
            )
        raise collected(files.store, manifest.version, len(missing))
    log.info(
        "snapshot published store=%s version=%d new_ssts=%d new_bytes=%d reused_ssts=%d"
        " reused_bytes=%d ms=%d",
        files.store,
        request.version.version,
        len(plan.new),
        plan.new_bytes,
        len(plan.reused),
        plan.reused_bytes,
        (time.monotonic() - started) * 1000,
    )
    local = tuple(
        LocalSst(refs[f.name], identities[f.name], manifest_name)
        for f in request.files
        if refs[f.name].key in named
    )
    return Published(manifest_name, plan, local)


def erased(store: StoreId, version: int) -> ConflictError:
    """Return the error for a snapshot of a version from which a key was erased."""
    return ConflictError(
        f"store {store}: a key was erased from version {version}",
        kind=ErrorKind.OBJECT_EXISTS,
        hint="Nothing: the next version gets a snapshot.",
    )


def read_rocksdb_manifest(db_checkpoint: str) -> tuple[str, bytes]:
    """Return the name and the content of the RocksDB manifest that `CURRENT` names.

    Raises: InvalidInputError, UnavailableError.
    """
    try:
        with open(os.path.join(db_checkpoint, "CURRENT"), encoding="ascii") as current:
            name = check_rocksdb_manifest_name(current.read().strip())
        with open(os.path.join(db_checkpoint, name), "rb") as file:
            return name, file.read()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, FormatError) as e:
        raise InvalidInputError(
            f"{db_checkpoint} is no RocksDB checkpoint: {e}", kind=ErrorKind.INVALID_ARGUMENT
        ) from e
    except OSError as e:
        raise translate_restored(e, f"reading {db_checkpoint}") from e


def _identities(request: SnapshotRequest) -> dict[str, FileIdentity]:
    identities: dict[str, FileIdentity] = {}
    for file in request.files:
        path = os.path.join(request.db_checkpoint, layout.check_local_sst_name(file.name))
        try:
            identity = identify(path)
        except FileNotFoundError as e:
            raise InvalidInputError(f"{path} is not there, and the snapshot names it") from e
        except OSError as e:
            raise translate_restored(e, f"reading {path}") from e
        if identity.size_bytes != file.size_bytes:
            raise InvalidInputError(
                f"{path} has {identity.size_bytes} bytes, the snapshot says {file.size_bytes}"
            )
        identities[file.name] = identity
    if len(identities) != len(request.files):
        raise InvalidInputError(f"{request.db_checkpoint}: the snapshot names an SST twice")
    return identities


def _protectors(
    files: StoreFiles, known: dict[FileIdentity, LocalSst]
) -> tuple[dict[str, frozenset[str]], dict[str, ParentSnapshot], dict[str, int]]:
    """Read those manifests that `known` relies on and that exist now.

    On an object storage a manifest that exists vouches for its SSTs, which saves a listing. That is
    safe: after publishing, `_missing` looks at every SST in any case.

    Returns: by name, the keys of the SSTs that each manifest names; by name, which snapshot it is;
    the sizes of the stored SSTs, by key.
    """
    names = {entry.manifest for entry in known.values()}
    if files.storage.local_path(layout.store_dir(files.store)) is None:
        parsed = {name: layout.parse_store_file(name) for name in names}
        candidates = {
            name: file.version
            for name, file in parsed.items()
            if isinstance(file, layout.ManifestFile)
        }
        stored: dict[str, int] | None = None
    else:
        files.refresh()
        present = {
            info.key.rpartition("/")[2]: version
            for version, info in files.listing.manifests.items()
        }
        candidates = {name: version for name, version in present.items() if name in names}
        stored = {key: info.size_bytes for key, info in files.listing.ssts.items()}
    protected: dict[str, frozenset[str]] = {}
    parents: dict[str, ParentSnapshot] = {}
    sizes: dict[str, int] = {}
    for name, version in sorted(candidates.items()):
        try:
            manifest = files.read_manifest(version)
        except (FormatError, NotFoundError) as e:
            # It is damaged or was just collected. It protects no SST, so its SSTs are uploaded
            # again.
            level = (
                logging.INFO if stored is None and isinstance(e, NotFoundError) else logging.WARNING
            )
            log.log(level, "store %s: cannot rely on %s for reuse: %s", files.store, name, e)
            continue
        protected[name] = frozenset(sst.key for sst in manifest.ssts)
        parents[name] = ParentSnapshot(manifest.version, manifest.id)
        sizes.update((sst.key, sst.size_bytes) for sst in manifest.ssts)
    return protected, parents, sizes if stored is None else stored


def _upload(
    files: StoreFiles, db_checkpoint: str, file: CheckpointSst, cache: SstCache | None
) -> SstRef:
    path = os.path.join(db_checkpoint, file.name)
    try:
        crc32 = file_crc32(path)
    except OSError as e:
        raise translate_restored(e, f"reading {path}") from e
    name = layout.new_sst_name()
    files.storage.put_file(layout.store_key(files.store, name), path, if_absent=True, link=True)
    ref = describe(file, name, crc32)
    if cache is not None:
        cache.add(ref, path)
    return ref


def _missing(files: StoreFiles, manifest: Manifest, doomed: frozenset[str]) -> frozenset[str]:
    """Return the keys of SSTs of `manifest` that a sweep has deleted or is about to delete.

    That happens if the upload took longer than the sweep's grace period.
    """
    files.refresh()
    return frozenset(
        sst.key
        for sst in manifest.ssts
        if sst.key not in files.listing.ssts or layout.store_key(files.store, sst.key) in doomed
    )


def _take_back(files: StoreFiles, manifest: Manifest) -> None:
    """Delete a manifest, unless somebody has replaced it."""
    name = files.manifest_name(manifest.version_id)
    try:
        if files.read_manifest(manifest.version_id) == manifest:
            files.storage.delete([layout.store_key(files.store, name)])
    except (FormatError, NotFoundError, UnsupportedError):
        return
    except MillpondError as e:
        log.error(
            "store %s: cannot take back %s, which names missing SSTs: %s", files.store, name, e
        )
