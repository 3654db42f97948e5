"""Whether the driver has committed a version of a store, and has not gone back behind it."""

from __future__ import annotations

from millpond.errors import NotFoundError
from millpond.format import spark_names
from millpond.model.ids import StoreId, VersionId
from millpond.spark.log_entries import parse_commit
from millpond.storage import Storage, is_there


def is_committed(storage: Storage, store: StoreId, version: VersionId, spark_format: int) -> bool:
    """Return whether the commit log names `version` (in Spark checkpoint format 2: with its id).

    Every version counts where there is no query, hence no commit log: nobody can go back. That is a
    provider that a test drives.

    Raises: FormatError: the entry is damaged.
    """
    batch = version.version - 1
    try:
        commit = parse_commit(
            storage.read(spark_names.commits_key(batch)).decode("utf-8", "replace"), batch
        )
    except NotFoundError:
        return not is_there(storage, spark_names.QUERY_METADATA_KEY)
    return spark_format < 2 or version.id in commit.ids_of(store.operator, store.partition)
