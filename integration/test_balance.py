"""Stores move to executors that join, on a standalone cluster. What moves when is a plan:
`tests/unit/agent/test_balance.py`.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from integration.cluster import STATE, Application, Cluster
from integration.harness import providers_to_test
from integration.jvm import LIGHT, MILLPOND
from integration.processes import wait_until
from integration.test_cluster import WAIT_S, Query
from integration.test_events import events
from millpond import checkpoint
from millpond.spark.progress import StoreMove

pytestmark = pytest.mark.skipif(
    MILLPOND not in providers_to_test(), reason="about Millpond's agents on a cluster"
)
PARTITIONS = 8
ENABLED = STATE + "millpond.balance.enabled"
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


def application(cluster: Cluster, work: Path, **arguments: Any) -> Application:
    log = work.parent / "log4j2.properties"
    log.write_text(_LOG)
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.shuffle.io.connectionTimeout": "6s",
        "spark.shuffle.io.maxRetries": "0",
        "spark.driver.extraJavaOptions": f"{LIGHT} -Djava.io.tmpdir={cluster.scratch}"
        f" -Dlog4j2.configurationFile={log.as_uri()}",
        STATE + "maintenanceInterval": "300ms",
        STATE + "minDeltasForSnapshot": "2",
    }
    return Application(cluster, work, settings, **arguments)


def moves(query: Query) -> list[StoreMove]:
    """Return all moves that the history tells, in order."""
    return [m for b in checkpoint.history(str(query.checkpoint)).batches for m in b.moves]


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


def test_stores_move_to_an_executor_that_joins(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        application(cluster, tmp_path / "app") as app,
    ):
        query = Balanced(app, tmp_path, "count", format_=2)
        query.settle()
        joined(cluster, 1)
        spread((query,))
        made = moves(query)
        assert {(m.source, m.target) for m in made} == {("0", "1")}, "none has moved back"
        assert all(m.reason.startswith("executor 0 had ") for m in made)
        # They were restored there.
        opened = restored(app, "1")
        assert [p for p, _ in opened] == [m.partition for m in made], (opened, made)
        said = [e for e in events(app.log_path.read_text()) if e["event"] == "store_moved"]
        assert [int(e["partition"]) for e in said] == [m.partition for m in made]
        query.stop()


@pytest.mark.deep
def test_queries_beside_each_other_are_each_spread(tmp_path: Path) -> None:
    """A join has four stores a partition, which move together. One query is not to be balanced."""
    with (
        Cluster(tmp_path / "cluster", workers=1) as cluster,
        application(cluster, tmp_path / "app") as app,
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
            for _ in range(2):
                round_of(queries)
            assert any(e.id not in ("0", "1") for e in cluster.executors()), cluster.executors()
            # Its successor gets stores, and the driver dies.
            before = [len(moves(query)) for query in queries]
            deadline = time.monotonic() + WAIT_S
            while [len(moves(query)) for query in queries] == before:
                assert time.monotonic() < deadline, before
                round_of(queries)
            for query in queries:
                query.feed()
            os.killpg(app.process.pid, signal.SIGKILL)
            app.process.wait()
        with application(cluster, tmp_path / "again", home=app.home) as again:
            for query in queries:
                query.app = again
                query.start()
            for query in queries:
                query.check()


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
