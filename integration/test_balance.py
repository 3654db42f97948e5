"""Stores move to executors that join, on a standalone cluster. What moves when is a plan:
`tests/unit/agent/test_balance.py`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.cluster import STATE, Application, Cluster
from integration.harness import millponds_own
from integration.jvm import LIGHT, MILLPOND
from integration.processes import wait_until
from integration.streams import settings
from integration.test_cluster import SETTINGS, WAIT_S, Query
from integration.test_events import events
from millpond import checkpoint
from millpond.spark.progress import StoreMove

pytestmark = millponds_own
PARTITIONS = 8
SHUFFLE = "spark.sql.shuffle.partitions"
ENABLED = STATE + "millpond.balance.enabled"
LOCAL = STATE + "millpond.localDir"
# For tests that say what is where. A young executor's first task may take longer than Spark's three
# seconds: Spark gives its other tasks to somebody else then, and their stores go with them.
PATIENT = {"spark.locality.wait.process": "60s"}
_LOG = """rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.console.type=Console
appender.console.name=stderr
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c{1}: %m%n%ex
logger.millpond.name=org.apache.spark.sql.millpond.events
logger.millpond.level=info
"""


class Balanced(Query):
    """A query that may be balanced."""


class Fixed(Query):
    """A query whose stores stay."""

    conf: Mapping[str, str] = {ENABLED: "false"}


def application(
    cluster: Cluster, work: Path, more: Mapping[str, str] | None = None, **arguments: Any
) -> Application:
    log = work.parent / "log4j2.properties"
    log.write_text(_LOG)
    settings = {
        SHUFFLE: str(PARTITIONS),
        "spark.shuffle.io.connectionTimeout": "6s",
        "spark.shuffle.io.maxRetries": "0",
        "spark.driver.extraJavaOptions": f"{LIGHT} -Djava.io.tmpdir={cluster.scratch}"
        f" -Dlog4j2.configurationFile={log.as_uri()}",
        "spark.executor.extraJavaOptions": f"{LIGHT} -Djava.io.tmpdir={cluster.scratch}"
        f" -Dlog4j2.configurationFile={log.as_uri()}",
        STATE + "maintenanceInterval": "300ms",
        STATE + "minDeltasForSnapshot": "2",
        **(more or {}),
    }
    return Application(cluster, work, settings, **arguments)


def moves(query: Query) -> list[StoreMove]:
    """Return all moves that the history tells, in order."""
    return [m for b in checkpoint.history(str(query.checkpoint)).batches for m in b.moves]


def told(query: Query, count: int) -> list[StoreMove]:
    """Wait until the history tells so many moves: it is written after the batch. Return them."""
    found: list[StoreMove] = []

    def complete() -> bool:
        found[:] = moves(query)
        return len(found) >= count

    wait_until(complete, seconds=WAIT_S, what=f"a history of {count} moves")
    return found


def round_of(queries: Sequence[Query]) -> None:
    """Let each query run a batch or more, all at the same time."""
    for query in queries:
        query.feed()
    for query in queries:
        query.settle()


def joined(cluster: Cluster, count: int) -> None:
    """Start more workers, and wait for their executors."""
    before = len(cluster.executors())
    cluster.add_workers(count)
    wait_until(
        lambda: len(cluster.executors()) == before + count,
        seconds=WAIT_S,
        what="the executors of the new workers",
    )


@pytest.mark.spark
@pytest.mark.parametrize(("columns", "stages"), [(("key", "count"), 1), (("count", "key"), 2)])
def test_branches_of_a_union_are_one_stages_tasks_only_if_a_task_has_both(
    spark: SparkSession, tmp_path: Path, columns: tuple[str, str], stages: int
) -> None:
    """They always were. A task has a partition of each branch if Spark knows that all are cut by
    the same columns. Elsewhere the stores of the second branch were moved to wherever those of the
    first had to go, and nobody took them over when their own executor was lost.
    """
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    first, second = (
        rows.groupBy((rows.value % n).alias("key")).count().select(*order)
        for n, order in ((7, ("key", "count")), (5, columns))
    )
    provider = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}
    with settings(spark, {**provider, SHUFFLE: "3"}):
        query = (
            first.union(second)
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
    assert query.awaitTermination(120)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    plan = query._jsq.streamingQuery().lastExecution().executedPlan()
    found = jvm.org.apache.spark.sql.millpond.driver.Placement.stages(plan)
    operators = [
        found.apply(i).apply(j).info().operatorId()
        for i in range(found.size())
        for j in range(found.apply(i).size())
    ]
    assert found.size() == stages and sorted(operators) == [0, 1]
    while plan.nodeName() != "Union":
        plan = plan.children().head()
    assert plan.execute().getNumPartitions() == 3 * stages, "tasks of the last stage"


@pytest.mark.deep
def test_stores_move_to_an_executor_that_joins(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        # Each executor finds it in its own working directory.
        application(cluster, tmp_path / "app", PATIENT | {LOCAL: "state"}) as app,
    ):
        (app.work / "state").touch()  # the driver cannot have a folder of that name
        query = Balanced(app, tmp_path, "count", format_=2)
        query.settle()
        joined(cluster, 1)
        spread((query,))
        said = [e for e in events(app.log_path.read_text()) if e["event"] == "store_moved"]
        made = told(query, len(said))
        assert {(m.source, m.target) for m in made} == {("0", "1")}, "none has moved back"
        assert all(m.reason.startswith("executor 0 had ") for m in made)
        # They were restored there.
        opened = restored(app, "1")
        # In any order: more than one may move before a batch.
        assert sorted(p for p, _ in opened) == sorted(m.partition for m in made), opened
        assert [int(e["partition"]) for e in said] == [m.partition for m in made]
        query.stop()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fails", "kind"), [("kill -9 $$", "AGENT_LOST"), ("exit 1", "AGENT_NOT_STARTED")]
)
def test_stores_move_once_the_drivers_agent_can_start(
    tmp_path: Path, fails: str, kind: str
) -> None:
    """At first something kills it, as when the machine is out of memory, or it ends by itself."""
    kills, python = tmp_path / "kills", tmp_path / "python"
    kills.touch()
    python.write_text(f'#!/bin/sh\n[ -e "{kills}" ] && {fails}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    settings = PATIENT | {STATE + "millpond.agent.driverPython": str(python)}
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        application(cluster, tmp_path / "app", settings) as app,
    ):
        query = Balanced(app, tmp_path, "count", format_=2)
        query.settle()
        joined(cluster, 1)

        def failed() -> bool:
            round_of([query])
            said = f"none is moved to balance them: {kind}"
            return said in app.log_path.read_text(errors="replace")

        wait_until(failed, seconds=WAIT_S, what="the agent's failure")
        assert moves(query) == []
        kills.unlink()
        spread((query,))
        query.stop()


@pytest.mark.deep
def test_queries_beside_each_other_are_each_spread(tmp_path: Path) -> None:
    """A join has four stores a partition, which move together. One query is not to be balanced."""
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        application(cluster, tmp_path / "app", PATIENT) as app,
    ):
        count = Balanced(app, tmp_path, "count", format_=2)
        join = Balanced(app, tmp_path, "join", format_=1, kind="join")
        fixed = Fixed(app, tmp_path, "fixed", format_=2)
        queries = (count, join, fixed)
        for query in queries:
            query.settle()
        joined(cluster, 1)
        spread((count, join), beside=(fixed,))
        assert moves(fixed) == []
        there = restored(app, "1")
        for query, stores in ((count, 1), (join, 4)):
            wanted = {m.partition for m in moves(query)}
            opened = [p for p, name in there if bool(name) == (query is join)]
            assert Counter(opened) == dict.fromkeys(wanted, stores), (query.name, there)
        for query in queries:
            query.check()


@pytest.mark.deep
def test_stores_spread_where_spark_does_not_wait_for_their_place(tmp_path: Path) -> None:
    """`spark.locality.wait=0`, and tasks that run twice: Spark itself moves stores with each batch,
    and what balance tells it harms nothing.
    """
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        application(cluster, tmp_path / "app", SETTINGS | {SHUFFLE: str(PARTITIONS)}) as app,
    ):
        queries = [
            Balanced(app, tmp_path, "count", format_=2),
            Balanced(app, tmp_path, "join", format_=2, kind="join"),
        ]
        for query in queries:
            query.settle()
        joined(cluster, 1)
        until_it_has_its_share(app, "1", queries)
        for _ in range(3):
            round_of(queries)
        for query in queries:
            query.check()


@pytest.mark.deep
def test_an_executor_is_killed_and_then_the_driver_while_stores_move(tmp_path: Path) -> None:
    """Nothing is lost, nothing is there twice: each row is compared."""
    with Cluster(tmp_path / "cluster", workers=1) as cluster:
        with application(cluster, tmp_path / "app") as app:
            queries = [
                Balanced(app, tmp_path, "count", format_=2),
                Balanced(app, tmp_path, "join", format_=1, kind="join"),
            ]
            for query in queries:
                query.settle()
            joined(cluster, 1)
            first_move(queries)
            # The executor that stores move to, with work of both queries under way.
            for query in queries:
                query.feed()
            (target,) = [e for e in cluster.executors() if e.id == "1"]
            os.kill(target.pid, signal.SIGKILL)
            wait_until(
                lambda: bool(others(cluster) - {"1"}),
                seconds=WAIT_S,
                what="the successor of the lost executor",
            )
            # It gets its share: from Spark, when that retries tasks, and the rest from balance.
            (successor,) = others(cluster) - {"1"}
            until_it_has_its_share(app, successor, queries)
            # One more joins, and the driver dies within the batch whose stores move there.
            joined(cluster, 1)
            (newest,) = others(cluster) - {successor}
            deadline = time.monotonic() + WAIT_S
            while not moves_to(app, newest):
                assert time.monotonic() < deadline, [moves(query) for query in queries]
                for query in queries:
                    query.feed()
                wait_until(
                    lambda: (
                        moves_to(app, newest) or all(q.written() == q.expected() for q in queries)
                    ),
                    seconds=WAIT_S,
                    what="moves to the newest executor, or the end of the batches",
                )
            os.killpg(app.process.pid, signal.SIGKILL)
            app.process.wait()
        with application(cluster, tmp_path / "again", home=app.home) as again:
            for query in queries:
                query.app = again
                query.start()
            for query in queries:
                query.check()


def others(cluster: Cluster) -> set[str]:
    """Return the live executors but the first one."""
    return {e.id for e in cluster.executors()} - {"0"}


def moves_to(app: Application, executor: str) -> bool:
    """Return whether the driver has begun to move stores to an executor."""
    moved = re.compile(rf"event=store_moved .*to_executor={executor} ")
    return bool(moved.search(app.log_path.read_text()))


def places(app: Application, executor: str) -> tuple[set[int], set[int]]:
    """Return the partitions of the count and of the join that an executor opened with state."""
    opened = restored(app, executor)
    return {p for p, name in opened if not name}, {p for p, name in opened if name}


def until_it_has_its_share(app: Application, executor: str, queries: Sequence[Query]) -> None:
    """Run batches until an executor opened its share of the count and of the join with state."""
    deadline = time.monotonic() + WAIT_S
    while any(len(p) < PARTITIONS // 2 - 1 for p in places(app, executor)):
        assert time.monotonic() < deadline, places(app, executor)
        round_of(queries)


def first_move(queries: Sequence[Query]) -> None:
    """Run batches until a store of each query has moved."""
    deadline = time.monotonic() + WAIT_S
    while not all(moves(query) for query in queries):
        assert time.monotonic() < deadline, [moves(query) for query in queries]
        round_of(queries)


def restored(app: Application, executor: str) -> list[tuple[int, str]]:
    """Return the partition and name of each store that an executor opened with state in it."""
    line = re.compile(r"store opened store=0/(\d+)(?:/(\S+))? version=[1-9]")
    return [(int(p), name) for p, name in line.findall(app.executor_logs()[executor])]


def spread(queries: Sequence[Query], *, beside: Sequence[Query] = ()) -> None:
    """Run batches until the second executor has its share of each query, and then some more."""
    least, most = PARTITIONS // 2 - 1, PARTITIONS // 2 + 1
    deadline = time.monotonic() + WAIT_S
    while any(len(moves(q)) < least for q in queries):
        assert time.monotonic() < deadline, [moves(q) for q in queries]
        round_of((*queries, *beside))
    for _ in range(3):
        round_of((*queries, *beside))
    for query in queries:
        assert least <= len(moves(query)) <= most, moves(query)
