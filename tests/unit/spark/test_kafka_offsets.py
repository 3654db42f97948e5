"""The offsets of Kafka sources, as Spark's offset log has them."""

from __future__ import annotations

import pytest

from millpond.spark.kafka_offsets import KafkaOffset, kafka_offsets
from millpond.spark.log_entries import OffsetEntry


def entry(*lines: str, version: str = "v1") -> OffsetEntry:
    return OffsetEntry(
        batch=3, watermark_ms=0, timestamp_ms=0, conf={}, sources=lines, version=version
    )


def at(source: str, topic: str, partition: int, offset: int) -> KafkaOffset:
    return KafkaOffset(source=source, topic=topic, partition=partition, offset=offset)


def test_offsets_come_by_source_topic_and_partition_as_a_number() -> None:
    """Kafka's topics and partitions have no order in the log. 10 comes after 2."""
    found = kafka_offsets(
        entry('{"b":{"10":7,"2":5},"a":{"0":0}}', '{"logOffset":4}', '{"a":{"1":9000000000}}')
    )
    assert found == (
        at("0", "a", 0, 0),
        at("0", "b", 2, 5),
        at("0", "b", 10, 7),
        at("2", "a", 1, 9000000000),
    )


def test_sources_have_their_names_from_v2_of_the_log_on() -> None:
    lines = 'clicks:{"a:b":{"0":3}}', '10:{"c":{"0":5}}', '7:{"c":{"0":4}}', "0:-"
    found = kafka_offsets(entry(*lines, version="v2"))
    assert found == (at("7", "c", 0, 4), at("10", "c", 0, 5), at("clicks", "a:b", 0, 3))


@pytest.mark.parametrize(
    "line",
    [
        "-",
        "0:-",
        "",
        "17",
        "0:17",
        "null",
        '{"logOffset":0}',
        '{"offset":5,"timestamp":5}',
        '{"shard":{"0":"49590338271490256608559692538361571095921575989136588898"}}',
        '{"shard":{"0":true}}',
        '{"shard":{"-1":3}}',
        '{"shard":{"name":3}}',
        '{"shard":{"0":3},"more":4}',
        '[{"0":3}]',
        '{"cut',
    ],
)
def test_a_line_of_another_form_is_no_kafka_source(line: str) -> None:
    assert kafka_offsets(entry(line)) == ()
    assert kafka_offsets(entry(f"0:{line}", version="v2")) == ()
