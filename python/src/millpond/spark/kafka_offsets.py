"""Reads the offsets of Kafka sources from an entry of Spark's offset log (pure).

A source's line there is `{"<topic>":{"<partition>":<next offset to be read>}}`, from v2 of the log
on behind `<source>:`. Source: `KafkaSourceOffset`, `JsonUtils` of Spark 4.3.0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from millpond.spark.log_entries import OffsetEntry


def connector(spark: str) -> str:
    """Return the coordinates of Spark's Kafka connector for a version of Spark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class KafkaOffset:
    """Where a query goes on in one partition of a topic."""

    source: str  # its number in the query, from 0, or the name that the job gave it
    topic: str
    partition: int
    offset: int  # of the next record to be read: the batch read all records before it


def kafka_offsets(entry: OffsetEntry) -> tuple[KafkaOffset, ...]:
    """Return the offsets of all Kafka sources, by source, then by topic and partition.

    A source of another kind has none: its line has another form. Nor has one that gave nothing yet.
    """
    found: list[KafkaOffset] = []
    for source, text in entry.by_source.items():
        found += sorted(_of_source(source, text))
    return tuple(found)


def _of_source(source: str, text: str) -> list[KafkaOffset]:
    try:
        topics = json.loads(text)
    except ValueError:
        return []  # `-`, or a source whose offsets are no JSON
    if not isinstance(topics, dict):
        return []
    found: list[KafkaOffset] = []
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            return []
        for partition, offset in partitions.items():
            if not _is_number(partition) or type(offset) is not int:
                return []
            found.append(
                KafkaOffset(source=source, topic=topic, partition=int(partition), offset=offset)
            )
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
