"""Queries of Python's `transformWithState` and `applyInPandasWithState` in a Spark of their own.

`python -m integration.transport_job DIRECTORY SETTINGS` runs them; SETTINGS is a JSON object of
Spark's, beside state that travels in bulk. It prints one JSON object: for each query its rows, how
many bytes or keys went in bulk, and the condition of its error. Spark's log goes to stderr, with
Millpond's events.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import millpond
from integration.jvm import LIGHT_DRIVER
from integration.transports import BULK, BULK_METRICS, transport_conf

KEYS, TEXT, ECHOES = 16, 250_000, 5
_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.console.type=Console
appender.console.name=stderr
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c{1}: %m%n%ex
logger.events.name=org.apache.spark.sql.millpond.events
logger.events.level=info
"""


class Sums(StatefulProcessor):
    """Sums the values of a key. It starts from an initial state, where there is one."""

    def __init__(self, form: str) -> None:
        self.form = form

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "v long")

    def _total(self) -> int:
        before = self.sum.get()
        return int(before[0]) if before else 0

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.sum.update((1000 * key[0],))

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        total = self._total()
        for row in rows:
            total += sum(row["v"].tolist()) if self.form == "pandas" else row["v"]
        self.sum.update((total,))
        logging.getLogger("job").warning("key %d of user code", key[0])
        if self.form == "pandas":
            import pandas as pd

            yield pd.DataFrame({"k": [key[0]], "n": [total]})
        else:
            yield Row(k=key[0], n=total)

    def close(self) -> None:
        logging.getLogger("job").warning("user code is closed")


class Echo(StatefulProcessor):
    """Gives back much more than it gets, of rows that fill the sockets in both directions."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getListState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for i in range(ECHOES):
                self.seen.appendValue((i,))
                yield Row(k=key[0], text=row["text"])

    def close(self) -> None:
        return


def _numbers(spark: SparkSession, rows: int) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return source.option("numPartitions", 1).load()


def _row(spark: SparkSession) -> DataFrame:
    grouped = _numbers(spark, 40).selectExpr("value % 7 AS k", "value AS v").groupBy("k")
    seeds = spark.range(7).selectExpr("id AS k").groupBy("k")
    return grouped.transformWithState(
        Sums("row"), "k long, n long", "Update", "None", initialState=seeds
    )


def _pandas(spark: SparkSession) -> DataFrame:
    grouped = _numbers(spark, 40).selectExpr("value % 7 AS k", "value AS v").groupBy("k")
    return grouped.transformWithStateInPandas(Sums("pandas"), "k long, n long", "Update", "None")


def _added(key: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
    import pandas as pd

    total = state.get[0] if state.exists else 0
    total += sum(int(frame["v"].sum()) for frame in frames)
    state.update((total,))
    logging.getLogger("job").warning("key %d of a function", key[0])
    yield pd.DataFrame({"k": [key[0]], "n": [total]})


def _apply(spark: SparkSession) -> DataFrame:
    grouped = _numbers(spark, 40).selectExpr("value % 7 AS k", "value AS v").groupBy("k")
    return grouped.applyInPandasWithState(
        _added, "k long, n long", "total long", "update", "NoTimeout"
    )


def _echo(spark: SparkSession) -> DataFrame:
    large = _numbers(spark, KEYS).selectExpr("value AS k", f"repeat('x', {TEXT}) AS text")
    echoed = large.groupBy("k").transformWithState(Echo(), "k long, text string", "Update", "None")
    return echoed.selectExpr("k", "length(text) AS n")


def expected(seeds: bool) -> list[list[int]]:
    """Return the rows of the queries `row` (with seeds), `pandas` and `apply`."""
    sums = [sum(range(key, 40, 7)) + (1000 * key if seeds else 0) for key in range(7)]
    return [[key, total] for key, total in enumerate(sums)]


def main(directory: Path, settings: dict[str, str]) -> None:
    """Run the queries, one batch each."""
    logs = directory / "log4j2.properties"
    logs.write_text(_LOGGING)
    java_options = f"{LIGHT_DRIVER} -Dlog4j2.configurationFile={logs.as_uri()}"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "700m").config("spark.local.dir", directory)
    builder = builder.config("spark.driver.extraJavaOptions", java_options)
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    for name, value in {**transport_conf(BULK), **settings}.items():
        builder = builder.config(name, value)
    spark = millpond.configure(builder).getOrCreate()
    found: dict[str, Any] = {}
    queries = {"row": _row, "pandas": _pandas, "echo": _echo, "apply": _apply}
    for name, build in queries.items():
        rows: list[list[int]] = []
        condition = ""

        def sink(batch: DataFrame, _: int, rows: list[list[int]] = rows) -> None:
            rows += map(list, batch.groupBy("k").agg(F.sum("n")).collect())

        writer = build(spark).writeStream.outputMode("update").foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(directory / name))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), f"{name} did not end"
        except StreamingQueryException as error:
            condition = error.getCondition() or "none"
        operators = [op for p in query.recentProgress for op in p["stateOperators"]]
        sent = [op["customMetrics"].get(metric, 0) for op in operators for metric in BULK_METRICS]
        found[name] = {"rows": sorted(rows), "sent": sum(sent), "condition": condition}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
