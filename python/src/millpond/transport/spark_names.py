"""What Millpond uses of PySpark that is not public; `spark_pandas.py` has what needs pandas.

Importing it fails where PySpark has not got one of these, and Spark's own transport runs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.serializers import CPickleSerializer, UTF8Deserializer
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.stateful_processor_api_client import (
    StatefulProcessorApiClient,
    StatefulProcessorHandleState,
)
from pyspark.sql.types import StructType
from pyspark.util import fail_on_stopiteration

from millpond.transport.session import Session

__all__ = [
    "Client",
    "Command",
    "StatefulProcessorHandleState",
    "arrow_schema",
    "fail_on_stopiteration",
    "row_maker",
    "unpickled_function",
]


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

    def set_handle_state(self, state: StatefulProcessorHandleState) -> None:
        # The JVM does the same to its handle when it gets the frame that ends a phase.
        self.handle_state = state

    def remove_implicit_key(self) -> None:
        self._session.key = -1

    def schema(self, schema: StructType | str) -> StructType:
        """Return a schema that a user gave."""
        return self._parse_string_schema(schema) if isinstance(schema, str) else schema


def unpickled_function(command: bytes) -> Any:
    """Return the user's function and the type of its results."""
    serializer = CPickleSerializer()
    found = serializer.loads(command)  # type: ignore[no-untyped-call]
    if isinstance(found, Broadcast):  # Spark broadcasts large commands
        found = serializer.loads(found.value)  # type: ignore[no-untyped-call]
    return found


class Command:
    """The user's pickled function, taken apart.

    Attributes:
        return_type: the type of its results.
    """

    def __init__(self, command: bytes) -> None:
        function, self.return_type = unpickled_function(command)
        self.processor: StatefulProcessor = function.__self__._stateful_processor
        self.time_mode: str = function.__self__._time_mode


def arrow_schema(schema: StructType, timezone: str | None) -> pa.Schema:
    """Return the columns of results."""
    found = to_arrow_type(schema, timezone=timezone, prefers_large_types=False)
    return pa.schema(list(found))


def row_maker(fields: list[str] | Row) -> Callable[[tuple[Any, ...]], Row]:
    """Return what makes a row of its values.

    Args:
        fields: the names of the columns, in the type that `__fields__` of the row shall have: Spark
            makes rows of a list in some places, and of a row of names in others.
    """
    new = tuple.__new__

    def made(values: tuple[Any, ...]) -> Row:
        row = new(Row, values)
        row.__dict__["__fields__"] = fields  # not by `__setattr__`, which is written in Python
        return row

    return made
