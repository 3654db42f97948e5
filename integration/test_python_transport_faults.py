"""User code that misbehaves: the same error, or the same result, on both transports.

No state of the failed batch is kept, no process is left behind, and the query goes on afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.cases import EVENTS, NO_EMPTY_BATCHES, events, transform_with_state
from integration.harness import EVERYTHING
from integration.jvm import MILLPOND
from integration.misbehaviour import OUTPUT, Catching, Large, Misbehaving
from integration.processes import alive, wait_until
from integration.streams import Input, settings
from integration.transports import BULK, SPARK, Stored, stored, transport_conf

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
# In rows and in pandas; what a group holds runs on one Spark checkpoint, one after the other.
_GROUPS = {
    "usual": ("raises", "raises-in-close", "column-too-few", "is-killed"),
    "timers": ("raises-in-timer", "stops-in-timer", "reads-in-close"),
    "raises": ("init", "init-on-executor", "raises-at-once", "raises-stop-iteration", "exits"),
    "processes": ("dies", "exhausts-memory", "forks"),
    "results": (
        "returns-none",
        "returns-number",
        "column-too-many",
        "other-names",
        "wrong-type",
        "a-dict",
        "text-for-a-number",
        "number-for-a-text",
        "too-large-a-number",
    ),
    "values": (
        "state-of-text-for-a-number",
        "state-of-a-float-for-a-number",
        "state-of-too-large-a-number",
        "state-too-short",
        "state-too-long",
        "state-of-none",
        "state-of-a-number",
        "empty-put",
        "list-of-numbers",
    ),
    "keys-and-timers": (
        "map-key-of-text",
        "map-key-too-long",
        "map-key-of-none",
        "map-value-of-none",
        "timer-of-text",
        "timer-of-a-float",
        "timer-of-none",
        "variable-too-late",
        "deletes-itself",
        "no-handle",
    ),
}
_FRAME = re.compile(r'File "[^"]*/integration/([^"]+)", line (\d+), in (\w+)')
_LAST = re.compile(r"[\w.]*(?:Error|Exception|Exit|Iteration)\b(?:: |$)")
_TASK = re.compile(r"Lost task [^:]*: ([^\n]*)")
_ENDED = re.compile(r"terminated with exception: ([^\n]*)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")


def essence(error: StreamingQueryException) -> tuple[list[str], list[Any], str]:
    """Return the conditions, the frames of the user's code, and what the error says.

    That is the last line of the user's traceback, or the message of the failed task.
    """
    text = str(error).partition("=== Streaming Query ===")[0]
    lines = [line for line in text.splitlines() if _LAST.match(line)]
    said = _TASK.search(text) or _ENDED.search(text)
    assert lines or said, text
    return (
        sorted(set(_CONDITION.findall(text))),
        list(dict.fromkeys(_FRAME.findall(text))),
        lines[-1] if lines else said[1] if said is not None else "",
    )


class _Side:
    """One query on one transport. Its input has two batches; the second is for the misbehaviour."""

    def __init__(self, spark: SparkSession, directory: Path, form: str, transport: str) -> None:
        self.spark, self.form, self.transport = spark, form, transport
        self.checkpoint, self.pid_file = directory / transport, directory / f"{transport}.pid"
        self.input = Input(directory / f"input-{transport}", EVENTS)
        self.input.add(events(("bad", 1, 1), ("a", 2, 2), ("b", 3, 3), ("bad", 3, 4)))

    def start(self, how: str) -> Any:
        """Start the query over all present input."""
        grouped: Any = self.input.stream(self.spark).withWatermark("ts", "0 seconds").groupBy("k")
        method = transform_with_state(grouped, self.form)
        processor = Misbehaving(self.form, how, self.pid_file)
        conf = {_PROVIDER: MILLPOND, **NO_EMPTY_BATCHES, **transport_conf(self.transport)}
        with settings(self.spark, conf):
            writer = method(processor, OUTPUT, "Update", "EventTime").writeStream
            writer = writer.outputMode("update").format("noop").trigger(availableNow=True)
            return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def outcome(self, how: str) -> Any:
        """Return how the query ends: the essence of its error, or the word `ended`."""
        query = self.start(how)
        try:
            assert query.awaitTermination(120), f"{how} did not end"
        except StreamingQueryException as error:
            return essence(error)
        return "ended"


def _both(
    spark: SparkSession, directory: Path, form: str, act: Callable[[_Side], Any]
) -> tuple[Any, Any]:
    """Return what `act` finds on both transports, after a batch on each."""
    found = []
    for transport in (SPARK, BULK):
        side = _Side(spark, directory, form, transport)
        assert side.outcome("well") == "ended"
        side.input.add(events(("bad", 10, 5), ("c", 11, 6), ("a", 12, 7)))
        found.append(act(side))
    return found[0], found[1]


def _misbehave(side: _Side, group: str) -> tuple[dict[str, Any], Stored]:
    before = stored(side.checkpoint)
    outcomes: dict[str, Any] = {}
    for how in _GROUPS[group]:
        outcomes[how] = side.outcome(how)
        if outcomes[how] == "ended":  # the batch is done: the next one misbehaves
            outcomes[how] = ("ended", stored(side.checkpoint))
            before = stored(side.checkpoint)
            at = 12 + 10 * len(outcomes)
            side.input.add(events(("bad", at, 5), ("c", at, 6), ("d", at, 7)))
        else:
            assert stored(side.checkpoint) == before, f"{how} left state behind"
    assert side.outcome("well") == "ended"
    return outcomes, stored(side.checkpoint)


@pytest.mark.deep
@pytest.mark.parametrize("form", ["row", "pandas"] if EVERYTHING else ["row"])
@pytest.mark.parametrize("group", _GROUPS)
def test_misbehaviour(spark: SparkSession, tmp_path: Path, group: str, form: str) -> None:
    expected, found = _both(spark, tmp_path, form, lambda side: _misbehave(side, group))
    for how, outcome in expected[0].items():
        print(how, outcome if outcome[0] != "ended" else "ended")
        assert found[0][how] == outcome, how
    assert found[1] == expected[1]
    assert any(outcome[0] != "ended" for outcome in expected[0].values())


@pytest.mark.parametrize("transport", [SPARK, BULK])
def test_a_failed_call_that_the_code_catches(
    spark: SparkSession, tmp_path: Path, transport: str
) -> None:
    """Spark's server answers nothing after it, so the task fails. In bulk the error says why."""
    source = Input(tmp_path / "input", EVENTS)
    source.add(events(("bad", 1, 1), ("a", 2, 2)))
    with settings(spark, {_PROVIDER: MILLPOND, **transport_conf(transport)}):
        rows = source.stream(spark).groupBy("k")
        writer = rows.transformWithState(Catching(), OUTPUT, "Update", "None").writeStream
        writer = writer.outputMode("update").format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination(120)
    if transport == BULK:
        assert "operation=get_value_state with invalid handle state" in str(error.value)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "ValueError: with much left unread"),
        ("is-killed", "Python worker exited unexpectedly (crashed)"),
    ],
)
def test_a_worker_ends_while_it_is_written_to(
    spark: SparkSession, tmp_path: Path, how: str, said: str
) -> None:
    """Frames wait for it that the socket has no room for. What it said is not lost."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 6).load()
    large = source.selectExpr("value AS k", "repeat('x', 12000000) AS text").groupBy("k")
    for i in range(2):
        with settings(spark, {_PROVIDER: MILLPOND, **transport_conf(BULK)}):
            writer = large.transformWithState(Large(how), OUTPUT, "Update", "None").writeStream
            writer = writer.outputMode("update").format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / f"{how}-{i}")).start()
        with pytest.raises(StreamingQueryException) as error:
            query.awaitTermination(120)
        assert said in str(error.value), str(error.value)[:4000]


@pytest.mark.deep
def test_a_query_is_stopped_while_its_code_sleeps(spark: SparkSession, tmp_path: Path) -> None:
    def stop(side: _Side) -> Stored:
        before = stored(side.checkpoint)
        query = side.start("sleeps")
        wait_until(side.pid_file.exists, seconds=60, what="the user's code to sleep")
        pid = int(side.pid_file.read_text())
        query.stop()
        wait_until(lambda: not alive(pid), seconds=30, what="the sleeping worker to end")
        assert stored(side.checkpoint) == before
        assert side.outcome("well") == "ended"
        return stored(side.checkpoint)

    expected, found = _both(spark, tmp_path, "row", stop)
    assert found == expected
