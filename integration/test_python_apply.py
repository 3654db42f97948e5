"""`applyInPandasWithState` with Millpond's worker equals it with Spark's: rows in their order,
metrics, and each byte in the store. User code that misbehaves ends with the same error.

`tests/unit/transport/test_apply.py` compares the two loops by themselves, over all types.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration import operator_cases
from integration.cases import CLICKED, EVENTS, NO_EMPTY_BATCHES, ODD_KEYS, Case, events
from integration.depth import deep
from integration.jvm import IS_SPARK_4_2, MILLPOND
from integration.streams import Input, settings
from integration.test_python_transport_faults import essence
from integration.transports import (
    BULK,
    SPARK,
    Leg,
    assert_same,
    play,
    stored,
    transport_conf,
)

_SIDES = {"spark": (SPARK,), "in-turn": (BULK, SPARK, BULK)}
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def _everything(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Keep a value of many types, leave some rows unread, remove some state."""
    seen, text, half, times = state.get if state.exists else (0, None, None, None)
    first = next(frames)
    said = f"{key} {first.dtypes.to_dict()} {first.iloc[0].tolist()}"
    seen += len(first)
    if seen % 5 == 4:
        state.remove()
    else:
        newest = pd.Timestamp(2024, 1, 1) if seen % 2 else None
        state.update((seen, said[:30] if seen % 3 else None, seen / 3, newest))
    if seen % 4:
        yield pd.DataFrame({"k": [str(key), None], "n": [seen, 2**53 + seen], "said": [said, text]})
        yield pd.DataFrame({"said": [f"{half} {times}"], "k": [None], "n": [len(first)]})


def _keyed_state(i: list[DataFrame]) -> DataFrame:
    grouped = (
        i[0].withColumn("m", f.when(f.col("v") % 3 > 0, f.col("v"))).groupBy("s", "d", "b", "n")
    )
    return grouped.applyInPandasWithState(
        _everything,
        "k string, n long, said string",
        "seen long, text string, half double, newest timestamp",
        "update",
        "NoTimeout",
    )


_ARROW = "spark.sql.execution.arrow.maxRecordsPerBatch"
_CASES = [
    *(case for case in operator_cases.CASES if case.name.startswith("pandas-state")),
    Case("many-types", _keyed_state, ODD_KEYS, "update", 2),
    Case("keys-in-several-batches", _keyed_state, ODD_KEYS, "update", 1, conf={_ARROW: "2"}),
    Case(
        "timeouts-in-several-batches",
        next(case.build for case in operator_cases.CASES if case.name == "pandas-state-update"),
        CLICKED,
        "update",
        1,
        conf={_ARROW: "1"},
    ),
]


@pytest.mark.parametrize(
    "case",
    [case if case.name == "pandas-state-update" else deep(case) for case in _CASES],
    ids=lambda case: case.name,
)
def test_every_shape(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    """A sink fails after its state was committed. Each restart changes the worker."""
    batches = max(len(batches) for _, batches in case.inputs)
    legs = [Leg(files=case.first, fail_at=case.fail_at), Leg(files=case.first), Leg(files=batches)]
    assert_same(play(spark, tmp_path, case, legs, _SIDES), aside=IS_SPARK_4_2)


class _Misbehaving:
    """Counts rows. The key `bad` gets the misbehaviour."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(
        self, key: Any, frames: Iterator[pd.DataFrame], state: Any
    ) -> Iterator[pd.DataFrame]:
        count = sum(map(len, frames)) + ((state.get[0] if state.exists else 0) or 0)
        state.update((count,))
        result = pd.DataFrame({"k": [key[0]], "n": [count]})
        if key[0] == "bad":
            yield result
            if self.how == "raises":
                raise ValueError("of the user's code")
            if self.how == "is-killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exits":
                raise SystemExit(3)
            if self.how == "column-too-few":
                yield result[["k"]]
            if self.how == "other-names":
                yield result.rename(columns={"n": "m"})
            if self.how == "wrong-type":
                yield result.assign(n="text")
            if self.how == "no-frame":
                yield {"k": "bad", "n": 1}
            if self.how == "state-of-text":
                state.update(("text",))
            if self.how == "state-too-long":
                state.update((1, 2))
            if self.how == "timeout":
                state.setTimeoutDuration(1)
        yield result


def _start(spark: SparkSession, source: Input, checkpoint: Path, transport: str, how: str) -> Any:
    def function(key: Any, frames: Any, state: Any) -> Any:
        return _Misbehaving(how)(key, frames, state)

    stream = source.stream(spark).groupBy("k")
    conf = {_PROVIDER: MILLPOND, **NO_EMPTY_BATCHES, **transport_conf(transport)}
    with settings(spark, conf):
        counted = stream.applyInPandasWithState(
            function, "k string, n long", "n long", "update", "NoTimeout"
        )
        writer = counted.writeStream.outputMode("update").format("noop")
        writer = writer.option("checkpointLocation", str(checkpoint))
        return writer.trigger(availableNow=True).start()


def _outcome(query: Any) -> Any:
    try:
        assert query.awaitTermination(120)
    except StreamingQueryException as error:
        return essence(error)
    return "ended"


@pytest.mark.deep
def test_misbehaviour(spark: SparkSession, tmp_path: Path) -> None:
    """The same error, the user's frames included, and no state of the batch is kept."""
    ways = (
        *("raises", "is-killed", "exits", "column-too-few", "other-names", "wrong-type"),
        *("no-frame", "state-of-text", "state-too-long", "timeout"),
    )
    found: dict[str, dict[str, Any]] = {}
    for transport in (SPARK, BULK):
        source, checkpoint = Input(tmp_path / f"in-{transport}", EVENTS), tmp_path / transport
        source.add(events(("bad", 1, 1), ("a", 2, 2), ("b", 3, 3)))
        assert _outcome(_start(spark, source, checkpoint, transport, "well")) == "ended"
        source.add(events(("bad", 1, 1), ("a", 2, 2), ("c", 3, 3)))
        outcomes = found[transport] = {}
        for how in ways:
            before = stored(checkpoint)
            outcomes[how] = _outcome(_start(spark, source, checkpoint, transport, how))
            if outcomes[how] == "ended":
                source.add(events(("bad", 1, 1), ("a", 2, 2)))
                outcomes[how] = stored(checkpoint)
            else:
                assert stored(checkpoint) == before, how
        assert _outcome(_start(spark, source, checkpoint, transport, "well")) == "ended"
        outcomes["well"] = stored(checkpoint)
    for how, outcome in found[SPARK].items():
        assert found[BULK][how] == outcome, how
    assert sum(isinstance(outcome, tuple) for outcome in found[SPARK].values()) >= 7
