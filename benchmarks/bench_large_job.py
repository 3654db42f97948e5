# SPDX-License-Identifier: Apache-2.0
"""One process of `bench_large.py`: a query with many keys, loaded, updated for long, or restored.

`python -m benchmarks.bench_large_job <spec.json> <result.json>`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_query import batch, open_session
from integration.processes import below

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Numbers of a row's value. With the count, its key and what Spark adds, a row has 104 bytes.
_NUMBERS = 9
_SAMPLE_S = 5.0


def start(spark: SparkSession, spec: dict[str, Any], *, rows: int) -> StreamingQuery:
    """Start the query. First each row is a new key, then one of those, at random.

    spec: `keys` of the state, `partitions`, `checkpoint`.
    """
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", spec["partitions"])
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    number = f.col("value")
    key = f.when(number < spec["keys"], number).otherwise(
        f.pmod(f.xxhash64("value"), f.lit(spec["keys"]))
    )
    # numbers that nothing compresses
    values = [f.max(f.xxhash64("value", f.lit(i))).alias(f"n{i}") for i in range(_NUMBERS)]
    counts = source.option("numPartitions", 2).load().groupBy(key.alias("key"))
    writer = counts.agg(f.count("*").alias("n"), *values).writeStream.format("noop")
    return writer.outputMode("update").option("checkpointLocation", spec["checkpoint"]).start()


class Batches:
    """The batches of a query, each with the second of its end."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self.all: list[dict[str, Any]] = []

    def look(self) -> None:
        """Take what is new. Raises: StreamingQueryException: the query failed."""
        failure = self._query.exception()
        if failure is not None:
            raise failure
        last = self.all[-1]["batch"] if self.all else -1
        for progress in (json.loads(p.json) for p in self._query.recentProgress):
            if progress["numInputRows"] and progress["batchId"] > last:
                self.all.append(batch(progress) | {"second": time.time()})

    def until(self, done: Any) -> None:
        """Look until `done` is true of the batches."""
        while not done(self.all):
            time.sleep(0.5)
            self.look()


class Samples(threading.Thread):
    """What the process and its children take, every few seconds."""

    def __init__(self, local: Path, checkpoint: Path) -> None:
        super().__init__(daemon=True)
        self._folders = {"local_bytes": local, "stored_bytes": checkpoint}
        self.all: list[dict[str, Any]] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.all.append(self._sample())

    def end(self) -> list[dict[str, Any]]:
        """Return all samples, with one of now."""
        self._ended.set()
        self.join()
        return [*self.all, self._sample()]

    def _sample(self) -> dict[str, Any]:
        taken = {"resident_bytes": 0, "written_bytes": 0}
        for process in (os.getpid(), *(child.pid for child in below(os.getpid()))):
            with contextlib.suppress(OSError):  # it has ended
                pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                taken["resident_bytes"] += pages * os.sysconf("SC_PAGE_SIZE")
                io = Path(f"/proc/{process}/io").read_text().split()
                taken["written_bytes"] += int(io[io.index("write_bytes:") + 1])
        held = {name: _held(folder) for name, folder in self._folders.items()}
        return {"second": time.time(), **taken, **held}


def _held(folder: Path) -> int:
    """Return what a folder's files take on disk. A file with two names counts once."""
    sizes: dict[int, int] = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a compaction has ended
                status = os.stat(os.path.join(path, name))
                sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _load_and_update(spark: SparkSession, spec: dict[str, Any], samples: Samples) -> dict[str, Any]:
    found: dict[str, Any] = {}
    query = start(spark, spec, rows=spec["load_rows"])
    loading = Batches(query)
    loading.until(lambda all_: len(all_) * spec["load_rows"] >= spec["keys"])
    query.stop()
    found["load"] = loading.all
    query = start(spark, spec, rows=spec["rows"])
    updating = Batches(query)
    until = time.time() + spec["seconds"]
    updating.until(lambda all_: all_ and time.time() >= until)
    query.stop()
    updating.look()
    found["updates"] = updating.all
    return found | {"samples": samples.end()}


def _restore(spark: SparkSession, spec: dict[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    query = start(spark, spec, rows=spec["rows"])
    batches = Batches(query)
    batches.until(bool)
    seconds = time.monotonic() - begin
    batches.until(lambda all_: len(all_) >= spec["restored_batches"])
    query.stop()
    return {"first_batch_s": seconds, "batches": batches.all}


def main(spec_path: str, result_path: str) -> None:
    """Do what a spec says, in a session of its own."""
    spec = json.loads(Path(spec_path).read_text())
    conf = spec["conf"] | {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    spark = open_session("millpond-large-bench", conf)
    if spec["phase"] == "restore":
        result = _restore(spark, spec)
    else:
        samples = Samples(Path(conf["spark.local.dir"]), Path(spec["checkpoint"]))
        samples.start()
        result = _load_and_update(spark, spec, samples)
    Path(result_path).write_text(json.dumps(result))
    os._exit(0)  # as bench_query does


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
