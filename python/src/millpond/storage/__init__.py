"""Where Spark checkpoints live: the only door to them."""

from __future__ import annotations

import os

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format.roots import RootUri, local_root, parse_root
from millpond.storage.base import ObjectInfo, Storage, is_there, read_if_there
from millpond.storage.given import given
from millpond.storage.local import LocalStorage
from millpond.storage.memory import MemoryStorage
from millpond.storage.place import place_to_read, settle_place
from millpond.storage.same_place import real_root
from millpond.storage.settings import StorageSettings
from millpond.storage.split import SplitStorage

__all__ = [
    "LocalStorage",
    "MemoryStorage",
    "ObjectInfo",
    "Storage",
    "StorageSettings",
    "is_there",
    "open_checkpoint",
    "open_root",
    "open_storage",
    "read_if_there",
    "real_root",
    "root_of",
]


def open_storage(root_uri: str, settings: StorageSettings | None = None) -> Storage:
    """Return the storage at `root_uri`. Opens nothing, and does not look whether it exists.

    Args:
        root_uri: `file:/x`, `file:///x`, an absolute path, `s3://bucket/prefix`,
            `s3a://bucket/prefix`; else what Hadoop reaches through a JVM (`hdfs:`, `gs:`, `abfs:`;
            `abfs:` without, if obstore is installed).
        settings: how to reach it; None: as the running call was told (`given`).
    Raises:
        UnsupportedError: STORAGE_UNSUPPORTED: this version cannot write to the scheme.
        InvalidInputError: INVALID_ARGUMENT: no absolute path or URI, or one too long for S3.
    """
    settings = given().settings if settings is None else settings
    uri = parse_root(root_uri)
    if uri.scheme in ("s3", "s3a"):
        return _s3(uri, settings)
    if uri.scheme != "file":
        # Start-up time: few agents need these.
        from millpond.storage.azure import open_azure
        from millpond.storage.hadoop import HadoopStorage

        return open_azure(uri, settings) or HadoopStorage(uri)
    return LocalStorage(local_root(root_uri), fsync=settings.fsync)


def open_checkpoint(
    root_uri: str, settings: StorageSettings | None = None, *, writable: bool = False
) -> Storage:
    """Return the storage of the Spark checkpoint or savepoint at `root_uri`.

    The state of a Spark checkpoint may be elsewhere (option storage.uri). A savepoint always holds
    its own.

    Args:
        settings: as for `open_storage`.
        writable: True: write down where the state of a new Spark checkpoint goes.
    Raises: MillpondError: as `open_storage`; STORAGE_MOVED; or the Spark checkpoint's storage
        fails.
    """
    settings = given().settings if settings is None else settings
    spark = open_storage(root_uri, settings)
    place = settle_place(spark, settings.uri, root_uri) if writable else place_to_read(spark)
    return spark if place is None else SplitStorage(spark, open_storage(place, settings))


def _s3(uri: RootUri, settings: StorageSettings) -> Storage:
    # Start-up time: only jobs with state on S3 need these.
    from millpond.storage.retry import Retry
    from millpond.storage.s3 import S3Storage
    from millpond.storage.s3_client import shared_client

    if not uri.authority:
        raise InvalidInputError(
            f"no bucket in {uri.scheme}://{uri.path}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Write s3://bucket/prefix.",
        )
    of_bucket = settings.s3_of(uri.authority)
    client = shared_client(uri.authority, of_bucket)
    retry = Retry(settings.deadline_ms, pace=client.pace)
    return S3Storage(uri.authority, uri.path.strip("/"), of_bucket, retry=retry, client=client)


def open_root(location: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return the storage at `location`, and its absolute name.

    Args:
        location: as a user types it: a URI, or a path relative to the working directory.
    Raises: as `open_checkpoint`.
    """
    root = root_of(location)
    return open_checkpoint(root), root


def root_of(location: str | os.PathLike[str]) -> str:
    """Return `location` as a URI or an absolute path.

    Args:
        location: as a user types it: a URI, or a path relative to the working directory.
    Raises: InvalidInputError: INVALID_ARGUMENT: it is neither, or empty.
    """
    text = os.fspath(location)
    # A shell makes it of a variable that is unset, and `abspath` of it the working directory.
    if not text.strip():
        raise InvalidInputError(
            "the path of a Spark checkpoint or savepoint is empty",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name it; for the working directory write a dot.",
        )
    root = text if ":" in text.partition("/")[0] else os.path.abspath(text)
    parse_root(root)
    return root
