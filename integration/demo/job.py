"""The driver process that the demo kills: runs the four streaming queries to their end.

Started as `python -m integration.demo.job <work> <provider>`. Prints one JSON object a line on stdout: `started`,
`running`, `progress` (a micro-batch was committed), `finished`, `failed`. Ends by itself when stdin closes, so
it cannot outlive the demo.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from integration.demo.data import Feeds
from integration.demo.queries import JOBS, stream_reader
from integration.demo.session import open_session

WRITING = threading.Lock()


def say(event: str, **fields: Any) -> None:
    """Print one event for the demo's parent process."""
    with WRITING:
        print(json.dumps({"event": event, **fields}), flush=True)


class Reporter(StreamingQueryListener):
    """Passes on what Spark tells about each micro-batch."""

    def __init__(self) -> None:
        self.ended: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        say("started", job=event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        say("progress", **summary(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to tell."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.ended.put((str(event.id), event.exception))


def summary(progress: dict[str, Any]) -> dict[str, Any]:
    """Return what the demo shows of a StreamingQueryProgress; counters are summed over the query's operators."""
    operators: list[dict[str, Any]] = progress["stateOperators"]
    custom: dict[str, int] = {}
    for operator in operators:
        for name, value in operator.get("customMetrics", {}).items():
            custom[name] = custom.get(name, 0) + int(value)
    return {
        "job": progress["name"],
        "batch": progress["batchId"],
        "input_rows": progress["numInputRows"],
        "batch_ms": progress["durationMs"].get("triggerExecution", 0),
        "state_rows": sum(operator["numRowsTotal"] for operator in operators),
        # Spark sums the time over the partitions of an operator.
        "commit_ms": sum(operator["commitTimeMs"] for operator in operators),
        "late_rows": sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        "custom": custom,
    }


def start(spark: SparkSession, work: Path, feeds: Feeds) -> dict[str, StreamingQuery]:
    """Start the four queries, or resume them where their Spark checkpoints say; return them by query id."""
    read = stream_reader(spark, feeds)
    queries = {}
    for job in JOBS:
        query = (
            job.build(read, feeds.lateness, True)
            .writeStream.queryName(job.name)
            .format("parquet")
            .outputMode("append")
            .option("path", str(work / "out" / job.name))
            .option("checkpointLocation", str(work / "checkpoints" / job.name))
            .trigger(availableNow=True)
            .start()
        )
        queries[str(query.id)] = query
    return queries


def die_with_parent() -> None:
    # Not through sys.stdin: its buffer would be locked by this thread when the interpreter ends.
    while os.read(0, 4096):
        pass
    os._exit(3)


def main(work: Path, provider: str) -> int:
    threading.Thread(target=die_with_parent, daemon=True).start()
    spark = open_session(provider=provider, work=work)
    reporter = Reporter()
    spark.streams.addListener(reporter)
    running = start(spark, work, Feeds.load(work / "feeds"))
    say("running", jobs=[query.name for query in running.values()])
    while running:
        query_id, error = reporter.ended.get()
        query = running.pop(query_id)
        if error is not None:
            say("failed", job=query.name, message=error)
            return 1
        say("finished", job=query.name)
    spark.streams.removeListener(reporter)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
