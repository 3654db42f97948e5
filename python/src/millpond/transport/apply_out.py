"""The results and the state that `applyInPandasWithState` sends to Spark's JVM."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from millpond.transport.pandas_form import Columns, joined
from millpond.transport.spark_pandas import Conversion

_STATE = pa.struct(
    [
        ("properties", pa.string()),
        ("keyRowAsUnsafe", pa.binary()),
        ("object", pa.binary()),
        ("oldTimeoutTimestamp", pa.int64()),
    ]
)


class Results:
    """Results and state that are not sent yet.

    Attributes:
        rows: how many rows of results there are.
    """

    def __init__(self, return_type: StructType, conversion: Conversion) -> None:
        self._names = return_type.names
        self._conversion = conversion
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._frames: list[pd.DataFrame] = []
        self._states: list[tuple[str, bytes, bytes | None, int]] = []

    @property
    def some(self) -> bool:
        """Whether there is something to send."""
        return self.rows > 0 or len(self._states) > 0

    def add(self, frame: pd.DataFrame) -> None:
        """Take over results of a key."""
        self._frames.append(frame)
        self.rows += len(frame)

    def add_state(self, state: GroupState, value: bytes | None) -> None:
        """Take over what a key left, and its pickled value."""
        self._states.append((state.json(), state._keyAsUnsafe, value, state.oldTimeoutTimestamp))

    def take(self) -> pa.RecordBatch:
        """Return all as one Arrow batch, and forget it.

        Its columns are as long as the longer one of results and states. The first column says how
        long each of them is.
        """
        length = max(1, self.rows, len(self._states))
        data = self._conversion.struct_from_pandas(self._merged(length - self.rows))
        states = pa.array(
            [*self._states, *((None,) * 4 for _ in range(length - len(self._states)))], _STATE
        )
        counts = pa.StructArray.from_arrays(
            [pa.repeat(pa.scalar(n, pa.int32()), length) for n in (self.rows, len(self._states))],
            names=["dataCount", "stateCount"],
        )
        self._clear()
        return pa.RecordBatch.from_arrays([counts, data, states], names=["_0", "_1", "_2"])

    def _merged(self, more: int) -> pd.DataFrame:
        """Return all frames as one, with rows of nothing at its end.

        Spark joins them in this way, and the outcome decides what types the columns have. Frames
        with the same columns and types may be joined before.
        """
        nothing = pd.DataFrame(dict.fromkeys(self._names), index=list(range(more)))
        frames: list[Any] = self._frames
        columns = list(map(Columns, frames))
        if len(columns) > 1 and all(columns[0].alike(other) for other in columns):
            frames = [joined(columns)]
        return pd.concat([*frames, nothing], ignore_index=True)
