"""What the tests of Kafka look at: offsets, states, and what a topic makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.jvm import MILLPOND
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.queries import counted, numbers, read_topic
from millpond import savepoint

STATE = "spark.sql.streaming.stateStore."
PARTITIONS = "spark.sql.shuffle.partitions"
_FORMAT = f"{STATE}checkpointFormatVersion"


def name_of(request: pytest.FixtureRequest) -> str:
    """Return the name of a test, fit for topics."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


def conf_of(format: str) -> dict[str, str]:
    """Return the settings of a session."""
    return {f"{STATE}providerClass": MILLPOND, PARTITIONS: "2", _FORMAT: format}


def finish(writer: DataStreamWriter, checkpoint: Path) -> None:
    """Run a query over all input that is there."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def ends_of(spark: SparkSession, kafka: Broker, topic: str) -> dict[str, dict[str, int]]:
    """Return the next offset of each partition, in the form of Spark's offset log."""
    read = read_topic(spark, kafka, topic).groupBy("partition").agg({"offset": "max"})
    return {topic: {str(row[0]): row[1] + 1 for row in read.collect()}}


def offsets_of(checkpoint: Path, batch: int) -> Any:
    """Return the offsets of the first source after a batch."""
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def shown(saved: Path) -> dict[str, dict[str, int]]:
    """Return the offsets that `show` reports, in the form of Spark's log."""
    found: dict[str, dict[str, int]] = {}
    for one in savepoint.show(saved).kafka_offsets:
        found.setdefault(one.topic, {})[str(one.partition)] = one.offset
    return found


def of_topic(spark: SparkSession, kafka: Broker, topic: str) -> dict[str, str]:
    """Return what a batch computation makes of a topic."""
    rows = numbers(spark, kafka, topic)
    return {row.key: row.value for row in counted(rows).collect()}


def state_of(checkpoint: Path) -> dict[str, str]:
    """Return the state in the form of the records that the query writes."""
    return {
        row["key"]["key"]: json.dumps(
            {"n": row["value"]["count"], "s": row["value"]["sum"]}, separators=(",", ":")
        )
        for row in millpond.read_state(checkpoint).to_pylist()
    }
