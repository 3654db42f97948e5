"""A standalone cluster of a master and two workers. Tests kill, pause and delay its processes.

One cluster and one driver serve all tests. Each test has its own queries. Their output must always
equal the batch computation over their input. The state on storage must be complete.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.cases import EVENTS, events
from integration.cluster import STATE, Application, Cluster, Executor
from integration.demo.verify import Verified, verify
from integration.gate import Gate
from integration.harness import millponds_own
from integration.processes import alive, wait_until
from integration.streams import Input
from millpond.model.ids import StoreId
from millpond.storage.local import LocalStorage
from millpond.store.files import StoreFiles

pytestmark = [pytest.mark.deep, millponds_own]
PARTITIONS = 4  # more than cores
FILES = 4  # of one round: enough map tasks for both executors
WAIT_S = 120
SETTINGS = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.locality.wait": "0",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.efficiency.enabled": "false",
    # Spark soon computes the shuffle blocks of a stopped executor again.
    "spark.shuffle.io.connectionTimeout": "6s",
    "spark.shuffle.io.maxRetries": "0",
    STATE + "maintenanceInterval": "300ms",
    STATE + "minDeltasForSnapshot": "2",
}


class Query:
    """A query of a test: its input, and its expected output."""

    wait_s = WAIT_S  # for a result
    conf: Mapping[str, str] = {}  # settings of this query alone

    def __init__(
        self, app: Application, work: Path, name: str, *, format_: int, kind: str = "count"
    ) -> None:
        self.app, self.name, self.kind, self.format = app, name, kind, format_
        self.inputs = [Input(work / name / side, EVENTS) for side in ("input", "other")]
        self.rows: list[list[dict[str, Any]]] = [[], []]
        self.slow = work / name / "slow"
        self.rng = random.Random(name)
        self.checkpoint = app.home / "checkpoints" / name
        self.feed(1)
        self.start()

    def start(self) -> None:
        """Start the query. It goes on from its Spark checkpoint."""
        arguments: dict[str, Any] = {
            "input": str(self.inputs[0].directory),
            "other": str(self.inputs[1].directory),
            "slow": str(self.slow),
            "conf": dict(self.conf),
        }
        mode = "append" if self.kind == "join" else "update"
        self.app.call(
            "start", name=self.name, query=self.kind, format=self.format, mode=mode, **arguments
        )

    def stop(self) -> None:
        """Stop the query. Raise its error."""
        self.app.call("stop", name=self.name, seconds=WAIT_S)

    def feed(self, rounds: int = 1) -> None:
        """Add input."""
        for _ in range(rounds * FILES):
            for side in range(2 if self.kind == "join" else 1):
                at_s = len(self.rows[side]) / 10
                rows = events(
                    *(
                        (f"k{self.rng.randrange(30)}", at_s + i, self.rng.randrange(100))
                        for i in range(5)
                    )
                )
                self.rows[side] += rows
                self.inputs[side].add(rows)

    def written(self) -> Counter[tuple[Any, ...]]:
        """Return the result that the batches wrote."""
        parts = sorted(
            (self.app.home / "out" / self.name).glob("[0-9]*.json"), key=lambda p: int(p.stem)
        )
        assert [int(p.stem) for p in parts] == list(range(len(parts))), "a batch is missing"
        batches = [[tuple(row) for row in json.loads(part.read_text())] for part in parts]
        if self.kind == "join":
            return Counter(row for batch in batches for row in batch)
        for batch in batches:
            assert len({row[0] for row in batch}) == len(batch), "a key twice in one batch"
        return Counter({row[0]: row for batch in batches for row in batch}.values())

    def noted(self) -> bool:
        """Return whether Spark's commit log has the last written batch."""
        last = max(int(p.stem) for p in (self.app.home / "out" / self.name).glob("[0-9]*.json"))
        return (self.checkpoint / "commits" / str(last)).exists()

    def expected(self) -> Counter[tuple[Any, ...]]:
        """Return the result of a batch computation over all input."""
        left, right = self.rows
        if self.kind == "join":
            return Counter(
                (a["k"], a["v"], b["v"])
                for a in left
                for b in right
                if a["k"] == b["k"] and abs((a["ts"] - b["ts"]).total_seconds()) <= 2
            )
        counts: Counter[str] = Counter(row["k"] for row in left)
        sums: Counter[str] = Counter()
        for row in left:
            sums[row["k"]] += row["v"]
        return Counter((k, n, sums[k]) for k, n in counts.items())

    def settle(self) -> None:
        """Wait until the output equals the expected output, and Spark's commit log has the batch.

        Raises: AssertionError: the query failed, or is too late.
        """
        wanted = self.expected()
        try:
            wait_until(
                lambda: self.written() == wanted and self.noted(),
                seconds=self.wait_s,
                what=f"the result of {self.name}",
            )
        except AssertionError:
            failed = self.app.call("failed", name=self.name)
            difference = [*(wanted - self.written()), *(self.written() - wanted)]
            raise AssertionError(f"{self.name}: {failed or difference[:6]}") from None

    def check(self) -> None:
        """Check the result, again after a restart, and the files on storage. Stop the query."""
        self.settle()
        self.stop()
        self.feed()
        self.start()
        self.settle()
        self.stop()
        if self.kind != "join":
            assert Counter(map(tuple, self.app.call("state", name=self.name))) == self.expected()
        checked = self.verified()
        assert checked.problems == ()
        assert checked.changelogs > 0 and checked.snapshots > 0

    def verified(self) -> Verified:
        """Return what `millpond checkpoint verify` says of the stopped query."""
        return verify(self.checkpoint, self.app.work, self.app.cluster.tag)

    def files(self, partition: int) -> StoreFiles:
        """Return the present files of a partition's store."""
        files = StoreFiles(LocalStorage(str(self.checkpoint)), StoreId(0, partition), self.format)
        files.refresh()
        return files


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "gate")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, gate: Gate) -> Iterator[Application]:
    """Return one driver on the cluster. The gate can hold its agents."""
    work = tmp_path_factory.mktemp("cluster")
    with Cluster(work / "cluster") as cluster:
        own = {STATE + "millpond.agent.python": str(gate.interpreter)}
        with Application(cluster, work / "app", SETTINGS | own) as application:
            yield application
        wait_until(
            lambda: not list(cluster.local.glob("**/millpond-*")),
            seconds=30,
            what="the local disk to be left clean",
        )
    assert cluster.processes() == []
    assert not list(cluster.scratch.glob("*rocksdbjni*")), "killed executors left RocksDB's library"


