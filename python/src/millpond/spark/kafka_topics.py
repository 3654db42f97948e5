"""What Kafka's brokers have of the topics that a job reads: asked through the job's own sources."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millpond.spark.job import of_shim
from millpond.spark.job_script import JobQuery

_TOPICS = "org.apache.spark.sql.millpond.tools.KafkaTopics"
Partitions = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A source of a job that reads Kafka."""

    source: int  # its number in the query, from 0
    name: str  # which the job gave it; else empty
    servers: str
    connector: str = ""  # its version; empty if unknown
    spark: str = ""  # the version of the Spark that runs
    error: str = ""  # why the broker gave no answer
    # By topic and partition: the first offset that is there, and the one after the last. A topic
    # without partitions does not exist.
    topics: Mapping[str, Partitions] = field(default_factory=dict)
    reads: Mapping[str, frozenset[int]] = field(default_factory=dict)  # the partitions it reads


def kafka_sources(query: JobQuery, named: Collection[str]) -> list[KafkaSource]:
    """Return the sources of `query` that read Kafka, with what their brokers say.

    Args:
        named: topics to ask for, beside those that the sources read.
    Raises: UnsupportedError: SHIM_MISSING.
    """
    said = of_shim(_TOPICS).describe(query.writer._jwrite, json.dumps(sorted(named)))
    return [
        KafkaSource(
            source=one["source"],
            name=one["name"],
            servers=one["servers"],
            connector=one["connector"],
            spark=one["spark"],
            error=one.get("error", ""),
            topics={
                topic: {int(number): (first, end) for number, (first, end) in partitions.items()}
                for topic, partitions in one.get("topics", {}).items()
            },
            reads={topic: frozenset(numbers) for topic, numbers in one.get("read", {}).items()},
        )
        for one in json.loads(said)["sources"]
    ]
