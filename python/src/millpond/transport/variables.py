"""State variables whose values came along with the rows of their key.

Each has the same variable of Spark's behind it, which works by calls. It is asked for what did not
come along, and for values that `plain` does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import StructType

from millpond.transport import session as ops
from millpond.transport.plain import Value, checker, comes_back_as_written, is_sized, reader
from millpond.transport.session import VARIABLES, Session

# More entries of one key are not kept here.
_MOST_ENTRIES = 4096
_ELSEWHERE: Any = object()


def _normalized(value: Any) -> Any:
    """Return what Spark makes of numbers of NumPy and times of pandas before it pickles them."""
    if isinstance(value, np.generic):
        return value.tolist()
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


class Rows:
    """Rows of one schema: what users write, what is kept, what users read.

    Attributes:
        read_again: whether users may read what is kept of a value that they wrote.
        sized: whether some values are larger than others.
    """

    def __init__(self, schema: StructType, *, nulls: bool = True) -> None:
        self.check = checker(schema, nulls=nulls)
        self.read_again = comes_back_as_written(schema)
        self.sized = is_sized(schema)
        self.read = reader(schema)
        self._named = Row(*schema.names)

    def known(self, value: Any) -> Value | None:
        """Return the pickled form of `value`; None: only Spark knows it."""
        if not isinstance(value, (tuple, list)):
            return None
        return self.check(tuple(map(_normalized, value)))

    def known_list(self, values: Any) -> list[Value] | None:
        """Return the pickled forms of at least one value; None: only Spark knows one of them."""
        if type(values) is not list or not values:
            return None
        found = []
        for value in values:
            one = self.check(value)
            if one is None:
                one = self.known(value)
                if one is None:
                    return None
            found.append(one)
        return found

    def shown(self, value: Value) -> Value:
        return value if self.read is None else self.read(value)

    def row(self, value: Value) -> Row:
        """Return what users see with the names of its columns."""
        return self._named(*self.shown(value))


class BulkValue(ValueState):
    """A value state."""

    kind = "value"

    def __init__(self, session: Session, number: int, spark: ValueState, rows: Rows) -> None:
        self._session = session
        self._spark = spark
        self._rows = rows
        self._check = rows.check
        self._note = session.note_sized if rows.sized else session.note
        self._value: Any = _ELSEWHERE
        self._update_code = number * VARIABLES + ops.UPDATE
        self._clear_code = number * VARIABLES + ops.CLEAR

    def begin(self, value: Value | None) -> None:
        """Take over the value of a key; None: it has none."""
        self._value = value

    def save(self) -> Any:
        """Return the key's state, for `restore`."""
        return self._value

    def restore(self, state: Any) -> None:
        """Take over what `save` returned."""
        self._value = state

    def leave(self) -> None:
        """Let Spark answer until a key begins."""
        self._value = _ELSEWHERE

    def exists(self) -> bool:
        if self._value is _ELSEWHERE:
            return self._spark.exists()
        return self._value is not None

    def get(self) -> Value | None:
        value = self._value
        if value is _ELSEWHERE:
            return self._spark.get()
        found: Value | None = value
        return found if found is None or self._rows.read is None else self._rows.read(found)

    def update(self, newValue: Value) -> None:
        known = self._check(newValue)
        if known is None:
            known = self._rows.known(newValue)
        if known is None or self._session.key < 0:
            self._spark.update(newValue)
            self._value = _ELSEWHERE
        else:
            self._note(self._update_code, known)
            self._value = known if self._rows.read_again else _ELSEWHERE

    def clear(self) -> None:
        if self._session.key < 0:
            self._spark.clear()
        else:
            self._session.note(self._clear_code, None)
            self._value = None


class BulkList(ListState):
    """A list state. Long lists stay in the store."""

    kind = "list"

    def __init__(self, session: Session, number: int, spark: ListState, rows: Rows) -> None:
        self._session = session
        self._spark = spark
        self._rows = rows
        self._values: list[Value] | None = None
        self._code = number * VARIABLES
        self._note_value = session.note_sized if rows.sized else session.note

    def begin(self, values: list[Value] | None) -> None:
        """Take over the list of a key; None: it is too long."""
        self._values = values

    def save(self) -> Any:
        """Return the key's state, for `restore`."""
        return self._values

    def restore(self, state: Any) -> None:
        """Take over what `save` returned."""
        self._values = state

    def leave(self) -> None:
        """Let Spark answer until a key begins."""
        self._values = None

    def exists(self) -> bool:
        return self._spark.exists() if self._values is None else bool(self._values)

    def get(self) -> Iterator[Value]:
        # a generator, because Spark's iterator looks at the store when it is first asked
        if self._values is None:
            yield from self._spark.get()
        elif self._rows.read is None:
            yield from tuple(self._values)
        else:
            yield from map(self._rows.read, tuple(self._values))

    def _note(self, operation: int, change: Any) -> None:
        # a list has any length
        note = self._session.note_sized if type(change) is list else self._note_value
        note(self._code + operation, change)
        if self._values and not (self._rows.read_again and len(self._values) <= _MOST_ENTRIES):
            self._values = None

    def put(self, newState: list[Value]) -> None:
        known = self._rows.known_list(newState)
        if known is None or self._session.key < 0:
            self._spark.put(newState)
            self._values = None
        else:
            self._values = list(known)
            self._note(ops.PUT, known)

    def appendValue(self, newState: Value) -> None:
        known = self._rows.check(newState)
        if known is None:
            known = self._rows.known(newState)
        if known is None or self._session.key < 0:
            self._spark.appendValue(newState)
            self._values = None
        else:
            if self._values is not None:
                self._values.append(known)
            self._note(ops.APPEND, known)

    def appendList(self, newState: list[Value]) -> None:
        known = self._rows.known_list(newState)
        if known is None or self._session.key < 0:
            self._spark.appendList(newState)
            self._values = None
        else:
            if self._values is not None:
                self._values.extend(known)
            self._note(ops.APPEND_LIST, known)

    def clear(self) -> None:
        if self._session.key < 0:
            self._spark.clear()
        else:
            self._values = []
            self._note(ops.CLEAR, None)


