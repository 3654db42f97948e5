"""The process of a query in real-time mode. It obeys JSON lines from its standard input.

`python -m integration.real_time_job <work dir> <millpond|rocksdb> <JSON of settings>` runs it. Each
command gets one line as its answer: `{"ok": ...}` or `{"error": ...}`. Stages of a query in
real-time mode run at the same time, so the session has more threads than the machine has cores.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

import millpond
from integration.jvm import LIGHT, ROCKSDB, classes_after_spark, compile_harness

PARTITIONS = 2  # of the state; the source has one, so that the order of rows is known


def _shape(name: str) -> Callable[[DataFrame], DataFrame]:
    def build(rows: DataFrame) -> DataFrame:
        jvm: Any = rows.sparkSession._jvm
        shapes = jvm.org.apache.spark.sql.millpond.testing.StreamShapes
        return DataFrame(shapes.build(name, rows._jdf), rows.sparkSession)

    return build


def _window(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "10 seconds"), "k")
        .agg(F.count("*").alias("n"))
        .select(F.col("window.start").cast("long").alias("start"), "k", "n")
    )


def _statics(rows: DataFrame) -> DataFrame:
    names = rows.sparkSession.sql("select * from values ('a0', 'A'), ('b1', 'B') as t(k, name)")
    return rows.join(F.broadcast(names), "k").groupBy("name").agg(F.sum("v").alias("s"))


# Functions of a frame of `k string, ts timestamp, v long`. Spark runs these in real-time mode.
RUNS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": lambda rows: rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s")),
    "several": lambda rows: rows.groupBy("k").agg(
        F.min("v"), F.max("v"), F.avg("v"), F.collect_set("v"), F.approx_count_distinct("v")
    ),
    "global": lambda rows: rows.agg(F.count("*").alias("n")),
    "window": _window,
    "dedup": lambda rows: rows.dropDuplicates(["k"]),
    "dedup-watermark": lambda rows: rows.withWatermark("ts", "10 seconds").dropDuplicates(
        ["k", "ts"]
    ),
    "distinct": lambda rows: rows.select("k", "v").distinct(),
    "dedup-count": lambda rows: (
        rows.dropDuplicates(["k", "v"]).groupBy("k").agg(F.count("*").alias("n"))
    ),
    "static-join": _statics,
    "expand": lambda rows: rows.rollup("k").agg(F.sum("v").alias("s")),
    "no-time": _shape("no-time"),
    "event-time": _shape("event-time"),
    "processing-time": _shape("processing-time"),
    "initial-state": _shape("initial-state"),
}
# Versions of one query, with a state variable more, and that one with another type.
VERSIONS: dict[str, Callable[[DataFrame], DataFrame]] = {
    name: _shape(name) for name in ("dropped", "counted", "named")
}
# Spark places its rows by other columns than those that the state keeps.
PLACED_ELSEWHERE: dict[str, Callable[[DataFrame], DataFrame]] = {"typed-key": _shape("typed-key")}
# These Spark refuses.
REFUSED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "dedup-within": lambda rows: rows.withWatermark(
        "ts", "10 seconds"
    ).dropDuplicatesWithinWatermark(["k"]),
    "join": lambda rows: rows.alias("a").join(rows.alias("b"), F.expr("a.k = b.k")).select("a.k"),
    "map-groups": _shape("map-groups"),
    "python": lambda rows: _python(rows),
}
# Spark refuses this one when it is started, and those above when they run.
REFUSED_AT_START: dict[str, Callable[[DataFrame], DataFrame]] = {
    "session-window": lambda rows: (
        rows.withWatermark("ts", "10 seconds")
        .groupBy(F.session_window("ts", "10 seconds"), "k")
        .agg(F.count("*").alias("n"))
    ),
}


class Counter(StatefulProcessor):
    """Counts the rows of a key, in Python: Spark refuses it in real-time mode."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        count = len(list(rows))
        old = self.count.get()
        count += 0 if old is None else old[0]
        self.count.update((count,))
        yield Row(k=key[0], n=count)

    def close(self) -> None:
        pass


def _python(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        Counter(), outputStructType="k string, n long", outputMode="Update", timeMode="None"
    )


