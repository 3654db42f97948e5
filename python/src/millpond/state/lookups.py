"""Looks up single keys in a state.

The package imports this module, and so every agent does. It imports what it needs when it is
called: that keeps agents quick to start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

Key = Mapping[str, object]
"""Columns of a key and their values; nested ones with dots, or as mappings."""


class Lookup:
    """An open reader of a state as it was after one batch. It opens the store of a partition when
    the first key of that partition is asked for, and keeps it open. Use it in a `with` block, and
    by one thread at a time.
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

        A key with a list of values has a row for each. No row: the state has no such key.

        Args:
            key: all columns of the key. Where keys are sorted by their first columns (entries of a
                map state, sessions, rows of a join in format 4), these alone will do: they mean
                all keys that begin with them.
        Raises: InvalidInputError: INVALID_ARGUMENT: a column is missing or unknown, or a value is
            of another type. Others: as `millpond.read_state`.
        """
        rows: list[dict[str, Any]] = self.table([key]).to_pylist(maps_as_pydicts=None)
        return rows

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


def lookup(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
) -> Lookup:
    """Return an open reader that looks up keys in the state of a query, as it was after a committed
    batch: `with millpond.lookup(path) as state: state.get({"user": 42})`.

    It finds the partition of a key by the key's hash, and reads the changelogs and the blocks of
    the snapshot of that store alone. `operator`, `store` and `column_family` may be left out if
    there is only one.

    Args: as `millpond.read_state`.
    Raises: as `millpond.read_state`. UnsupportedError: UNSUPPORTED: a canonical savepoint.
    """
    from millpond.rows import require_tools  # start-up time

    require_tools()
    from millpond.state.key_reader import KeyReader  # start-up time: pyarrow
    from millpond.state.open_stores import OpenStores
    from millpond.state.selection import open_state

    stores = OpenStores(open_state(path, batch))
    return Lookup(KeyReader(stores, operator, store, column_family))