@pytest.fixture
def new_query(app: Application, tmp_path: Path) -> Iterator[Callable[..., Query]]:
    """Return a function that makes queries. At the end resume paused processes, drop queries."""
    made: list[Query] = []

    def make(name: str, **arguments: Any) -> Query:
        made.append(Query(app, tmp_path, name, **arguments))
        return made[-1]

    yield make
    for executor in app.cluster.executors():
        for pid in (executor.pid, executor.agent):
            if pid and alive(pid):
                os.kill(pid, signal.SIGCONT)
    for query in made:
        app.call("drop", name=query.name, seconds=WAIT_S)


def two_executors(query: Query, *, other_than: int = 0) -> list[Executor]:
    """Feed the query until two executors have agents. The pid `other_than` does not count."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = query.app.cluster.executors()
        if (
            len(found) == 2
            and all(e.agent for e in found)
            and other_than not in {e.pid for e in found}
        ):
            return found
        assert time.monotonic() < deadline, f"no two executors with agents: {found}"
        query.feed()
        query.settle()


def opened(app: Application) -> dict[str, list[tuple[int, int]]]:
    """Return (partition, version) of the stores that each executor opened, by executor id."""
    line = re.compile(r"store opened store=0/(\d+) version=(\d+)")
    return {
        id_: [(int(p), int(v)) for p, v in line.findall(text)]
        for id_, text in app.executor_logs().items()
    }


def test_state_moves_between_executors(app: Application, new_query: Callable[..., Query]) -> None:
    """An executor ends and another one comes. Others load its stores, at newer versions."""
    queries = [new_query(f"moves-{format_}", format_=format_) for format_ in (1, 2)]
    for query in queries:
        query.feed(3)
    for query in queries:
        query.settle()
    executors = two_executors(queries[0])
    before = opened(app)
    # An executor that opened a partition before may still have it, and need not open it again.
    openers = {
        p: {id_ for id_, stores in before.items() if p in dict(stores)} for p in range(PARTITIONS)
    }
    held = {e.id: {p: v for p, v in before[e.id] if openers[p] == {e.id}} for e in executors}
    first = max(executors, key=lambda e: len(held[e.id]))
    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: not alive(first.pid), seconds=30, what="the executor to end")
    for query in queries:
        query.feed(3)
    for query in queries:
        query.settle()
    # An agent alone does not tell: a speculative task may start it and end before it opens a store.
    deadline = time.monotonic() + WAIT_S
    after = opened(app)
    while not any(after[id_] for id_ in after.keys() - before.keys()):
        assert time.monotonic() < deadline, f"no new executor opened a store: {after}"
        queries[0].feed()
        queries[0].settle()
        after = opened(app)
    new = {
        id_: stores[len(before.get(id_, [])) :] for id_, stores in after.items() if id_ != first.id
    }
    for partition, version in held[first.id].items():
        assert any(p == partition and v > version for stores in new.values() for p, v in stores), (
            partition,
            new,
        )
    assert all(v > 0 for id_ in new.keys() - before.keys() for _, v in new[id_]), new
    for query in queries:
        query.check()


@pytest.mark.parametrize(
    ("kind", "format_", "store"), [("count", 1, "default"), ("join", 2, "right-keyToNumValues")]
)
def test_an_executor_is_killed_in_the_middle_of_a_commit(
    app: Application,
    gate: Gate,
    new_query: Callable[..., Query],
    kind: str,
    format_: int,
    store: str,
) -> None:
    """A kill -9 comes when the changelog is written and not published.

    Two of the join's four stores have committed then.
    """
    query = new_query(f"killed-{kind}", format_=format_, kind=kind)
    query.feed()
    query.settle()
    held = gate.hold(query.name, 1, store)
    query.feed()
    caught = held.wait()
    os.kill(caught["jvm"], signal.SIGKILL)
    wait_until(lambda: not alive(caught["agent"]), seconds=5, what="the agent to end with its JVM")
    query.settle()
    query.feed()
    query.settle()
    two_executors(query, other_than=caught["jvm"])
    query.check()


@pytest.mark.parametrize("format_", [1, 2])
def test_an_agent_is_killed_in_the_middle_of_a_commit(
    app: Application, gate: Gate, new_query: Callable[..., Query], format_: int
) -> None:
    """The shim starts another agent and asks again. The executor goes on."""
    query = new_query(f"agent-{format_}", format_=format_)
    query.settle()
    held = gate.hold(query.name, 2)
    query.feed()
    caught = held.wait()
    os.kill(caught["agent"], signal.SIGKILL)
    query.settle()
    assert alive(caught["jvm"])
    assert caught["agent"] not in {e.agent for e in two_executors(query)}
    query.check()


def test_the_local_files_are_wiped_between_batches(
    app: Application, new_query: Callable[..., Query]
) -> None:
    """A cleaner deletes the executors' local files. No result is wrong, and snapshots go on."""
    queries = [new_query(f"wiped-{format_}", format_=format_) for format_ in (1, 2)]
    for query in queries:
        query.feed(3)
    for query in queries:
        query.settle()

    def snapshots() -> dict[tuple[int, int], int]:
        return {
            (q.format, p): max((v.version for v in q.files(p).listing.manifests), default=0)
            for q in queries
            for p in range(PARTITIONS)
        }

    wait_until(
        lambda: min(snapshots().values()) > 0, seconds=WAIT_S, what="a snapshot of every store"
    )
    wiped = [path for path in app.cluster.local.glob("**/millpond-*/*") if path.is_dir()]
    assert wiped
    for path in wiped:
        shutil.rmtree(path, ignore_errors=True)
    versions = {
        (q.format, p): max(v.version for v in q.files(p).listing.changelogs)
        for q in queries
        for p in range(PARTITIONS)
    }

    def all_have_newer() -> bool:
        now = snapshots()
        if all(now[store] > version for store, version in versions.items()):
            return True
        for query in queries:
            query.feed()
            query.settle()
        return False

    wait_until(all_have_newer, seconds=WAIT_S, what=f"snapshots after {versions}")
    for query in queries:
        query.check()


