"""Give a manifest its name, of which there may be one only: where files are named by version alone, attempts share it."""

from __future__ import annotations

import logging

from millpond import layout
from millpond.committed import is_committed
from millpond.errors import ConflictError, ErrorKind, FormatError, NotFoundError, UnsupportedError
from millpond.ids import VersionId
from millpond.manifest import Manifest, encode_manifest
from millpond.store_files import StoreFiles

log = logging.getLogger(__name__)


def publish_manifest(files: StoreFiles, manifest: Manifest) -> None:
    """Write a manifest. Repeating it is harmless.

    In Spark checkpoint format 1 one that another attempt of the version wrote is replaced only if no restore would use it: what
    was older than it may have been collected since.

    Args:
        files: of the store; its listing is renewed where something stands in the way.
    Raises: ConflictError: OBJECT_EXISTS: a manifest stands there that is used, or this one would not be.
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
            f"store {files.store}: there is a snapshot of version {manifest.version} by another attempt",
            kind=ErrorKind.OBJECT_EXISTS,
            hint="Nothing: the next version gets a snapshot.",
        )
    if standing == manifest.id:
        files.storage.put_bytes(key, data)
        return
    log.info(
        "store %s: the snapshot of another attempt of version %d goes",
        files.store,
        manifest.version,
    )
    files.storage.delete([key])
    files.storage.put_bytes(key, data, if_absent=True)


def _standing_id(files: StoreFiles, version: VersionId) -> str | None:
    """The id of the manifest that is there; None: it is damaged, or just gone."""
    try:
        return files.read_manifest(version).id
    except (FormatError, NotFoundError, UnsupportedError):
        return None


def _is_used(files: StoreFiles, version: VersionId) -> bool:
    """Whether a restore would take the manifest with this id: the changelog of its version has the id too, or was collected
    because the manifest is there; or the next version, which is committed, was built on it."""
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
            "store %s: cannot tell which attempt of version %s counts: %s", files.store, version, e
        )
        return True
