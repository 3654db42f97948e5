"""The job that the tests of Kafka kill: a query of `queries.QUERIES`.

Run as `python job.py <work dir> <checkpoint format> <provider class>`. `job.json` in the work
directory says more: `sources` are the topics that the query reads, without them the files in
`input`; `topic` is the one that it writes to, without it the sink is `foreachBatch`.
"""

from __future__ import annotations

import json
from pathlib import Path

from integration.crash_job import run, session, sink
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.queries import MODES, QUERIES, SCHEMA, from_topic, to_topic


def main(argv: list[str]) -> int:
    """Run the query until its input is done."""
    work = Path(argv[0])
    job = json.loads((work / "job.json").read_text())
    kafka = Broker(job["servers"])
    spark = session(work, argv[1], argv[2])
    if "sources" in job:
        # Some seven records of each topic are a batch.
        streams = [from_topic(spark, kafka, t, maxOffsetsPerTrigger="7") for t in job["sources"]]
    else:
        schema = spark.createDataFrame(SCHEMA.empty_table()).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        streams = [reader.parquet(str(work / "input"))]
    name = job.get("query", "count")
    frame = QUERIES[name](*streams)
    if "topic" in job:
        writer = to_topic(frame, kafka, job["topic"])
    else:
        writer = frame.writeStream.foreachBatch(sink(work, name))
    writer = writer.outputMode(MODES.get(name, "update"))
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    run(main)