@pytest.mark.parametrize("format_", [1, 2])
def test_a_straggler_comes_back_late(
    app: Application, gate: Gate, new_query: Callable[..., Query], format_: int
) -> None:
    """An executor stops in the middle of a commit. Another one does the task, the query goes on.

    Then the first executor wants to publish its commit.
    """
    query = new_query(f"straggler-{format_}", format_=format_)
    query.feed(3)
    query.settle()
    two_executors(query)
    held = gate.hold(query.name, 1)
    query.feed()
    caught = held.wait()
    late = caught["version"], caught["id"]
    for pid in (caught["agent"], caught["jvm"]):
        os.kill(pid, signal.SIGSTOP)
    query.settle()
    ids = [v.id for v in query.files(1).listing.changelogs if v.version == late[0]]
    assert ids == [""] if format_ == 1 else (ids and late[1] not in ids)
    query.feed()
    query.settle()
    held.release()
    for pid in (caught["jvm"], caught["agent"]):
        os.kill(pid, signal.SIGCONT)

    # In format 1 both attempts have one name, and what is committed stays.
    assert held.outcome() == ("published" if format_ == 2 else "VERSION_COMMITTED")
    files = query.files(1)
    found = {files.header(v).id for v in files.listing.changelogs if v.version == late[0]}
    assert (late[1] in found) is (format_ == 2)
    query.feed(2)
    query.settle()
    query.check()


def test_speculation_beats_a_slow_task(app: Application, new_query: Callable[..., Query]) -> None:
    """The first attempt of a task is slow, with its store open. A second attempt commits.

    Spark kills the first attempt.
    """
    query = new_query("slow", format_=2, kind="slow_count")
    query.settle()
    query.slow.touch()
    query.feed()
    wait_until(query.slow.with_suffix(".reached").exists, seconds=WAIT_S, what="the slow task")
    query.settle()  # while the first attempt is slow
    query.feed(2)
    query.settle()
    query.slow.unlink()
    query.feed()
    query.settle()
    query.check()