class BulkMap(MapState):
    """A map state. Large maps stay in the store.

    The store alone knows where a new entry comes in its order, so it is asked for the entries of
    a map that got one.
    """

    kind = "map"

    def __init__(
        self, session: Session, number: int, spark: MapState, keys: Rows, values: Rows
    ) -> None:
        self._session = session
        self._spark = spark
        self._keys = keys
        self._rows = values
        self._entries: dict[Value, Value] | None = None
        self._in_order = True
        self._code = number * VARIABLES
        self._note = session.note_sized if keys.sized or values.sized else session.note

    def begin(self, entries: list[tuple[Value, Value]] | None) -> None:
        """Take over the map of a key; None: it is too large."""
        self._entries = None if entries is None else dict(entries)
        self._in_order = True

    def save(self) -> Any:
        """Return the key's state, for `restore`."""
        return self._entries, self._in_order

    def restore(self, state: Any) -> None:
        """Take over what `save` returned."""
        self._entries, self._in_order = state

    def leave(self) -> None:
        """Let Spark answer until a key begins."""
        self._entries = None

    def _known_key(self, key: Any) -> Value | None:
        found = self._keys.check(key)
        return self._keys.known(key) if found is None else found

    def exists(self) -> bool:
        return self._spark.exists() if self._entries is None else bool(self._entries)

    def getValue(self, key: Value) -> Any:
        known = None if self._entries is None else self._known_key(key)
        if known is None:
            return self._spark.getValue(key)
        assert self._entries is not None
        value = self._entries.get(known)
        return None if value is None else self._rows.row(value)

    def containsKey(self, key: Value) -> bool:
        known = None if self._entries is None else self._known_key(key)
        if known is None:
            return self._spark.containsKey(key)
        assert self._entries is not None
        return known in self._entries

    def updateValue(self, key: Value, value: Value) -> None:
        known_key = self._known_key(key)
        known = self._rows.check(value)
        if known is None:
            known = self._rows.known(value)
        if known_key is None or known is None or self._session.key < 0:
            self._spark.updateValue(key, value)
            self._entries = None
            return
        if self._entries is not None:
            if known_key not in self._entries:
                self._in_order = False
            self._entries[known_key] = known
            if not self._rows.read_again or len(self._entries) > _MOST_ENTRIES:
                self._entries = None
        self._note(self._code + ops.UPDATE_ENTRY, (known_key, known))

    def _ordered(self) -> tuple[tuple[Value, Value], ...] | None:
        if self._entries is None or not self._in_order:
            return None
        return tuple(self._entries.items())

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        entries = self._ordered()
        if entries is None:
            yield from self._spark.iterator()
        else:
            for key, value in entries:
                yield self._keys.shown(key), self._rows.shown(value)

    def keys(self) -> Iterator[Value]:
        entries = self._ordered()
        if entries is None:
            yield from self._spark.keys()
        else:
            for key, _ in entries:
                yield self._keys.shown(key)

    def values(self) -> Iterator[Value]:
        entries = self._ordered()
        if entries is None:
            yield from self._spark.values()
        else:
            for _, value in entries:
                yield self._rows.shown(value)

    def removeKey(self, key: Value) -> None:
        known = self._known_key(key)
        if known is None or self._session.key < 0:
            self._spark.removeKey(key)
            self._entries = None
        else:
            if self._entries is not None:
                self._entries.pop(known, None)
            self._note(self._code + ops.REMOVE_ENTRY, known)

    def clear(self) -> None:
        if self._session.key < 0:
            self._spark.clear()
        else:
            self._entries, self._in_order = {}, True
            self._session.note(self._code + ops.CLEAR, None)


BulkVariable = BulkValue | BulkList | BulkMap
