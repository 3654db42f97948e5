"""The description of a query that `test_operators` runs, and the input that most queries share.

Event times are seconds after an epoch. Each list of rows is one file, and each file is one
micro-batch. The inputs hold late rows, nulls, unicode, decimals, binary and nested keys, and a file
without rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]
Build = Callable[[list[DataFrame]], DataFrame]

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
AVRO = {ENCODING: "avro"}
# An operator that acts by processing time asks for batch after batch. With this option Spark runs
# no batch without input.
NO_EMPTY_BATCHES = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

EVENTS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
KEYED = pa.schema(
    [
        ("s", pa.string()),
        ("d", pa.decimal128(12, 2)),
        ("b", pa.binary()),
        ("n", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("f", pa.float64()),
        ("v", pa.int64()),
    ]
)
_START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


def at(seconds: float) -> dt.datetime:
    """Return an event time."""
    return _START + dt.timedelta(seconds=seconds)


def transform_with_state(grouped: Any, form: str) -> Any:
    """Return the method of a grouped stream for processors of the form, `pandas` or `row`."""
    return grouped.transformWithStateInPandas if form == "pandas" else grouped.transformWithState


def events(*rows: tuple[str | None, float, int]) -> Rows:
    """Return rows of `EVENTS` from (key, seconds, value)."""
    return [{"k": k, "ts": at(t), "v": v} for k, t, v in rows]


# Times are seconds. Keys come and go. Some rows are late: they come after their window closed. One
# batch is empty. The queries' watermarks wait 10 s.
CLICKS: list[Rows] = [
    events(("a", 1, 1), ("b", 2, 2), ("ü€", 3, 3), (None, 4, 4), ("", 4, 5), ("a", 5, 6)),
    events(("a", 11, 7), ("c", 14, 8), ("a", 3, 9), (None, 15, 10), ("a", 11, 7)),
    events(("d", 40, 11), ("a", 2, 12), ("b", 41, 13), ("\U0001f600", 42, 14)),
    events(),
    events(("a", 1, 15), ("a", 43, 16), ("c", 44, 17), ("d", 40, 11), ("e", 61, 18)),
    events(("a", 90, 19), ("a", 91, 20), (None, 95, 21), ("b", 120, 22)),
]
VIEWS: list[Rows] = [
    events(("a", 2, 100), ("b", 30, 101), (None, 4, 102)),
    events(("c", 13, 103), ("a", 12, 104), ("zz", 14, 105)),
    events(("ü€", 4, 106), ("d", 41, 107), ("b", 39, 108), ("d", 42, 109)),
    events(("q", 45, 110)),
    events(("c", 46, 111), ("e", 60, 112), ("e", 62, 113), ("x", 50, 114)),
    events(("a", 92, 115), ("b", 119, 116), ("k", 121, 117)),
]


def _key(i: int) -> dict[str, Any]:
    return {
        "s": [None, "", "a", "ü€\U0001f600", "a\u0000b", "long " * 40][i % 6],
        "d": [None, Decimal("0.00"), Decimal("-1.25"), Decimal("9999999999.99")][i % 4],
        "b": [None, b"", b"\x00\xff", bytes(range(256))][i % 4],
        "n": [None, {"x": i % 3, "y": None}, {"x": None, "y": "y" * (i % 5)}][i % 3],
        "f": [0.0, -0.0, float("nan"), None, 1.5][i % 5],
    }


KEYS: list[Rows] = [
    [{**_key((i * 7 + b * 3) % 40), "v": i} for i in range(25)] if b != 2 else [] for b in range(5)
]

CLICKED = [(EVENTS, CLICKS)]
ODD_KEYS = [(KEYED, KEYS)]
CLICKED_AND_VIEWED = [(EVENTS, CLICKS), (EVENTS, VIEWS)]


@dataclass(frozen=True)
class Case:
    """One query: its inputs (schema and batches), output mode, and Spark checkpoint format."""

    name: str
    build: Build
    inputs: Sequence[tuple[pa.Schema, list[Rows]]]
    mode: str
    checkpoint_format: int = 1
    fail_at: int = 1  # the sink fails in this batch of the first run
    first: int = 3  # the number of files of the first run
    operator: str = ""  # the line of the documentation's table that the case proves; `of` sets it
    conf: Mapping[str, str] = field(default_factory=dict)  # of the session, for both providers
    candidate_conf: Mapping[str, str] = field(default_factory=dict)  # Millpond's own options
    actions: int = 1  # how often the sink computes the batch
    # 2: the second run does the failed batch again, and the rest of the input. 3: a third run does
    # the rest. 0: `of` chooses.
    runs: int = 0
    shows: tuple[
        str, ...
    ] = ()  # texts that the output must hold, so that the case tests what it should
    later: Build | None = None  # the query of the third run; None: `build`
    # Spark's error condition, if Spark refuses the query: in the first run, or `later` in the third
    # run. In the latter case `build` then goes on where it was.
    refused: str = ""
    reads: tuple[
        Mapping[str, str], ...
    ] = ()  # options of the state reader; the end compares the rows that it reads
    # In format 4 of a join without event time, Spark puts a random number into the key. So the
    # count of keys varies.
    random_keys: bool = False
    # Millpond's words for it, if Spark placed keys by another key than the one in the state's
    # schema.
    unscalable: str = ""

    @property
    def encoding(self) -> str:
        """Return the encoding of state that the case sets."""
        return self.conf.get(ENCODING, "unsaferow")


def of(operator: str, *cases: Case) -> list[Case]:
    """Return the cases that prove one line of the documentation's table.

    The first case restarts once more than the others.
    """
    return [
        replace(
            case, operator=operator, runs=case.runs or (3 if case is cases[0] or case.later else 2)
        )
        for case in cases
    ]
