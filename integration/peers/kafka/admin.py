"""What an administrator does to topics, by the Kafka client of the session's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from integration.peers.kafka.broker import Broker


@contextmanager
def _admin(spark: SparkSession, kafka: Broker) -> Iterator[Any]:
    jvm: Any = spark._jvm
    client = jvm.org.apache.kafka.clients.admin.Admin.create({"bootstrap.servers": kafka.servers})
    try:
        yield client, jvm.org.apache.kafka
    finally:
        client.close()


def delete_topic(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """Delete a topic with its records."""
    with _admin(spark, kafka) as (client, _):
        client.deleteTopics([topic]).all().get()


def add_partitions(spark: SparkSession, kafka: Broker, topic: str, to: int) -> None:
    """Give a topic `to` partitions in all."""
    with _admin(spark, kafka) as (client, classes):
        more = classes.clients.admin.NewPartitions.increaseTo(to)
        client.createPartitions({topic: more}).all().get()


def delete_records(
    spark: SparkSession, kafka: Broker, topic: str, before: Mapping[int, int]
) -> None:
    """Delete the records before an offset, by partition, as retention does."""
    with _admin(spark, kafka) as (client, classes):
        # py4j does not find this one by its name, which an instance method has too.
        session: Any = spark
        of_class = session._jvm.org.apache.spark.util.Utils.classForName(
            "org.apache.kafka.clients.admin.RecordsToDelete", True, False
        )
        (until,) = [
            method
            for method in of_class.getMethods()
            if method.getName() == "beforeOffset" and method.getParameterCount() == 1
        ]
        asked = {}
        for partition, offset in before.items():
            arguments = session._sc._gateway.new_array(session._jvm.Object, 1)
            arguments[0] = offset
            asked[classes.common.TopicPartition(topic, partition)] = until.invoke(None, arguments)
        client.deleteRecords(asked).all().get()
