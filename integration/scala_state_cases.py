"""The cases that only the Scala API has: the queries of `StreamShapes.scala`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from integration.cases import AVRO, CLICKED, NO_EMPTY_BATCHES, Build, Case, of

_FORMAT = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
# In this format Spark writes a long where its schema says int. Its own check of rows refuses that.
_V1 = {_FORMAT: "1", "spark.sql.streaming.stateStore.formatValidation.enabled": "false"}
_V1_QUIET = {**_V1, **NO_EMPTY_BATCHES}
_QUIET_AVRO = {**NO_EMPTY_BATCHES, **AVRO}
_ELSEWHERE = "Spark did not place it by the key"
_TIMERS = (
    {"stateVarName": "seen"},
    {"stateVarName": "latest"},
    {"readRegisteredTimers": "true", "batchId": "2"},
)


def _scala(name: str) -> Build:
    def build(i: list[DataFrame]) -> DataFrame:
        jvm: Any = i[0].sparkSession._jvm
        shapes = jvm.org.apache.spark.sql.millpond.testing.StreamShapes
        return DataFrame(shapes.build(name, i[0]._jdf), i[0].sparkSession)

    return build


def _case(
    name: str,
    shape: str,
    mode: str = "update",
    checkpoint_format: int = 1,
    fail_at: int = 1,
    **more: Any,
) -> Case:
    runs = 3 if "later" in more else 2
    return Case(name, _scala(shape), CLICKED, mode, checkpoint_format, fail_at, runs=runs, **more)


CASES = [
    *of(
        "mapGroupsWithState in Scala",
        _case("map-groups", "map-groups"),
        _case("map-groups-v1-ids", "map-groups", checkpoint_format=2, conf=_V1),
    ),
    *of(
        "flatMapGroupsWithState in Scala",
        _case("flat-map-update", "flat-map-update", checkpoint_format=2, shows=("timed out",)),
        _case("flat-map-append", "flat-map-append", "append", fail_at=2, shows=("timed out",)),
        _case("flat-map-update-v1", "flat-map-counts", conf=_V1, shows=("timed out",)),
        _case(
            "flat-map-processing-time",
            "flat-map-processing-time",
            conf=NO_EMPTY_BATCHES,
            shows=("timed out",),
        ),
        _case(
            "flat-map-processing-time-v1",
            "flat-map-counts-processing-time",
            "update",
            2,
            conf=_V1_QUIET,
            shows=("timed",),
        ),
        _case(
            "flat-map-initial-state",
            "flat-map-initial-state",
            checkpoint_format=2,
            shows=("Some(1000)",),
        ),
    ),
    *of(
        "transformWithState in Scala: state and timers by event time",
        _case(
            "scala-event-time",
            "event-time",
            checkpoint_format=2,
            shows=("fired at",),
            reads=_TIMERS,
        ),
        _case("scala-event-time-avro", "event-time", fail_at=2, conf=AVRO, shows=("fired at",)),
    ),
    *of(
        "transformWithState in Scala: state with TTL and timers by processing time",
        _case(
            "scala-processing-time",
            "processing-time",
            conf=NO_EMPTY_BATCHES,
            shows=("fired late", "'fired'"),
        ),
        _case(
            "scala-processing-time-avro",
            "processing-time",
            "update",
            2,
            0,
            conf=_QUIET_AVRO,
            shows=("fired late",),
        ),
    ),
    *of(
        "transformWithState in Scala: state without time",
        _case("scala-no-time", "no-time", checkpoint_format=2),
    ),
    *of(
        "transformWithState in Scala: initial state",
        _case("scala-initial-state", "initial-state", shows=("1000",)),
    ),
    *of(
        "transformWithState in Scala: keys of a type of the user's own",
        _case("scala-typed-key", "typed-key", checkpoint_format=2, unscalable=_ELSEWHERE),
        _case("scala-reordered-key", "reordered-key", unscalable=_ELSEWHERE),
        _case("scala-tuple-key", "tuple-key", checkpoint_format=2),
    ),
    *of(
        "transformWithState in Scala: deleteIfExists",
        _case(
            "scala-delete-if-exists",
            "both",
            "update",
            2,
            later=_scala("dropped"),
            shows=("dropped",),
        ),
    ),
    *of(
        "transformWithState in Scala: in a chain with another stateful operator",
        _case("scala-then-window", "then-window", "append", 2),
    ),
    *of(
        "transformWithState in Scala: a field more in the value, with Avro",
        _case("scala-evolution", "counted", conf=AVRO, later=_scala("named"), shows=(",None))",)),
    ),
    *of(
        "transformWithState in Scala: a field more in the value, without Avro",
        _case(
            "scala-evolution-refused",
            "counted",
            "update",
            2,
            later=_scala("named"),
            refused="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        ),
    ),
]
