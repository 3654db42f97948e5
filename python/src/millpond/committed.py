"""Whether the driver has committed a version of a store, and still stands by it."""

from __future__ import annotations

from millpond import layout
from millpond.errors import NotFoundError
from millpond.ids import StoreId, VersionId
from millpond.spark_metadata import parse_commit
from millpond.storage import Storage


def is_committed(storage: Storage, store: StoreId, version: VersionId, spark_format: int) -> bool:
    """Return whether the commit log names `version`, in Spark checkpoint format 2 by its id.

    Without a query (a provider driven by a test) there is no log, and nobody to go back: then every version counts.

    Raises: FormatError: the entry is damaged.
    """
    batch = version.version - 1
    try:
        commit = parse_commit(
            storage.read(layout.commits_key(batch)).decode("utf-8", "replace"), batch
        )
    except NotFoundError:
        return not _is_query(storage)
    return spark_format < 2 or version.id in commit.ids_of(store.operator, store.partition)


def _is_query(storage: Storage) -> bool:
    try:
        storage.stat(layout.QUERY_METADATA_KEY)
    except NotFoundError:
        return False
    return True
