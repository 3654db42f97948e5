"""One query on several transports of Python's state, and what must be the same on all of them.

Each side of a comparison is a run of its own, over the same input, on Millpond. A side may change
its transport at every restart. Time comes from a clock that moves by a second for each batch, so
processing times and times to live have the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspark import java_gateway
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import ForeachBatchFunction

from integration.cases import Build, Case
from integration.jvm import MILLPOND
from integration.streams import InjectedFailure, Input, settings
from millpond.config import OPTIONS
from millpond.query.row_source import NativeRows
from millpond.query.whole import checkpoint_image
from millpond.storage import open_storage

SPARK, BULK = "spark", "bulk"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
TRANSPORT = "spark.sql.streaming.stateStore.millpond.python.transport"
_START_MS = 1_900_000_000_000
_STEP_MS = 1000
# They are zero for operators that Spark's own transport ran.
BULK_METRICS = ("millpondPythonSentBytes", "millpondPythonKeys")
_METRICS = (
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "numRowsDroppedByWatermark",
)

start_callbacks: Any = java_gateway.ensure_callback_server_started

# operator, partition, store, column family -> its rows, by key
Stored = dict[tuple[int, int, str, str], dict[bytes, bytes]]


def transport_conf(transport: str) -> dict[str, str]:
    """Return the settings that choose a transport."""
    known = any(option.name == "python.transport" for option in OPTIONS)
    return {TRANSPORT: transport} if known else {}


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A part of a run: from a start of the query to the end of the present input.

    Attributes:
        files: how much of the input is there.
        fail_at: the batch in which the sink fails.
        build: the query, if it is not the case's.
        fails: a text of the error that must end the query.
    """

    files: int
    fail_at: int | None = None
    build: Build | None = None
    fails: str = ""


