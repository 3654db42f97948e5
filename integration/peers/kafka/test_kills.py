"""Queries from Kafka to Kafka, and to `foreachBatch`. Drivers and executors are killed with -9 in
mid-batch, and the broker stands still for a while. State and output equal the batch computation
over the topics.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millpond
from integration.cluster import Cluster, documented_settings
from integration.gate import Gate
from integration.jvm import LIGHT, REPO
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.jobs import Jobs, kill
from integration.peers.kafka.observed import name_of, state_of
from integration.peers.kafka.queries import (
    Batches,
    counted,
    last,
    numbers,
    paired,
    produce,
    records,
)
from integration.processes import alive, wait_until
from integration.test_crash import results

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_STORES = {"join": "left-keyToNumValues"}  # the store that is held, where it is not `default`
_AGENT = "spark.sql.streaming.stateStore.millpond.agent.python"


class Scene:
    """A job over topics that have all their records from the beginning."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: Broker,
        work: Path,
        name: str,
        query: str,
        *,
        to_topic: bool,
    ) -> None:
        self.spark, self.kafka, self.work, self.query = spark, kafka, work, query
        self.sources = [f"{name}-left", f"{name}-right"] if query == "join" else [f"{name}-in"]
        for topic in self.sources:
            batches = Batches()
            produce(spark, kafka, topic, [row for _ in range(10) for row in batches.next()])
        self.out = f"{name}-out" if to_topic else None
        self.gate = Gate(work / "gate")

    def jobs(self, connectors: list[Path], format: str, **conf: str) -> Jobs:
        """Return the job, whose agents the gate can hold."""
        said: dict[str, object] = {"query": self.query, "sources": self.sources}
        if self.out is not None:
            said["topic"] = self.out
        own = {_AGENT: str(self.gate.interpreter), **conf}
        return Jobs(self.work, self.kafka, connectors, format, said, own)

    def hold(self) -> Any:
        """Hold the next commit of partition 1, of any batch."""
        return self.gate.hold("checkpoint", 1, _STORES.get(self.query, "default"))

    def check(self) -> None:
        """Compare output and state with the batch computation over the topics."""
        frames = [numbers(self.spark, self.kafka, topic) for topic in self.sources]
        of_batch = paired(*frames) if self.query == "join" else counted(*frames)
        expected = sorted((row.key, row.value) for row in of_batch.collect())
        assert len(expected) > 10
        assert self._written() == expected
        rows = [sorted((row.key, row.value) for row in frame.collect()) for frame in frames]
        checkpoint = self.work / "checkpoint"
        if self.query == "count":
            assert sorted(state_of(checkpoint).items()) == expected
        elif self.query == "state":
            totals = _kept(checkpoint, "column_family", "total")
            texts = [(k, f'{{"n":{v["n"]},"s":{v["s"]}}}') for k, v in totals]
            assert sorted(texts) == expected
            numbers_kept = _kept(checkpoint, "column_family", "numbers")
            assert sorted((k, v["value"]) for k, v in numbers_kept) == rows[0]
        else:
            for side, of_topic in zip("lr", rows, strict=True):
                store = {"l": "left", "r": "right"}[side]
                kept = _kept(checkpoint, "store", f"{store}-keyWithIndexToValue")
                assert sorted((k, v[side]) for k, v in kept) == of_topic

    def _written(self) -> list[tuple[str, str]]:
        """Return the last text of each key; of the join each pair."""
        if self.out is not None:
            found = records(self.spark, self.kafka, self.out)
        else:
            found = {}
            for key, value in results(self.work, self.query):
                found.setdefault(key, []).append(value)
        if self.query != "join":
            return sorted(last(found).items())
        # Kafka's sink writes a batch again that was interrupted, foreachBatch here does not.
        if self.out is not None:
            found = {key: sorted(set(values)) for key, values in found.items()}
        return sorted((key, value) for key, values in found.items() for value in values)


def _kept(checkpoint: Path, what: str, name: str) -> list[tuple[str, Any]]:
    """Return the keys and values of a store or of a column family."""
    where: dict[str, Any] = {what: name}
    found = millpond.read_state(checkpoint, **where).to_pylist()
    return [(next(iter(row["key"].values())), row["value"]) for row in found]


@pytest.mark.parametrize(
    ("query", "to_topic", "format"),
    [("count", True, "1"), ("join", False, "2"), ("state", True, "2")],
)
def test_the_driver_is_killed_and_the_broker_stands_still(
    spark: SparkSession,
    kafka: Broker,
    connectors: list[Path],
    tmp_path: Path,
    query: str,
    to_topic: bool,
    format: str,
    request: pytest.FixtureRequest,
) -> None:
    """The driver is killed in the middle of a commit, then while it waits for the broker. The next
    one starts when the broker still stands.
    """
    scene = Scene(spark, kafka, tmp_path, name_of(request), query, to_topic=to_topic)
    jobs = scene.jobs(connectors, format)
    job = jobs.start()
    jobs.wait_for(job, 1)
    held = scene.hold().wait()
    assert held["jvm"] == job.jvm
    kill(job)
    begun = _batches(jobs, "offsets")
    assert begun == _batches(jobs, "commits") + 1
    job = jobs.start()
    jobs.wait_for(job, begun)
    with kafka.paused():
        wait_until(lambda: bool(kafka.awaiting()), seconds=60, what="a request to the broker")
        kill(job)
        before = kafka.awaiting()
        job = jobs.start()
        wait_until(lambda: kafka.awaiting() > before, seconds=60, what="a request of the new job")
    assert job.end() == 0, job.report()
    scene.check()


def _batches(jobs: Jobs, log: str) -> int:
    return max(int(name) for name in os.listdir(jobs.checkpoint / log) if name.isdecimal())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster with two executors."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.mark.parametrize(
    ("query", "to_topic", "format"),
    [("count", False, "2"), ("join", True, "1"), ("state", False, "1")],
)
def test_executors_are_killed_and_the_broker_stands_still(
    spark: SparkSession,
    kafka: Broker,
    connectors: list[Path],
    cluster: Cluster,
    tmp_path: Path,
    query: str,
    to_topic: bool,
    format: str,
    request: pytest.FixtureRequest,
) -> None:
    """An executor is killed in the middle of a commit. Another one does its tasks again, but first
    it waits for the broker.
    """
    scene = Scene(spark, kafka, tmp_path, name_of(request), query, to_topic=to_topic)
    conf = documented_settings(cluster.url) | {
        "spark.jars": ",".join(map(str, [millpond.jar(), *connectors])),
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "256m",
        "spark.executor.extraJavaOptions": LIGHT,
        "spark.executorEnv.PYTHONPATH": str(REPO),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    jobs = scene.jobs(connectors, format, **conf)
    job = jobs.start()
    jobs.wait_for(job, 1)
    held = scene.hold().wait()
    assert held["jvm"] in {executor.pid for executor in cluster.executors()}
    with kafka.paused():
        os.kill(held["jvm"], signal.SIGKILL)
        wait_until(lambda: not alive(held["agent"]), seconds=5, what="the agent to end")
        wait_until(lambda: bool(kafka.awaiting()), seconds=60, what="a request to the broker")
    assert job.end() == 0, job.report()
    scene.check()