class Job:
    """The session, its source and its query."""

    def __init__(self, work: Path, provider: str, conf: dict[str, str]) -> None:
        self.work = work
        builder = (
            SparkSession.builder.master("local[12]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.extraJavaOptions", LIGHT)
            .config("spark.local.dir", str(work / "local"))
            .config("spark.sql.warehouse.dir", str(work / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", str(PARTITIONS))
            .config("spark.sql.streaming.realTimeMode.minBatchDuration", "200")
            .config("spark.sql.streaming.stateStore.maintenanceInterval", "200ms")
        )
        if provider == "millpond":
            builder = millpond.configure(builder, realTime=True)
        else:
            builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        for name, value in conf.items():
            builder = builder.config(name, value)
        with classes_after_spark(compile_harness()):
            self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("OFF")
        self.jvm: Any = self.spark._jvm
        self.source: Any = None
        self.query: Any = None
        self.added = 0
        self.new_source({})

    def new_source(self, command: dict[str, Any]) -> None:
        """Begin with an empty source. A killed process leaves one."""
        self.added = 0
        encoder = self._companion("org.apache.spark.sql.Encoders").STRING()
        self.source = self._companion(
            "org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream"
        ).apply(self.spark._jsparkSession, 1, encoder)

    def _companion(self, name: str) -> Any:
        """Return a Scala object. Its static forwarders lack methods of equal names."""
        return self.jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

    def set(self, command: dict[str, Any]) -> None:
        """Change settings of the session. None: unset."""
        for name, value in command["conf"].items():
            if value is None:
                self.spark.conf.unset(name)
            else:
                self.spark.conf.set(name, value)

    def conf(self, command: dict[str, Any]) -> str | None:
        return self.spark.conf.get(command["name"], None)

    def start(self, command: dict[str, Any]) -> str:
        """Start `query` in `<work>/<name>`. Without `seconds` it runs in micro-batches.

        Returns the id of the run.
        """
        name = command.get("name", command["query"])
        writer = self._writer(command).option("checkpointLocation", str(self.work / name))
        for option, value in command.get("options", {}).items():
            writer = writer.option(option, value)
        lines_sink = self.jvm.org.apache.spark.sql.millpond.testing.Lines(
            str(self.work / f"out-{name}")
        )
        writer._jwrite = writer._jwrite.foreach(lines_sink)
        seconds = command.get("seconds")
        if seconds is None:
            writer = writer.trigger(processingTime="0 seconds")
        else:
            writer = writer.trigger(  # type: ignore[call-overload]
                realTime=f"{int(seconds * 1000)} milliseconds"
            )
        self.query = writer.start()
        return str(self.query.runId)

    def bootstrap(self, command: dict[str, Any]) -> int:
        """Make `<work>/<name>` for `query`, with the state of `<work>/<source>`.

        Returns the number of keys.
        """
        rows = millpond.read_state(self.work / command["source"]).select(["key", "value"])
        report = millpond.bootstrap(
            lambda: self._writer(command), self.work / command["name"], state=rows
        )
        return sum(operator.keys for operator in report.operators)

    def private_field(self, command: dict[str, Any]) -> str:
        """Look a field up as the extension does. Returns its name."""
        fields = self.jvm.org.apache.spark.sql.millpond.driver.PrivateField
        owner = self.jvm.java.lang.Class.forName(command["owner"])
        nothing = self.jvm.scala.Option.empty()
        return str(fields.of(owner, command["name"], "this cannot be done", nothing).getName())

    def _writer(self, command: dict[str, Any]) -> DataStreamWriter:
        lines = DataFrame(self.source.toDF(), self.spark)
        part = F.split("value", ",")
        rows = lines.select(
            part[0].alias("k"),
            part[1].cast("long").cast("timestamp").alias("ts"),
            part[2].cast("long").alias("v"),
        )
        known = RUNS | VERSIONS | PLACED_ELSEWHERE | REFUSED | REFUSED_AT_START
        frame = known[command["query"]](rows)
        return frame.writeStream.outputMode(command.get("mode", "update"))

    def batch(self, command: dict[str, Any]) -> int:
        """Run a batch query with state over these keys. Returns how many rows it gives."""
        rows = self.spark.createDataFrame([(key,) for key in command["keys"]], "k string")
        return _python(rows).count()

    def add(self, command: dict[str, Any]) -> None:
        """Add rows. The same calls give a new source the same rows at the same offsets."""
        rows = self.jvm.java.util.ArrayList()
        for row in command["rows"]:
            rows.add(row)
        self.added += len(command["rows"])
        self.source.addData(self.jvm.PythonUtils.toSeq(rows))

    def settle(self, command: dict[str, Any]) -> int:
        """Wait until all rows so far belong to ended batches. Returns the last batch's id."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            last = self.query.lastProgress
            if last is not None:
                end = last["sources"][0]["endOffset"]
                read = json.loads(end) if isinstance(end, str) else end
                if read is not None and sum(read.values()) == self.added:
                    return int(last["batchId"])
            if self.query.exception() is not None:
                raise self.query.exception()
            time.sleep(0.02)
        raise AssertionError(f"{self.added} rows are not read: {self.query.lastProgress}")

    def progress(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        return [json.loads(p.json) for p in self.query.recentProgress]

    def seen(self, command: dict[str, Any]) -> int:
        """Wait until the sink has `rows` rows of the query. Returns how many it has."""
        folder = self.work / f"out-{command['name']}"
        deadline = time.monotonic() + 60
        count = 0
        while time.monotonic() < deadline:
            count = sum(file.read_text().count("\n") for file in folder.glob("*"))
            if count >= command["rows"]:
                return count
            if self.query.exception() is not None:
                raise self.query.exception()
            time.sleep(0.02)
        raise AssertionError(f"the sink has {count} of {command['rows']} rows")

    def stop(self, command: dict[str, Any]) -> None:
        self.query.stop()

    def failure(self, command: dict[str, Any]) -> str:
        """Wait for the query's failure. Returns its text."""
        try:
            ended = self.query.awaitTermination(60)
        except Exception as e:
            return str(e)
        raise AssertionError(f"the query did not fail: ended={ended}")

    def state(self, command: dict[str, Any]) -> list[str]:
        """Read the state of an operator by Spark's reader, sorted."""
        reader = self.spark.read.format("statestore")
        for option, value in command.get("options", {}).items():
            reader = reader.option(option, value)
        frame = reader.load(str(self.work / command["name"]))
        frame = frame.drop("partition_id")
        return sorted(repr(row) for row in frame.collect())


def main(argv: list[str]) -> int:
    """Obey commands until the input ends."""
    job = Job(Path(argv[0]), argv[1], json.loads(argv[2]))
    print(json.dumps({"ok": None}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": getattr(job, command["do"])(command)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
