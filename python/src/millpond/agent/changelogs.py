"""Publish a changelog: the commit of a micro-batch in one store.

Every task waits for it, so it does little.
"""

from __future__ import annotations

import os

from millpond.agent.context import StoreContext, request_error
from millpond.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    NotFoundError,
    UnavailableError,
    error,
)
from millpond.format import layout
from millpond.model.ids import VersionId
from millpond.spark.metadata import newest_commit
from millpond.storage.growing import GrowingPut
from millpond.storage.local import sync_directory, translate, translate_restored
from millpond.store.files import read_changelog_header


def make_directory(context: StoreContext, staging_dir: str) -> None:
    """Create the staging directory. Where storage is local, it is the store's own directory, and
    durable: a power cut must not remove it from under a durable file. Elsewhere it is a folder in
    the shim's local one, which stays deleted if the store was closed meanwhile.
    """
    if context.directory is None:
        try:
            os.mkdir(staging_dir)
        except FileExistsError:
            pass
        except OSError as e:
            raise translate_restored(e, f"creating {staging_dir}") from e
        return
    missing: list[str] = []
    path = staging_dir
    try:
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:  # another store of the operator made it meanwhile
                continue
            finally:
                if context.fsync:
                    sync_directory(os.path.dirname(directory))
    except OSError as e:
        raise translate(e, f"creating {staging_dir}") from e


def check_staged(context: StoreContext, staged: str, local_dir: str) -> None:
    """Check that `staged` names a staging file of this store. Raises: InvalidInputError."""
    directory, name = os.path.split(staged)
    if directory != context.staging_dir(local_dir) or not isinstance(
        layout.parse_store_file(name), layout.StagingFile
    ):
        raise request_error("staged is no staging file of the store")


def publish_changelog(
    context: StoreContext,
    version: VersionId,
    staged: str,
    local_dir: str,
    begun: GrowingPut | None = None,
) -> str:
    """Make the staged file durable under its final name. Idempotent: if the staged file is gone, a
    look at the storage settles whether it was published.

    Args:
        begun: the put of this file that began while it grew.
    Returns: the path where the file can be read locally from now on.
    Raises:
        UnavailableError: STORAGE_*; the staged file is gone, and the version was not published.
        ConflictError: VERSION_COMMITTED.
        InvalidInputError: `staged` is not a staging file of this store.
    """
    check_staged(context, staged, local_dir)
    directory = os.path.dirname(staged)
    key = layout.changelog_key(context.store, version, context.spark_format)
    if context.directory is None:
        return _put(context, version, key, staged, begun)
    final = os.path.join(directory, layout.changelog_name(version, context.spark_format))
    try:
        try:
            descriptor = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _settle(context, version, key, final)
        try:
            if context.fsync:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if context.spark_format == 1 and os.path.exists(final):
            _check_not_committed(context, version)
        os.replace(staged, final)
        if context.fsync:
            sync_directory(directory)
    except OSError as e:
        raise translate(e, f"publishing {key}") from e
    return final


def _settle(context: StoreContext, version: VersionId, key: str, final: str) -> str:
    """Return the path of a staged file that is gone: an earlier call published it, or nobody ever
    did.
    """
    try:
        header = read_changelog_header(context.storage, key)
    except (NotFoundError, FormatError) as e:
        raise UnavailableError(
            f"store {context.store}: the staged changelog of version {version.version} is gone and"
            " was not published",
            kind=ErrorKind.STORAGE_UNAVAILABLE,
            hint=(
                "Somebody deleted files of the Spark checkpoint while the query ran. Bring it back"
                " from a copy or a savepoint; or start the query with a new checkpointLocation."
            ),
        ) from e
    if header.version_id != version:
        raise UnavailableError(
            f"store {context.store}: the staged changelog of version {version} is gone and {key} is"
            " by another attempt",
            kind=ErrorKind.STORAGE_UNAVAILABLE,
        )
    if context.fsync:
        # The earlier call may have died between its rename and its fsync.
        sync_directory(os.path.dirname(final))
    return final


def _check_not_committed(context: StoreContext, version: VersionId) -> None:
    """Check that a changelog of this version may be replaced. In Spark checkpoint format 1 all
    attempts of a batch have one name.

    Spark runs no batch again that is committed: this attempt is one that it gave up. What other
    versions are built on must stay. Who goes back takes the batch out of Spark's log before.

    Raises: ConflictError: VERSION_COMMITTED.
    """
    batch = version.version - 1
    if newest_commit(context.storage) >= batch:
        raise error(
            ErrorKind.VERSION_COMMITTED,
            f"store {context.store}: another attempt of batch {batch} is committed, this one comes"
            " too late",
        )


def _put(
    context: StoreContext, version: VersionId, key: str, staged: str, begun: GrowingPut | None
) -> str:
    """Upload to a storage without local paths. The staged file stays as the local copy."""
    if begun is None or not begun.finish():
        storage, shared = context.storage, context.spark_format == 1
        try:
            storage.put_file(key, staged, if_absent=shared)
        except ConflictError:
            _check_not_committed(context, version)
            storage.put_file(key, staged)
    return staged
