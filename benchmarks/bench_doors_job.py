# SPDX-License-Identifier: Apache-2.0
"""A job's two ways to Azure: obstore in the agent, and Hadoop's ABFS in the job's JVM.

    python -m benchmarks.bench_doors_job     # needs what `make peer-azurite` fetches

A count by key in eight partitions, with its state on one Azurite on loopback and Spark's own logs
on the disk. Each way has a process of its own, three times in turn. It prints medians of a batch,
and how many requests the service got for one. Azurite answers in a millisecond: on a real service
each request takes several, so the counts matter more than the times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_doors import asked_of, counting
from benchmarks.bench_env import REPOSITORY
from integration.jvm import MILLPOND
from integration.peers.azurite import parts
from integration.peers.azurite.server import Azurite

PARTITIONS, BATCHES, WARMUP, ROWS, ROUNDS = 8, 30, 10, 2_000, 3
_STATE = "spark.sql.streaming.stateStore."
_WAYS = {"obstore": "auto", "ABFS": "hadoop"}


def job(spec: dict[str, Any]) -> dict[str, float]:
    """Run the query. Return medians of its batches after the first ones, in ms, and requests."""
    from pyspark.sql import SparkSession

    import millpond

    work, log = Path(spec["work"]), Path(spec["log"])
    builder = millpond.configure(SparkSession.builder.master("local[2]"))
    for name, value in spec["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    requests: list[int] = []

    def sink(batch: Any, _: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        requests.append(asked_of(log))

    for number in range(BATCHES):
        frame = spark.range(ROWS).selectExpr(f"id * 7919 % 100000 + {number} AS k")
        frame.coalesce(1).write.mode("append").parquet(str(work / "input"))
    stream = spark.readStream.schema("k long").option("maxFilesPerTrigger", 1)
    counts = stream.parquet(str(work / "input")).groupBy("k").count()
    writer = counts.writeStream.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    told = query.recentProgress[WARMUP:]
    spark.stop()
    return {
        "batch, ms": median(p["durationMs"]["triggerExecution"] for p in told),
        "commit of a store, ms": median(
            p["stateOperators"][0]["commitTimeMs"] / PARTITIONS for p in told
        ),
        "requests a batch": (requests[-1] - requests[WARMUP]) / (len(requests) - 1 - WARMUP),
    }


def main() -> None:
    """Measure both, and print the table."""
    parts.fetch()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        server = counting(work)
        with server.running():
            for number in range(ROUNDS):
                for way, client in _WAYS.items():
                    found[way].append(_child(server, work / f"{way}-{number}", client))
    print(f"| | {' | '.join(found)} |\n|---|---|---|")
    for name in found["obstore"][0]:
        cells = (median(said[name] for said in found[way]) for way in found)
        print(f"| {name} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")


def _child(server: Azurite, work: Path, client: str) -> dict[str, float]:
    work.mkdir()
    conf = {
        f"{_STATE}providerClass": MILLPOND,
        f"{_STATE}millpond.storage.uri": f"{server.make('doors')}/{work.name}",
        f"{_STATE}millpond.storage.azure.client": client,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.numRecentProgressUpdates": str(BATCHES),
        "spark.driver.extraClassPath": os.pathsep.join(map(str, parts.abfs())),
        "spark.local.dir": str(work / "local"),
        "spark.ui.enabled": "false",
        **{f"spark.hadoop.{name}": value for name, value in server.hadoop.items()},
    }
    spec = json.dumps({"work": str(work), "log": str(server._log), "conf": conf})
    command = [sys.executable, "-m", "benchmarks.bench_doors_job", spec]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the job of {work.name} failed")
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(job(json.loads(sys.argv[1]))), flush=True)
    else:
        main()
