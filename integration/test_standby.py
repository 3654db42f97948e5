"""A second executor follows each store, and goes on with it when the first is killed, on a
standalone cluster. Who follows what is a plan: `tests/unit/agent/test_standby.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.cluster import STATE, Application, Cluster
from integration.harness import millponds_own
from integration.processes import wait_until
from integration.test_balance import PARTITIONS, PATIENT, application, moves, restored, round_of
from integration.test_cluster import WAIT_S, Query
from integration.test_events import events
from integration.ttl_model import files_of, replayed
from millpond.spark.progress import StoreMove

pytestmark = millponds_own


class Followed(Query):
    """A query whose stores are followed."""

    conf: Mapping[str, str] = {STATE + "millpond.standby.enabled": "true"}


def follow(app: Application, queries: list[Followed]) -> None:
    """Run batches until both executors follow stores, and each store has a follower where it is."""
    deadline = time.monotonic() + WAIT_S
    while True:
        now = followers(app)
        if len(now) == PARTITIONS and set(now.values()) == {"0", "1"}:
            return
        assert time.monotonic() < deadline, now
        round_of(queries)


def followers(app: Application) -> dict[int, str]:
    """Return who follows each partition of the one query, as far as it has a follower.

    That is who has led it on since the driver last moved it: to balance executors that began one
    after the other, the driver may also move what is followed already.
    """
    moved = {
        int(e["partition"]): (int(e["version"]), e["to_executor"])
        for e in events(app.log_path.read_text())
        if e["event"] == "store_moved"
    }
    line = re.compile(r"store followed store=0/(\d+) version=(\d+)")
    found = {}
    for executor, log in app.executor_logs().items():
        for partition, version in ((int(p), int(v)) for p, v in line.findall(log)):
            since, place = moved.get(partition, (0, ""))
            if version > since and executor != place:
                found[partition] = executor
    return found


def killed(cluster: Cluster, app: Application, id: str, *, host: bool = False) -> None:
    """Kill an executor, and wait until the driver knows it.

    Args:
        host: kill its worker too, so that it gets no successor.
    """
    (victim,) = [e for e in cluster.executors() if e.id == id]
    if host:
        (worker,) = [p.parent for p in cluster.processes() if p.pid == victim.pid]
        os.kill(worker, signal.SIGKILL)
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(
        lambda: f"Lost executor {id} " in app.log_path.read_text(errors="replace"),
        seconds=WAIT_S,
        what="the driver to miss the executor",
    )


def takeovers(app: Application, executor: str) -> list[int]:
    """Return the partition of each store that an executor took over, in order."""
    said = events(app.executor_logs()[executor])
    return [int(e["partition"]) for e in said if e["event"] == "store_taken_over"]


@pytest.mark.deep
def test_the_stores_of_a_killed_executor_go_on_where_they_were_followed(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        application(cluster, tmp_path / "app", PATIENT) as app,
    ):
        query = Followed(app, tmp_path, "count", format_=2)
        query.settle()
        follow(app, [query])
        before = len(restored(app, "0")), len(takeovers(app, "0"))
        lost = {p for p, executor in followers(app).items() if executor == "0"}
        killed(cluster, app, "1", host=True)
        round_of([query])
        taken: list[StoreMove] = []

        def told() -> bool:
            # The history is written after the batch.
            taken[:] = [m for m in moves(query) if "follows the store" in m.reason]
            return bool(taken)

        wait_until(told, seconds=WAIT_S, what="the history to tell who took over")
        assert {(m.source, m.target) for m in taken} == {("1", "0")}
        assert {m.partition for m in taken} == lost
        assert sorted(takeovers(app, "0")[before[1] :]) == sorted(lost)
        again = restored(app, "0")[before[0] :]
        assert not again, "it was followed, and restored all the same"
        query.check()


@pytest.mark.deep
def test_stores_whose_follower_is_lost_get_another_before_the_next_batch(tmp_path: Path) -> None:
    """A batch may take minutes, and without input none comes: a second loss met no follower."""
    with (
        Cluster(tmp_path / "cluster", workers=3) as cluster,
        application(cluster, tmp_path / "app", PATIENT) as app,
    ):
        wait_until(lambda: len(app.executor_logs()) == 3, seconds=WAIT_S, what="three executors")
        query = Followed(app, tmp_path, "count", format_=2)
        query.settle()
        deadline = time.monotonic() + WAIT_S
        # Only who has stores of the query can follow others.
        while len(followers(app)) < PARTITIONS or not all(restored(app, id) for id in "012"):
            assert time.monotonic() < deadline, followers(app)
            round_of([query])
        ((victim, _),) = Counter(followers(app).values()).most_common(1)
        lost = {p for p, executor in followers(app).items() if executor == victim}
        before = app.executor_logs()
        killed(cluster, app, victim, host=True)
        line = re.compile(r"store (?:opened|followed) store=0/(\d+) version=[1-9]")

        def followed() -> bool:
            now = app.executor_logs()
            more = "".join(now[id][len(before[id]) :] for id in {*"012"} - {victim})
            return lost <= {int(p) for p in line.findall(more)}

        wait_until(followed, seconds=WAIT_S, what=f"other followers of {lost}")
        query.check()


class Ending(Followed):
    """A count whose stores are followed, and whose rows end. What its batches must have written is
    known once Spark's logs say which input each had, and when.
    """

    ttl_ms = 3000
    conf: Mapping[str, str] = {**Followed.conf, STATE + "millpond.ttl": f"{ttl_ms}ms"}

    def settle(self) -> None:
        """Wait until all input is committed, and check each batch."""

        def committed() -> bool:
            files = files_of(self.checkpoint)
            if sum(map(len, files.values())) < len(list(self.inputs[0].directory.iterdir())):
                return False
            return (self.checkpoint / "commits" / str(max(files))).exists()

        wait_until(committed, seconds=WAIT_S, what=f"the batches of {self.name}")
        for batch, rows in replayed(self.checkpoint, self.ttl_ms).batches.items():
            out = self.app.home / "out" / self.name / f"{batch}.json"
            assert sorted(json.loads(out.read_text())) == rows, (self.name, batch)

    def check(self) -> None:
        """Check the results and the files on storage. Stop the query."""
        self.settle()
        self.stop()
        assert replayed(self.checkpoint, self.ttl_ms).ended > 0
        assert self.verified().problems == ()


@pytest.mark.deep
def test_executors_are_killed_again_and_again_while_others_follow(tmp_path: Path) -> None:
    """In mid-batch, a join of four stores a partition beside counts: each row is compared. The rows
    of one count end meanwhile.
    """
    with (
        Cluster(tmp_path / "cluster", workers=3) as cluster,
        application(cluster, tmp_path / "app") as app,
    ):
        queries = [
            Followed(app, tmp_path, "count", format_=1),
            Followed(app, tmp_path, "join", format_=2, kind="join"),
            Ending(app, tmp_path, "ending", format_=2),
        ]
        for query in queries:
            query.settle()
        for victim in ("1", "0", "2"):
            for _ in range(4):
                round_of(queries)
            for query in queries:
                query.feed()
            killed(cluster, app, victim)
            for query in queries:
                query.settle()
        for query in queries:
            query.check()
