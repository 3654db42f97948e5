"""Looks up single keys in a state.

The package imports this module, and so every agent does. It imports what it needs when it is
called: that keeps agents quick to start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from millpond.storage.given import takes_options

Key = Mapping[str, object]
"""Columns of a key and their values; nested ones with dots, or as mappings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the rows of a key.

    since_batch: the version before it that was read; the key changed in a batch after that one, up
    to `batch`. None: this is the earliest version that was read, and `before` says nothing.
    savepoint: the savepoint that shows it; "": the Spark checkpoint itself.
    before, after: rows with `key` and `value`; empty: there was no such key.
    """

    batch: int
    at_ms: int  # when the batch began, since the epoch
    since_batch: int | None
    savepoint: str
    before: tuple[dict[str, Any], ...]
    after: tuple[dict[str, Any], ...]

    @property
    def what(self) -> str:
        """`first seen`, `new`, `changed`, `gone`, or `absent`: the earliest version has no row."""
        if self.since_batch is None:
            return "first seen" if self.after else "absent"
        return "gone" if not self.after else "changed" if self.before else "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHistory:
    """How a key changed.

    batches: those whose state was read, ascending. A batch in between is not retained.
    unreadable: batches that are damaged, with the reason.
    """

    path: str
    batches: tuple[int, ...]
    changes: tuple[Change, ...]
    unreadable: tuple[tuple[int, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: bytes in base64, times in ISO 8601."""
        from millpond.state.writing import plain  # start-up time: pyarrow

        changes = [{"what": change.what, **plain(asdict(change))} for change in self.changes]
        return {**asdict(self), "changes": changes}


class Lookup:
    """An open reader of a state as it was after one batch. It opens the store of a partition when
    the first key of that partition is asked for, and keeps it open. From a remote storage it
    fetches an SST when a key needs it; if the query has gone on and collected that one by then, the
    answer is an error. Use it in a `with` block, and by one thread at a time.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def batch(self) -> int:
        """The batch whose state answers."""
        number: int = self._reader.batch
        return number

    def get(self, key: Key) -> list[dict[str, Any]]:
        """Return the rows of a key, each with `partition`, `key` and `value`.

        A key with a list of values has a row for each. No row: the state has no such key. A time
        that Python has no value for, and a text that is no UTF-8, is as `millpond state get` shows
        it.

        Args:
            key: all columns of the key. Where keys are sorted by their first columns (entries of a
                map state, sessions, rows of a join in format 4), these alone will do: they mean
                all keys that begin with them. For the rows of a join in the other formats the
                join's own columns will do, without the number.
        Raises: InvalidInputError: INVALID_ARGUMENT: a column is missing or unknown, or a value is
            of another type. Others: as `millpond.read_state`.
        """
        from millpond.rows.readable import readable_rows  # start-up time: pyarrow

        return readable_rows(self.table([key]).to_batches())

    def table(self, keys: Sequence[Key]) -> Any:
        """Return the rows of several keys as a `pyarrow.Table`, in the order of `keys`.

        Its columns are those of `millpond.read_state`. Args, Raises: as `get`.
        """
        return self._reader.table(keys)

    def close(self) -> None:
        """Close the open stores."""
        self._reader.close()

    def __enter__(self) -> Lookup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@takes_options
def lookup(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    options: Mapping[str, object] | None = None,
) -> Lookup:
    """Return an open reader that looks up keys in the state of a query, as it was after a committed
    batch: `with millpond.lookup(path) as state: state.get({"user": 42})`.

    It finds the partition of a key by the key's hash, and reads the changelogs and the blocks of
    the snapshot of that store alone. `operator`, `store` and `column_family` may be left out if
    there is only one.

    Args: as for `millpond.read_state`.
    Raises: as `millpond.read_state`. UnsupportedError: UNSUPPORTED: a canonical savepoint.
    """
    from millpond.rows import require_tools  # start-up time

    require_tools()
    from millpond.state.glancing import open_for_lookups  # start-up time: pyarrow
    from millpond.state.key_reader import KeyReader
    from millpond.state.open_stores import OpenStores

    stores = OpenStores(open_for_lookups(path, batch, operator), whole=False)
    return Lookup(KeyReader(stores, operator, store, column_family))


@takes_options
def history(
    path: str | os.PathLike[str],
    *,
    key: Key | None = None,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    savepoint: Sequence[str | os.PathLike[str]] = (),
    options: Mapping[str, object] | None = None,
) -> KeyHistory:
    """Return how the rows of a key changed, over all batches whose state is retained.

    A query may run meanwhile. Each batch's state is read at the key alone; from batch to batch only
    what the changelog adds.

    Args:
        path: Spark checkpoint of a query, running or stopped, or a savepoint: path or URI.
        key: as for `Lookup.get`.
        operator, store, column_family: as `millpond.read_state`.
        savepoint: of the same query, which show it at earlier batches, too.
        options: as `millpond.read_state`.
    Raises: as `millpond.lookup`. InvalidInputError: INVALID_ARGUMENT: a savepoint is of another
        query.
    """
    from millpond.rows import require_tools  # start-up time

    require_tools()
    from millpond.state.key_history import Wanted, history_of  # start-up time: pyarrow

    return history_of(path, key or {}, Wanted(operator, store, column_family), savepoint)
