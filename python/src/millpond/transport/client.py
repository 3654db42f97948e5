"""What the user's code gets as its handle, and Spark's client behind it without a socket."""

from __future__ import annotations

import io
from typing import Any

from pyspark.core.broadcast import Broadcast
from pyspark.serializers import CPickleSerializer, UTF8Deserializer
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.streaming.stateful_processor_api_client import (
    StatefulProcessorApiClient,
    StatefulProcessorHandleState,
)
from pyspark.sql.types import StructType

from millpond.transport.plain import is_plain
from millpond.transport.session import DELETE_TIMER, REGISTER_TIMER, Session
from millpond.transport.variables import BulkList, BulkMap, BulkValue, BulkVariable, Rows

_INT64 = 1 << 63


class Client(StatefulProcessorApiClient):
    """Spark's client, whose messages go with all others."""

    def __init__(self, session: Session, key_schema: StructType) -> None:
        # not Spark's own constructor: it connects a socket
        self._session = session
        self.key_schema = key_schema
        self.handle_state = StatefulProcessorHandleState.CREATED
        self.utf8_deserializer = UTF8Deserializer()  # type: ignore[no-untyped-call]
        self.pickleSer = CPickleSerializer()
        self.list_timer_iterator_cursors = {}
        self.expiry_timer_iterator_cursors = {}
        self._batch_timestamp = -1
        self._watermark_timestamp = -1
        self.sockfile = io.BytesIO()

    def _send_proto_message(self, message: bytes) -> None:
        self.sockfile = io.BytesIO(self._session.call(message))

    def remove_implicit_key(self) -> None:
        self._session.key = -1


class Handle(StatefulProcessorHandle):
    """Gives out variables whose state travels in bulk where that is possible."""

    def __init__(self, client: Client, session: Session, time_mode: str) -> None:
        super().__init__(client)
        self._client = client
        self._session = session
        self._timed = time_mode.lower() != "none"
        self.variables: list[BulkVariable] = []
        self.declared: list[tuple[str, str]] = []

    def _schema(self, schema: StructType | str) -> StructType:
        return self._client._parse_string_schema(schema) if isinstance(schema, str) else schema

    def _add(self, variable: BulkVariable, name: str) -> None:
        self.variables.append(variable)
        self.declared.append((variable.kind, name))

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        schema = self._schema(schema)
        spark = super().getValueState(stateName, schema, ttlDurationMs)
        if not is_plain(schema):
            return spark
        value = BulkValue(self._session, len(self.variables), spark, Rows(schema))
        self._add(value, stateName)
        return value

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        schema = self._schema(schema)
        spark = super().getListState(stateName, schema, ttlDurationMs)
        if not is_plain(schema):
            return spark
        found = BulkList(self._session, len(self.variables), spark, Rows(schema))
        self._add(found, stateName)
        return found

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        keys, values = self._schema(userKeySchema), self._schema(valueSchema)
        spark = super().getMapState(stateName, keys, values, ttlDurationMs)
        if not (is_plain(keys, as_key=True) and is_plain(values)):
            return spark
        found = BulkMap(self._session, len(self.variables), spark, Rows(keys), Rows(values))
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

    def begin(self, number: int, states: list[Any], at: int) -> None:
        """Begin a key whose state came along as number `at` of its frame."""
        self._session.key = number
        for variable, values in zip(self.variables, states, strict=True):
            variable.begin(values[at])

    def begin_again(self, number: int, kept: list[Any]) -> None:
        """Begin a key whose state was left before."""
        self._session.key = number
        for variable, state in zip(self.variables, kept, strict=True):
            variable.restore(state)

    def leave(self) -> list[Any]:
        """Return the current key's state, for `begin_again`."""
        return [variable.save() for variable in self.variables]


def loads_command(command: bytes) -> tuple[Any, StructType]:
    """Return the user's function, and the type of its results."""
    serializer = CPickleSerializer()
    found = serializer.loads(command)  # type: ignore[no-untyped-call]
    if isinstance(found, Broadcast):  # Spark broadcasts large commands
        found = serializer.loads(found.value)  # type: ignore[no-untyped-call]
    function, return_type = found
    return function, return_type