@dataclass
class Side:
    """A run of one query on one transport for each leg, over and over from the first."""

    name: str
    transports: tuple[str, ...]
    root: Path
    clock: Any
    rows: dict[int, list[str]] = field(default_factory=dict)
    state: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    custom: dict[int, list[dict[str, int]]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    ran: list[bool] = field(default_factory=list)  # of each leg with batches: whether in bulk
    asked: list[bool] = field(default_factory=list)  # the same: whether bulk was asked for

    @property
    def checkpoint(self) -> Path:
        """The Spark checkpoint."""
        return self.root / "checkpoint"

    def transport(self, leg: int) -> str:
        """Return the transport of the leg of that number."""
        return self.transports[leg % len(self.transports)]


def play(
    spark: SparkSession,
    directory: Path,
    case: Case,
    legs: Sequence[Leg],
    sides: Mapping[str, tuple[str, ...]],
    *,
    between: Callable[[Side], None] | None = None,
) -> list[Side]:
    """Run the case on all sides, each from its own Spark checkpoint, and return them.

    Args:
        between: what is done with each side before every leg but the first.
    """
    inputs = [Input(directory / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    jvm: Any = spark._jvm
    clocked = jvm.org.apache.spark.sql.millpond.testing.ClockedQuery
    made = [
        Side(name, transports, directory / name, clocked.clock(_START_MS))
        for name, transports in sides.items()
    ]
    there = 0
    for number, leg in enumerate(legs):
        for source, (_, batches) in zip(inputs, case.inputs, strict=True):
            for batch in batches[there : leg.files]:
                source.add(batch)
        there = max(there, leg.files)
        for side in made:
            if number > 0 and between is not None:
                between(side)
            frame = (leg.build or case.build)([i.stream(spark) for i in inputs])
            conf = {
                PROVIDER: MILLPOND,
                _FORMAT: str(case.checkpoint_format),
                **case.conf,
                **transport_conf(side.transport(number)),
            }
            _finish(_start(spark, frame, side, conf, case.mode, leg), side, leg)
            if len(side.ran) > len(side.asked):
                side.asked.append(side.transport(number) == BULK)
    return made


def _start(
    spark: SparkSession,
    frame: DataFrame,
    side: Side,
    conf: Mapping[str, str],
    mode: str,
    leg: Leg,
) -> StreamingQuery:
    gateway: Any = spark.sparkContext._gateway

    def sink(batch: DataFrame, batch_id: int) -> None:
        side.clock.advance(_STEP_MS)
        rows = [repr(row) for row in batch.collect()]
        if batch_id == leg.fail_at:
            raise InjectedFailure(f"injected in batch {batch_id}")
        side.rows[batch_id] = rows

    clocked = gateway.jvm.org.apache.spark.sql.millpond.testing.ClockedQuery
    with settings(spark, conf):
        start_callbacks(gateway)
        return StreamingQuery(
            clocked.start(
                frame._jdf,
                mode,
                str(side.checkpoint),
                ForeachBatchFunction(spark, sink),
                side.clock,
            )
        )


def _finish(query: StreamingQuery, side: Side, leg: Leg, seconds: int = 180) -> None:
    expected = leg.fails or ("InjectedFailure" if leg.fail_at is not None else "")
    try:
        ended = query.awaitTermination(seconds)
    except StreamingQueryException as error:
        if not expected or expected not in str(error):
            raise
        side.errors.append(str(error))
    else:
        if not ended:
            query.stop()
            raise AssertionError(f"{side.name} did not end within {seconds} s")
        assert not expected, f"{side.name} ended without {expected}"
    found = query.recentProgress
    if found:
        operators = [op for progress in found for op in progress["stateOperators"]]
        customs = [op["customMetrics"] for op in operators]
        side.ran.append(any(one.get(name, 0) for one in customs for name in BULK_METRICS))
    for progress in found:
        batch, operators = progress["batchId"], progress["stateOperators"]
        side.state[batch] = [{name: op[name] for name in _METRICS} for op in operators]
        side.custom[batch] = [dict(op["customMetrics"]) for op in operators]


def counted(side: Side) -> dict[int, list[dict[str, int]]]:
    """Return the metrics that Spark's own node counts: variables, timers, expired rows."""
    return {
        batch: [{k: v for k, v in op.items() if k.startswith("num")} for op in ops]
        for batch, ops in side.custom.items()
    }


def stored(checkpoint: Path) -> Stored:
    """Return each row of the state, as the bytes that lie in the store."""
    storage = open_storage(str(checkpoint))
    source = NativeRows(storage, checkpoint_image(storage, str(checkpoint)))
    found: Stored = {}
    for store in source.stores():
        place = store.store
        for family in store.families:
            found[place.operator, place.partition, place.name, family.name] = {}
        for rows in source.rows(store):
            family_rows = found[place.operator, place.partition, place.name, rows.family.name]
            for key, value in zip(rows.keys, rows.values, strict=True):
                assert key not in family_rows
                family_rows[key] = value
    return found


def schemas(checkpoint: Path) -> dict[str, list[bytes]]:
    """Return the files of state schemas by folder; their names are random."""
    found: dict[str, list[bytes]] = {}
    places = ("*/_stateSchema/*/*", "*/*/_metadata/schema")
    for file in sorted(file for place in places for file in (checkpoint / "state").glob(place)):
        if not file.name.startswith("."):
            folder = str(file.parent.relative_to(checkpoint))
            found.setdefault(folder, []).append(file.read_bytes())
    return {folder: sorted(files) for folder, files in found.items()}


def assert_same(sides: Sequence[Side], *, aside: bool = False) -> None:
    """Check that rows with their order, metrics, and the bytes of the state are the same.

    Each side must have run as it was asked to; `aside`: bulk had to step aside.
    """
    first, *others = sides
    for side in sides:
        assert side.ran == [asked and not aside for asked in side.asked], side.name
    expected, expected_schemas = stored(first.checkpoint), schemas(first.checkpoint)
    assert any(first.rows.values()), "the query wrote no rows, so the test proves nothing"
    assert any(expected.values()), "the query kept no state"
    assert expected_schemas, "there is no schema of the state"
    for side in others:
        at = f"{side.name} against {first.name}"
        for batch, rows in first.rows.items():
            found = side.rows.get(batch, [])
            differ = [(a, b) for a, b in zip_longest(found, rows) if a != b]
            assert not differ, f"{at}: rows of batch {batch}: {differ[:3]}"
        assert side.rows.keys() == first.rows.keys(), at
        assert side.state == first.state, f"{at}: metrics"
        assert counted(side) == counted(first), f"{at}: metrics of Spark's node"
        assert schemas(side.checkpoint) == expected_schemas, f"{at}: schemas"
        families = stored(side.checkpoint)
        assert families.keys() == expected.keys(), f"{at}: column families"
        for place, family in expected.items():
            assert families[place] == family, f"{at}: {place}"
