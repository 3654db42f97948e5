"""What is said of Kafka's topics that no longer fit a savepoint."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millpond.operations.savepoint.kafka_warnings import compared
from millpond.spark.kafka_offsets import KafkaOffset
from millpond.spark.kafka_topics import KafkaSource

Topics = Mapping[str, Mapping[int, tuple[int, int]]]


def _saved(source: str = "0", **topics: list[int]) -> list[KafkaOffset]:
    """Return saved offsets: of each topic those of its partitions, from 0."""
    return [
        KafkaOffset(source=source, topic=topic, partition=partition, offset=offset)
        for topic, offsets in topics.items()
        for partition, offset in enumerate(offsets)
    ]


def _source(topics: Topics, reads: Mapping[str, set[int]] | None = None) -> KafkaSource:
    read = {topic: set(there) for topic, there in topics.items()} if reads is None else reads
    return KafkaSource(
        source=0,
        name="clicks-in",
        servers="here:9092",
        topics=topics,
        reads={topic: frozenset(numbers) for topic, numbers in read.items()},
    )


def test_offsets_that_are_there_need_no_warning() -> None:
    found = [_source({"clicks": {0: (3, 9), 1: (0, 4)}})]
    assert list(compared(_saved(clicks=[3, 4]), found)) == []
    assert list(compared(_saved("clicks-in", clicks=[9, 0]), found)) == []  # by the source's name


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ({"clicks": {0: (4, 9), 1: (0, 5)}}, "partition 0 at 3, its first record is 4"),
        ({"clicks": {0: (0, 2), 1: (0, 5)}}, "partition 0 at 3, it ends at 2"),
        ({"clicks": {0: (0, 9)}}, "no longer has all partitions with saved offsets (1)"),
        ({"clicks": dict.fromkeys(range(4), (0, 9))}, "more partitions than were saved (2, 3)"),
        ({"clicks": {}}, "topic clicks is not there any more, says the Kafka broker at here:9092"),
        ({}, "topic clicks is not there any more"),
        ({"clicks": {0: (0, 9), 1: (0, 9)}, "views": {0: (0, 1)}}, "topic views has no saved off"),
    ],
)
def test_a_difference_is_one_warning(topics: Topics, words: str) -> None:
    (said,) = compared(_saved(clicks=[3, 5]), [_source(topics)])
    assert said.startswith("source 0: topic ") and words in said


def test_partitions_that_were_added_may_have_lost_records() -> None:
    topics = {"clicks": {0: (0, 9), 1: (7, 9)}}
    _, said = compared(_saved(clicks=[3]), [_source(topics)])
    assert "partition 1 begins at 7" in said


def test_what_the_job_does_not_read() -> None:
    topics = {"clicks": {0: (0, 9), 1: (0, 9)}, "views": {0: (0, 9)}}
    found = [_source(topics, {"clicks": {0}})]
    unread, partition = compared(_saved(clicks=[3, 5], views=[1]), found)[::-1]
    assert "topic views has saved offsets, and the job does not read it" in unread
    assert "no longer has all partitions with saved offsets (1)" in partition
    (said,) = compared(_saved("1", views=[1]), found)
    assert "source 1 of the job does not" in said


def test_a_broker_that_does_not_answer() -> None:
    found = KafkaSource(source=0, name="", servers="gone:1", error="TimeoutException: no node")
    (said,) = compared(_saved(clicks=[3], views=[5]), [found])
    assert "the Kafka broker at gone:1 did not say" in said
    assert "topics clicks, views" in said and "TimeoutException: no node" in said


def test_many_partitions_are_not_all_named() -> None:
    found = [_source({"clicks": dict.fromkeys(range(20), (7, 9))})]
    (said,) = compared(_saved(clicks=[0] * 20), found)
    assert said.count("its first record is 7") == 5 and "and 15 more" in said


def test_a_connector_of_another_spark() -> None:
    def said(connector: str) -> tuple[str, ...]:
        found = KafkaSource(
            source=0,
            name="",
            servers="here:9092",
            connector=connector,
            spark="4.3.0",
            topics={"clicks": {0: (0, 9)}},
            reads={"clicks": frozenset({0})},
        )
        return compared(_saved(clicks=[3]), [found])

    assert said("4.3.0") == said("4.2.1") == said("") == ()
    (words,) = said("3.5.7")
    assert "connector is that of Spark 3.5.7, and Spark 4.3.0 runs" in words
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0" in words
