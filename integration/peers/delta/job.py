"""The job that a test kills. It writes each key of its input to a Delta table once.

`python -m integration.peers.delta.job <work dir> <Spark checkpoint format> <provider class>`. The
environment variable MILLPOND_CRASH_JOB has more settings. With `app` among them the job writes by
foreachBatch, as that application.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from integration.crash_job import run
from integration.peers.delta.session import session, table, transactions
from integration.sink_queries import FORMAT, PROVIDER


def main(argv: list[str]) -> int:
    """Run the query to the end of its input."""
    work = Path(argv[0])
    given = json.loads(os.environ["MILLPOND_CRASH_JOB"])
    app = given.pop("app", None)
    spark = session(work, {FORMAT: argv[1], PROVIDER: argv[2], **given})
    spark.sparkContext.setLogLevel("ERROR")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(f"jvm {gateway.proc.pid}", flush=True)
    rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1)
    once = rows.parquet(str(work / "input")).dropDuplicates(["key"])
    sink = transactions(work / "table", app) if app else table(work / "table")
    writer = sink(once.writeStream).option("checkpointLocation", str(work / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    run(main)
