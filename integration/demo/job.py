"""The driver process that the demo kills: runs the four streaming queries to their end.

The demo starts it by `python -m integration.demo.job <work> <provider> <fd>`. It writes one JSON
object a line to the file descriptor: `started`, `running`, `progress` (a micro-batch is committed),
`finished`, `failed`. It ends when its stdin closes, so it cannot outlive the demo.
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


class Events:
    """Tells the parent process what happens. Any thread may call it."""

    def __init__(self, fd: int) -> None:
        self._out = open(fd, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (open to the end of the process)
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        with self._lock:
            self._out.write(json.dumps({"event": event, **fields}) + "\n")


class Reporter(StreamingQueryListener):
    """Passes on Spark's reports of micro-batches."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.ended: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.events.say("started", job=event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.events.say("progress", **summary(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There is nothing to tell."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.ended.put((str(event.id), event.exception))


def summary(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a StreamingQueryProgress that the demo shows.

    Counters are sums over the query's operators.
    """
    operators: list[dict[str, Any]] = progress["stateOperators"]
    custom: dict[str, int] = {}
    for operator in operators:
        for name, value in operator.get("customMetrics", {}).items():
            if name.startswith("millpond"):
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
    """Start the four queries, or resume them from their Spark checkpoints. Return them by id."""
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
    # Without sys.stdin: this thread would hold the lock of its buffer when the interpreter ends.
    while os.read(0, 4096):
        pass
    os._exit(3)


def main(work: Path, provider: str, events: Events) -> int:
    threading.Thread(target=die_with_parent, daemon=True).start()
    spark = open_session(provider=provider, work=work)
    reporter = Reporter(events)
    spark.streams.addListener(reporter)
    running = start(spark, work, Feeds.load(work / "feeds"))
    events.say("running", jobs=[query.name for query in running.values()])
    while running:
        query_id, error = reporter.ended.get()
        query = running.pop(query_id)
        if error is not None:
            events.say("failed", job=query.name, message=error)
            return 1
        events.say("finished", job=query.name)
    spark.streams.removeListener(reporter)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Events(int(sys.argv[3]))))
