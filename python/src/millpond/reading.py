"""State as a table, without Spark. Imported with the package, by every agent too: what it needs is imported when it is called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.state.tables import Keys


def read_state(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    keys: Keys | None = None,
    raw: bool = False,
    spark: Any = None,
) -> Any:
    """Return the state that a query keeps, as it was after a committed batch, as a `pyarrow.Table`, or as a DataFrame of `spark`.

    Its columns: `partition`; `key` and `value`, structs with the columns that Spark's own source `statestore` shows. A key with a list
    of values has a row for each. What is not named must be the only one there is.

    Args:
        path: Spark checkpoint of a query, running or stopped, or a native savepoint: path or URI.
        operator: number, or name (`stateStoreSave`), as `millpond checkpoint show` prints them.
        store: name; a stream-stream join has four in its default format.
        column_family: name of a state variable of transformWithState, or of a part of a join in the formats 3 and 4.
        batch: a committed batch whose state is retained; None: the last one.
        keys: only these: a mapping of key columns to values, `{"k": "a"}` (a part of them is enough; nested ones by `"key.k"`), a list of
            such, or a `pyarrow.Table` with all key columns.
        raw: add `key_bytes` and `value_bytes`: what the store holds, without the key group.
        spark: a SparkSession, for state too large for one machine: a task reads each partition when the DataFrame is used, on executors
            that have the extra `tools` too and reach `path`. The files must be there until then: read a savepoint, or a recent batch.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT; OPERATOR_UNKNOWN; INVALID_ARGUMENT: no such store, column family or key column, or several
            to choose from.
        NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED. FormatError: a file is damaged.
        UnsupportedError: FOREIGN_CHECKPOINT; UNSUPPORTED: the extra `tools` is not installed.
    """
    from millpond.rows import require_tools

    require_tools()
    from millpond.state import tables

    if spark is not None:
        return tables.read_with_spark(
            spark,
            path,
            operator=operator,
            store=store,
            column_family=column_family,
            batch=batch,
            keys=keys,
            raw=raw,
        )
    return tables.read_state(
        path,
        operator=operator,
        store=store,
        column_family=column_family,
        batch=batch,
        keys=keys,
        raw=raw,
    )
