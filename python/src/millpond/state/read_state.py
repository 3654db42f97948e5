"""State as a table, without Spark.

The package imports this module, and so every agent does. It imports what it needs when it is
called:
that keeps agents quick to start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from millpond.storage.given import takes_options

Keys = Mapping[str, object] | Sequence[Mapping[str, object]] | Any
"""Which keys: columns and values; several of these; or a `pyarrow.Table` with all key columns."""


@takes_options
def read_state(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    keys: Keys | None = None,
    raw: bool = False,
    limit: int | None = None,
    join_names: bool = False,
    spark: Any = None,
    options: Mapping[str, object] | None = None,
) -> Any:
    """Return the state that a query keeps, as it was after a committed batch: a `pyarrow.Table`, or
    with `spark` a DataFrame.

    Its columns are `partition`, `key` and `value`. The last two are structs with the columns that
    Spark's own source `statestore` shows. A key with a list of values has a row for each value.
    `operator`, `store` and `column_family` may be left out if there is only one.

    Args:
        path: Spark checkpoint of a query, running or stopped, or a savepoint: path or URI.
        operator: number, or name (`stateStoreSave`), as `millpond checkpoint show` prints them.
        store: name; a stream-stream join has four in its default format.
        column_family: name of a state variable of transformWithState, or of a part of a join in the
            formats 3 and 4.
        batch: a committed batch whose state is retained; None: the last one.
        keys: return only these: a mapping of key columns to values, `{"k": "a"}` (some of the
            columns are enough; nested ones are `"key.k"`), a list of such mappings, or a
            `pyarrow.Table` with all key columns. A column of a join's key has both of its names.
        raw: add `key_bytes` and `value_bytes`: what the store holds, without the key group.
        join_names: name the columns of a join's key as its inputs do, `order_id`, as far as the
            rows tell; False: as Spark stores them, `field0`. Not with `spark`.
        limit: return at most this many rows, whichever come first; None: all.
        spark: a SparkSession, for state too large for one machine. Then a task reads each partition
            when the DataFrame is used. The executors need the extra `tools` and must reach `path`.
            The files must be there until then: read a savepoint, or a recent batch.
        options: of the storage by name, `{"storage.s3.endpoint": "http://host:9000"}`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT; OPERATOR_UNKNOWN; INVALID_ARGUMENT: there is no such
            store, column family or key column, or there are several to choose from.
        NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED.
        FormatError: a file is damaged.
        UnsupportedError: FOREIGN_CHECKPOINT; UNSUPPORTED: the extra `tools` is not installed.
    """
    from millpond.rows import require_tools  # start-up time

    require_tools()
    from millpond.errors import InvalidInputError
    from millpond.state import tables  # start-up time: pyarrow

    chosen: dict[str, Any] = {
        "operator": operator,
        "store": store,
        "column_family": column_family,
        "batch": batch,
        "keys": keys,
        "raw": raw,
        "limit": limit,
    }
    if spark is not None:
        if join_names:
            raise InvalidInputError(
                "join_names goes without spark", hint="Leave out join_names, or spark."
            )
        from millpond.state.with_spark import read_with_spark  # start-up time: pyarrow

        return read_with_spark(spark, path, **chosen)
    return tables.read_state(path, join_names=join_names, **chosen)


@takes_options
def blame(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    keys: Keys | None = None,
    limit: int | None = None,
    options: Mapping[str, object] | None = None,
) -> Any:
    """Return which batch last wrote each row of a state: a `pyarrow.Table`.

    Its columns are `partition`; `key`, a struct; `batch`, the number of the batch, and `began`, its
    time; null if the row is older than the changelogs that are kept; and `not_after`: the batch, or
    the newest one that it can be. A value that a batch wrote again as it was is no change.

    Args:
        path: Spark checkpoint of a query, running or stopped, or a savepoint of the format native:
            path or URI. A savepoint has few changelogs.
        operator, store, column_family, keys: as for `read_state`.
        batch: the state after a committed batch; None: the last one.
        limit: return at most this many rows, whichever come first; None: all.
        options: as for `read_state`.
    Raises: as `read_state`; UnsupportedError: UNSUPPORTED: a canonical savepoint.
    """
    from millpond.rows import require_tools  # start-up time

    require_tools()
    from millpond.state import touches  # start-up time: pyarrow

    return touches.blamed(
        path,
        operator=operator,
        store=store,
        column_family=column_family,
        batch=batch,
        keys=keys,
        limit=limit,
    )
