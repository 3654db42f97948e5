"""A query whose batches get their times from the test: `ClockedQuery.scala`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import ForeachBatchFunction

from integration.streams import InjectedFailure, settings

START_MS = 1_900_000_000_000
_start_callbacks: Any = java_gateway.ensure_callback_server_started


@dataclass
class ClockedRuns:
    """Runs of a query with one stateful operator.

    Attributes:
        rows: what each batch gave out.
        operators: what Spark told of the operator, by batch. A batch whose attempt failed told
            nothing.
    """

    spark: SparkSession
    rows: dict[int, list[list[Any]]] = field(default_factory=dict)
    operators: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(
        self,
        build: Callable[[], DataFrame],
        mode: str,
        checkpoint: Path,
        times: Mapping[int, int],
        conf: Mapping[str, str],
        *,
        fails: bool,
    ) -> None:
        """Run batches to the end of the input.

        Args:
            build: makes the query. The settings hold then.
            times: in ms, by the number of the batch, without a gap.
            fails: let the sink fail after the first one, and the query begin again.
        """
        first = min(times)
        jvm: Any = self.spark._jvm
        clock = jvm.org.apache.spark.sql.millpond.testing.ClockedQuery.clock(times[first])

        def start(fail_at: int | None) -> StreamingQuery:
            def sink(batch: DataFrame, number: int) -> None:
                found = [list(row) for row in batch.collect()]
                if number == fail_at:
                    raise InjectedFailure(f"injected in batch {number}")
                self.rows[number] = found
                if number + 1 in times:
                    clock.setTime(times[number + 1])

            gateway: Any = self.spark.sparkContext._gateway
            clocked = gateway.jvm.org.apache.spark.sql.millpond.testing.ClockedQuery
            with settings(self.spark, conf):
                frame = build()
                _start_callbacks(gateway)
                function = ForeachBatchFunction(self.spark, sink)
                return StreamingQuery(
                    clocked.start(frame._jdf, mode, str(checkpoint), function, clock)
                )

        if fails:
            with pytest.raises(StreamingQueryException, match="InjectedFailure"):
                self._finish(start(first))
            # its time has passed, and the offset log keeps the time of the batch
            clock.advance(10**9)
        self._finish(start(None))

    def _finish(self, query: StreamingQuery) -> None:
        try:
            assert query.awaitTermination(120), query.lastProgress
        finally:
            query.stop()
        for progress in query.recentProgress:
            (operator,) = progress["stateOperators"]
            self.operators[progress["batchId"]] = operator

    def ended(self, number: int) -> int:
        """Return how many rows a batch ended. Spark's own stores tell nothing."""
        return int(self.operators[number]["customMetrics"].get("millpondExpiredRows", 0))

    def total(self, number: int) -> int:
        """Return how many rows there were after a batch."""
        return int(self.operators[number]["numRowsTotal"])
