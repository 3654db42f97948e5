"""The job that the tests of Kafka kill. It counts by key, and writes the counts to a topic.

Run as `python job.py <work dir> <checkpoint format> <provider class>`. `job.json` in the work
directory has the settings. The job reads the topic `source`, or without one the files in `input`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from integration.crash_job import session
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.queries import SCHEMA, counted, from_topic, to_topic


def main(argv: list[str]) -> int:
    """Run the query until its input is done."""
    work = Path(argv[0])
    job = json.loads((work / "job.json").read_text())
    kafka = Broker(job["servers"])
    spark = session(work, argv[1], argv[2])
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.sparkContext.setLogLevel("ERROR")
    print(f"jvm {gateway.proc.pid}", flush=True)
    if "source" in job:
        rows = from_topic(spark, kafka, job["source"], maxOffsetsPerTrigger="7")  # a batch
    else:
        schema = spark.createDataFrame(SCHEMA.empty_table()).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(work / "input"))
    writer = to_topic(counted(rows), kafka, job["topic"])
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Exception as error:  # the JVM was killed, or the query failed: the parent reads which
        print(f"failed {type(error).__name__}: {error}", flush=True)
        code = 3
    sys.stdout.flush()
    os._exit(code)  # no attempt to say goodbye to a JVM that may be gone
