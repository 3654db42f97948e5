"""Write a manifest under its name.

Only one manifest can have a name. Where files are named by version alone, the attempts of a version
compete for it.
"""

from __future__ import annotations

import logging

from millpond.errors import ConflictError, ErrorKind, FormatError, NotFoundError, UnsupportedError
from millpond.format import layout
from millpond.format.manifest import Manifest, encode_manifest
from millpond.model.ids import VersionId
from millpond.store.committed import is_committed
from millpond.store.files import StoreFiles

log = logging.getLogger(__name__)


def publish_manifest(files: StoreFiles, manifest: Manifest) -> None:
    """Write a manifest. Repeating it is harmless.

    In Spark checkpoint format 1 another attempt of the version may have taken the name. Its
    manifest is replaced only if no restore would use it: changelogs below a manifest that is used
    may have been collected.

    Args:
        files: of the store; listed again if the name is taken.
    Raises: ConflictError: OBJECT_EXISTS: restores use the manifest that has the name, or would not
        use this one.
    """
    key, data = (
        layout.manifest_key(files.store, manifest.version_id, files.spark_format),
        encode_manifest(manifest),
    )
    if files.exact_ids:
        files.storage.put_bytes(key, data)
        return
    try:
        files.storage.put_bytes(key, data, if_absent=True)
        return
    except ConflictError:
        files.refresh()
    standing = _standing_id(files, manifest.version_id)
    if not _is_used(files, manifest.version_id) or (
        standing not in (None, manifest.id)
        and _is_used(files, VersionId(manifest.version, standing or ""))
    ):
        raise ConflictError(
            f"store {files.store}: another attempt of version {manifest.version} has published its"
            " snapshot",
            kind=ErrorKind.OBJECT_EXISTS,
            hint="Nothing: the next version gets a snapshot.",
        )
    if standing == manifest.id:
        files.storage.put_bytes(key, data)
        return
    log.info(
        "store %s: removing the snapshot of another attempt of version %d",
        files.store,
        manifest.version,
    )
    files.storage.delete([key])
    files.storage.put_bytes(key, data, if_absent=True)


def _standing_id(files: StoreFiles, version: VersionId) -> str | None:
    """Return the id of the manifest that has the name; None: it is damaged, or has just gone."""
    try:
        return files.read_manifest(version).id
    except (FormatError, NotFoundError, UnsupportedError):
        return None


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
