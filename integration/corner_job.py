"""The queries of `test_contract_corners`, in one JVM whose tasks may run again (`local[2,3]`).

`python -m integration.corner_job <work dir> <provider class> <corner id>...` runs it. It writes
`report.json` to the work dir: for each corner the rows of each batch by query, and the rows that
the state reader finds in each version.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond
from integration.cases import EVENTS, events
from integration.join_cases import STATE_FORMAT
from integration.jvm import LIGHT_DRIVER, MILLPOND
from integration.streams import InjectedFailure, Input

FILES = 4
FAILS_AT = 1  # the sink throws in this batch of the first run
_STORE = "spark.sql.streaming.stateStore."


def rows_of(side: int, file: int) -> list[dict[str, Any]]:
    """Return the rows of one input file."""
    keys = ["a", "b", "ü€", "", "k1", "k2", "k3"]
    return events(
        *((keys[(i * (side + 2) + file) % 7], file * 4 + i % 5, file * 100 + i) for i in range(12))
    )


@dataclass(frozen=True)
class Corner:
    """One way in which Spark uses the stores, in one Spark checkpoint format."""

    name: str
    checkpoint_format: int
    conf: dict[str, str]
    actions: int = 1  # how often the sink computes its batch
    retry: bool = False  # the first attempt of a task fails after it committed its state

    @property
    def id(self) -> str:
        return f"{self.name}-{self.checkpoint_format}"


# A snapshot is due at once. The coordinator calls a store late if it has no snapshot after two
# versions and a millisecond.
_LATE = {
    f"{_STORE}minDeltasForSnapshot": "1",
    f"{_STORE}multiplierForMinVersionDiffToLog": "1",
    f"{_STORE}multiplierForMinTimeDiffToLog": "1",
    f"{_STORE}maintenanceInterval": "1ms",
}
_UNLOAD = {f"{_STORE}unloadOnCommit": "true"}

_ADAPTIVE = {"spark.sql.adaptive.enabled": "true"}

CORNERS = [
    Corner("forced", 1, _LATE),  # first, because no maintenance runs in it
    Corner("twice", 1, {}, actions=2),
    Corner("unloaded", 2, _UNLOAD),
    Corner("all", 1, {**_UNLOAD, **_ADAPTIVE}, actions=2, retry=True),
    Corner("all", 2, {**_UNLOAD, **_ADAPTIVE}, actions=2, retry=True),
]


def session(work: Path, provider_class: str) -> SparkSession:
    """Return a session: two cores, three attempts of a task, no maintenance at first."""
    builder = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", LIGHT_DRIVER)
        .config("spark.speculation", "true")
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(f"{_STORE}maintenanceInterval", "1h")
        .config(f"{_STORE}minDeltasForSnapshot", "2")
        .config(f"{_STORE}rocksdb.changelogCheckpointing.enabled", "true")
    )
    if provider_class == MILLPOND:
        return millpond.configure(builder).getOrCreate()
    return builder.config(f"{_STORE}providerClass", provider_class).getOrCreate()


def _count(i: list[DataFrame]) -> DataFrame:
    return i[0].groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def _join(i: list[DataFrame]) -> DataFrame:
    left, right = (
        frame.withWatermark("ts", "1 hour").selectExpr(f"k as {s}k", f"ts as {s}t", f"v as {s}v")
        for frame, s in zip(i, "lr", strict=True)
    )
    near = F.expr("rt between lt - interval 2 seconds and lt + interval 2 seconds")
    return left.join(right, (F.col("lk") == F.col("rk")) & near).select("lk", "lv", "rv")


def _sum_in_pandas(marks: Path, retry: bool) -> Callable[[list[DataFrame]], DataFrame]:
    """Return a query of running sums by key.

    With `retry` the first attempt of a task throws between two keys. Its state is half written.
    """

    def build(i: list[DataFrame]) -> DataFrame:
        import pandas as pd

        seen: list[int] = []

        def add(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
            task = TaskContext.get()
            assert task is not None
            seen.append(task.taskAttemptId())
            if retry and task.attemptNumber() == 0 and seen.count(task.taskAttemptId()) == 2:
                (marks / f"{uuid.uuid4()}.half").touch()
                raise InjectedFailure("between two keys")
            total = (state.get[0] if state.exists else 0) + sum(
                int(frame["v"].sum()) for frame in frames
            )
            state.update((total,))
            yield pd.DataFrame({"k": [key[0]], "s": [total]})

        return (
            i[0]
            .groupBy("k")
            .applyInPandasWithState(add, "k string, s long", "s long", "update", "NoTimeout")
        )

    return build


def _fails_when_committed(marks: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow`. It relays every row. The first attempt then throws.

    The stateful operator of the same task commits its state before its last row. So the state is
    committed at that time.
    """

    def relay(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() == 0 and task.partitionId() == 0:
            (marks / f"{uuid.uuid4()}.committed").touch()
            raise InjectedFailure("after the commit")

    return relay


class Runner:
    """Runs the queries of one corner and keeps their rows."""

    def __init__(self, spark: SparkSession, work: Path, corner: Corner) -> None:
        self.spark, self.corner = spark, corner
        self.work = work / corner.id
        self.inputs = [Input(self.work / f"input-{side}", EVENTS) for side in range(2)]
        self.marks = self.work / "failures"
        self.marks.mkdir()
        for side, source in enumerate(self.inputs):
            for file in range(FILES):
                source.add(rows_of(side, file))
        self.queries: dict[str, tuple[str, Callable[[list[DataFrame]], DataFrame]]] = {
            "count": ("complete", _count),
            "join": ("append", _join),
            "sum": ("update", _sum_in_pandas(self.marks, corner.retry)),
        }
        self.rows: dict[str, dict[int, list[Any]]] = {name: {} for name in self.queries}

    def _sink(self, name: str, fail_at: int | None) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            if self.corner.retry:
                batch = batch.mapInArrow(_fails_when_committed(self.marks), batch.schema)
            first = sorted(list(row) for row in batch.collect())
            for _ in range(self.corner.actions - 1):
                again = sorted(list(row) for row in batch.collect())
                if again != first:
                    raise AssertionError(
                        f"batch {batch_id} of {name} is {first}, the second time {again}"
                    )
            if batch_id == fail_at:
                raise InjectedFailure(f"in the sink, batch {batch_id}")
            self.rows[name][batch_id] = first

        return write

    def run(self, fail_at: int | None) -> None:
        """Run all queries in parallel, to the end of the input or to the failing batch."""
        conf = {
            **self.corner.conf,
            f"{_STORE}checkpointFormatVersion": str(self.corner.checkpoint_format),
            STATE_FORMAT: str(2 * self.corner.checkpoint_format),
        }
        before = {key: self.spark.conf.get(key, None) for key in conf}
        for key, value in conf.items():
            self.spark.conf.set(key, value)
        started = []
        for name, (mode, build) in self.queries.items():
            frame = build([source.stream(self.spark) for source in self.inputs])
            writer = frame.writeStream.outputMode(mode).option(
                "checkpointLocation", str(self.work / name)
            )
            started.append(
                writer.trigger(availableNow=True).foreachBatch(self._sink(name, fail_at)).start()
            )
        try:
            for query in started:
                try:
                    query.awaitTermination()
                except StreamingQueryException as error:
                    if fail_at is None or "in the sink" not in str(error):
                        raise
        finally:
            for query in started:
                query.stop()
            for key, old in before.items():
                if old is None:
                    self.spark.conf.unset(key)
                else:
                    self.spark.conf.set(key, old)

    def versions(self) -> dict[int, list[Any]]:
        """Return the counts after each batch, by Spark's state reader."""
        found = {}
        for batch in range(FILES):
            reader = self.spark.read.format("statestore").option("batchId", batch)
            rows = (
                reader.load(str(self.work / "count"))
                .selectExpr("key.k", "value.count", "value.sum")
                .collect()
            )
            found[batch] = sorted(list(row) for row in rows)
        return found

    def report(self) -> dict[str, Any]:
        """Run all queries to their end. Return their report."""
        self.run(FAILS_AT)
        self.run(None)
        # Stores of the ended query may still be open.
        self.spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
        return {
            "rows": self.rows,
            "versions": self.versions(),
            "manifests": len(list(self.work.rglob("*.manifest"))),
            "local": [
                str(path) for path in self.work.parent.glob("local/millpond-*/*-*") if path.is_dir()
            ],
            "failures": {
                kind: len(list(self.marks.glob(f"*.{kind}"))) for kind in ("committed", "half")
            },
        }


def main(argv: list[str]) -> int:
    """Run the corners with the given ids, one after the other."""
    work, provider_class, ids = Path(argv[0]), argv[1], argv[2:]
    spark = session(work, provider_class)
    spark.sparkContext.setLogLevel("OFF")
    reports = {}
    for corner in (c for c in CORNERS if c.id in ids):
        if corner.name != "forced":
            spark.conf.set(f"{_STORE}maintenanceInterval", "100ms")
        reports[corner.id] = Runner(spark, work, corner).report()
        print(corner.id, flush=True)
    (work / "report.json").write_text(json.dumps(reports))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
