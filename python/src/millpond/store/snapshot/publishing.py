"""Write a manifest under its name.

Only one manifest can have a name. Publishers of the same snapshot compete for it, and where files
are named by version alone, the attempts of a version do.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from millpond.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.format import layout
from millpond.format.manifest import Manifest, encode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.store.committed import is_committed
from millpond.store.files import StoreFiles

log = logging.getLogger(__name__)


def publish_manifest(
    files: StoreFiles, manifest: Manifest, distrusted: Collection[str] = ()
) -> Manifest:
    """Write a manifest, if its name has none that serves. Repeating it is harmless.

    A manifest of the same id has the same rows. If its SSTs are there, it stays: changelogs may
    have been collected because it is there, and what only this one names may have been swept.

    In Spark checkpoint format 1 another attempt of the version may have taken the name. Its
    manifest is replaced only if no restore would use it, for the same reason.

    Args:
        files: of the store; listed again if the name is taken.
        distrusted: names of manifests that turned out to be unusable. They are replaced.
    Returns: the manifest that has the name now.
    Raises:
        ConflictError: OBJECT_EXISTS: restores use the manifest that has the name, or would not use
            this one.
        UnavailableError: the name is taken, and an SST of this manifest was collected.
    """
    name = files.manifest_name(manifest.version_id)
    key, data = layout.store_key(files.store, name), encode_manifest(manifest)
    try:
        files.storage.put_bytes(key, data, if_absent=True)
        return manifest
    except ConflictError:
        files.refresh()
    standing = _standing(files, manifest.version_id)
    if standing == manifest:
        return manifest  # this put has made it, and the answer was lost
    is_other = standing is not None and standing.id != manifest.id
    if not files.exact_ids and (
        not _is_used(files, manifest.version_id)
        or (standing is not None and is_other and _is_used(files, standing.version_id))
    ):
        raise ConflictError(
            f"store {files.store}: another attempt of version {manifest.version} has published its"
            " snapshot",
            kind=ErrorKind.OBJECT_EXISTS,
            hint="Nothing: the next version gets a snapshot.",
        )
    if (
        standing is not None
        and not is_other
        and name not in distrusted
        and _is_whole(files, standing)
    ):
        log.info("store %s: %s is there already", files.store, name)
        return standing
    missing = sum(sst.key not in files.listing.ssts for sst in manifest.ssts)
    if missing:
        raise collected(files.store, manifest.version, missing)
    log.info("store %s: removing %s, which no restore uses", files.store, name)
    files.storage.delete([key])
    files.storage.put_bytes(key, data, if_absent=True)
    return manifest


def collected(store: StoreId, version: int, ssts: int) -> UnavailableError:
    """Return the error for a snapshot that took so long that SSTs of it were collected."""
    return UnavailableError(
        f"store {store}: {ssts} SSTs were collected before the snapshot of version {version} was"
        " published",
        kind=ErrorKind.STORAGE_UNAVAILABLE,
        hint="Raise the option gc.graceMs above the time that one snapshot takes.",
    )


def _standing(files: StoreFiles, version: VersionId) -> Manifest | None:
    """Return the manifest that has the name; None: it is damaged, or has just gone."""
    try:
        return files.read_manifest(version)
    except (FormatError, NotFoundError, UnsupportedError):
        return None


def _is_whole(files: StoreFiles, manifest: Manifest) -> bool:
    try:
        files.check_ssts(manifest)
    except (FormatError, NotFoundError):
        return False
    return True


def _is_used(files: StoreFiles, version: VersionId) -> bool:
    """Whether a restore would take the manifest with this id.

    It does if the changelog of the version has the same id, or was collected because the manifest
    is there. It also does if the next version is committed and was built on this id.
    """
    try:
        if not files.has_changelog(version) or files.header(version).id == version.id:
            return True
        above = VersionId(version.version + 1)
        return (
            files.has_changelog(above)
            and files.header(above).lineage[-1] == version.id
            and is_committed(files.storage, files.store, above, files.spark_format)
        )
    except (FormatError, NotFoundError, UnsupportedError) as e:
        log.warning(
            "store %s: cannot tell which attempt of version %s restores use: %s",
            files.store,
            version,
            e,
        )
        return True
