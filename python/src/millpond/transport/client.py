"""What the user's code gets as its handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from millpond.transport.plain import is_plain
from millpond.transport.session import DELETE_TIMER, REGISTER_TIMER, Session
from millpond.transport.spark_names import Client
from millpond.transport.variables import BulkList, BulkMap, BulkValue, BulkVariable, Rows

_INT64 = 1 << 63


class Handle(StatefulProcessorHandle):
    """Gives out variables whose state travels in bulk where that is possible.

    Args:
        nulls: whether the store takes an array or a map with a null in it.
    """

    def __init__(
        self, client: Client, session: Session, time_mode: str, *, nulls: bool = True
    ) -> None:
        super().__init__(client)
        self._client = client
        self._session = session
        self._timed = time_mode.lower() != "none"
        self._nulls = nulls
        self.variables: list[BulkVariable] = []
        self.declared: list[tuple[str, str]] = []

    def _rows(self, schema: StructType) -> Rows:
        return Rows(schema, nulls=self._nulls)

    def _add(self, variable: BulkVariable, name: str) -> None:
        self.variables.append(variable)
        self.declared.append((variable.kind, name))

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        schema = self._client.schema(schema)
        spark = super().getValueState(stateName, schema, ttlDurationMs)
        if not is_plain(schema):
            return spark
        value = BulkValue(self._session, len(self.variables), spark, self._rows(schema))
        self._add(value, stateName)
        return value

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        schema = self._client.schema(schema)
        spark = super().getListState(stateName, schema, ttlDurationMs)
        if not is_plain(schema):
            return spark
        found = BulkList(self._session, len(self.variables), spark, self._rows(schema))
        self._add(found, stateName)
        return found

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        keys, values = self._client.schema(userKeySchema), self._client.schema(valueSchema)
        spark = super().getMapState(stateName, keys, values, ttlDurationMs)
        if not (is_plain(keys, as_key=True) and is_plain(values)):
            return spark
        rows = self._rows(keys), self._rows(values)
        found = BulkMap(self._session, len(self.variables), spark, *rows)
        self._add(found, stateName)
        return found

    def _noted(self, operation: int, time_ms: Any) -> bool:
        """Note a change of a timer; False: Spark must answer, because it may refuse."""
        if not (
            self._timed
            and self._session.key >= 0
            and type(time_ms) is int
            and -_INT64 <= time_ms < _INT64
        ):
            return False
        self._session.note(operation, time_ms)
        return True

    def registerTimer(self, expiryTimestampMs: int) -> None:
        if not self._noted(REGISTER_TIMER, expiryTimestampMs):
            super().registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        if not self._noted(DELETE_TIMER, expiryTimestampMs):
            super().deleteTimer(expiryTimestampMs)

    def beginnings(self, states: list[Any]) -> list[tuple[Callable[[Any], None], list[Any]]]:
        """Return of each variable what is called when a key begins, and with what for each key.

        Args:
            states: for each variable, of each key that came in a frame.
        """
        begins = [variable.begin for variable in self.variables]
        return list(zip(begins, states, strict=True))

    def begin_again(self, kept: list[Any]) -> None:
        """Begin a key whose state was left before."""
        for variable, state in zip(self.variables, kept, strict=True):
            variable.restore(state)

    def leave_keys(self) -> None:
        """Forget the last key's state: from now on Spark answers, and there is no key for it."""
        for variable in self.variables:
            variable.leave()

    def leave(self) -> list[Any]:
        """Return the current key's state, for `begin_again`."""
        return [variable.save() for variable in self.variables]
