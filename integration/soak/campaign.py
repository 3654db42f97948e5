"""Runs the soak: feeds the queries, hurts processes, restarts them as a supervisor would."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.cases import EVENTS
from integration.cluster import STATE, Application, Cluster, Executor
from integration.jvm import LIGHT, REPO
from integration.processes import alive, wait_until
from integration.soak import queries
from integration.streams import Input

QUERIES = {"joined": 2, "sessions": 1, "buckets": 2}  # name -> Spark checkpoint format
PARTITIONS = 3
STORES = PARTITIONS * (4 + 1 + 1)  # a join has four stores
STUCK_S = 240.0
MAX_FAILURES = 5
# After this time a new file comes even if no query moves. New input may unblock a query.
SLOW_FEED_S = 10.0
HEAP = "480m"
SETTINGS = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    # Small intervals: minutes here do what days do in production.
    STATE + "maintenanceInterval": "2s",
    STATE + "minDeltasForSnapshot": "4",
    "spark.sql.streaming.minBatchesToRetain": "5",
    STATE + "millpond.gc.graceMs": "5000",
    STATE + "millpond.gc.intervalMs": "2000",
    STATE + "millpond.memory.budget": "32m",
    # Spark runs a paused executor's tasks elsewhere too. The first attempts come back late.
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "4",
    "spark.speculation.minTaskRuntime": "3s",
    "spark.shuffle.io.connectionTimeout": "10s",
    "spark.shuffle.io.maxRetries": "0",
    "spark.locality.wait": "0",
    # A kill fails every task that runs. If four kills hit one task, state is not to blame.
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "20",
    "spark.executor.memory": HEAP,
    "spark.driver.memory": "512m",
    "spark.python.worker.idleTimeoutSeconds": "0",
    "spark.executorEnv.PYTHONPATH": str(REPO),
    "spark.executorEnv.MILLPOND_LOG": "WARNING",
}


@dataclass
class Tally:
    """What the soak did, and what went wrong."""

    files: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lives: int = 0  # of the driver
    failures: list[str] = field(default_factory=list)


class Campaign:
    """One soak.

    Args:
        seed: decides the data and the faults. The machine schedules the processes, so no two runs
            are equal.
        feed_s: least seconds between two files of input.
        pause_s: seconds of the shortest and of the longest pause.
    """

    def __init__(
        self,
        cluster: Cluster,
        work: Path,
        *,
        seed: int,
        feed_s: float,
        pause_s: tuple[float, float],
        say: Callable[[str], None],
    ) -> None:
        self.cluster, self.work, self.seed, self.feed_s, self.say = cluster, work, seed, feed_s, say
        self.pause_s = pause_s
        self.rng = random.Random(seed)
        self.home = work / "home"
        self.home.mkdir(parents=True)
        self.inputs = {side: Input(work / side, EVENTS) for side in ("left", "right")}
        self.tally = Tally()
        self.application: Application | None = None
        self._actions: list[
            tuple[float, int, Callable[[], None]]
        ] = []  # at what time, order of entry
        self._order = itertools.count()
        self._fed_at = self._checked_at = 0.0
        self._done: dict[str, int] = {}  # batches by query
        self._done_at_feed: dict[str, int] = {}
        self._progress_at = time.monotonic()

    # ---- the driver

    def launch(self, *, to_end: bool = False) -> Application:
        """Start a driver. Its queries go on from their Spark checkpoints."""
        self.tally.lives += 1
        life = self.work / f"life-{self.tally.lives}"
        # The heap has its full size from the start, and Java touches all its pages. So growth of
        # the resident set is memory outside of the heap.
        options = f"{LIGHT} -Djava.io.tmpdir={self.cluster.scratch} -Xms{HEAP} -XX:+AlwaysPreTouch"
        self.application = app = Application(
            self.cluster,
            life,
            SETTINGS | {"spark.executor.extraJavaOptions": options},
            home=self.home,
            job=REPO / "integration" / "soak" / "job.py",
        )
        self.start_queries(to_end=to_end)
        self._progress_at = time.monotonic()
        return app

    def start_queries(self, *, to_end: bool = False) -> None:
        """Start all queries."""
        assert self.application is not None
        sides: dict[str, Any] = {side: str(given.directory) for side, given in self.inputs.items()}
        for name, format_ in QUERIES.items():
            self.application.call(
                "start",
                name=name,
                query=name,
                format=format_,
                mode="append",
                to_end=to_end,
                **sides,
            )

    def restart_queries(self) -> None:
        """Stop and start all queries in the same driver. Spark closes and restores every store."""
        assert self.application is not None
        for name in QUERIES:
            self.application.call("stop", name=name, seconds=STUCK_S)
        self.start_queries()
        self.tally.faults["queries restarted"] += 1

    def feed(self) -> None:
        """Write one more file for each input."""
        number = self.tally.files
        for side, given in self.inputs.items():
            given.add(queries.as_records(queries.file_rows(self.seed, side, number)))
        self.tally.files += 1
        self._fed_at = time.monotonic()
        self._done_at_feed = dict(self._done)

    def finish(self) -> None:
        """Close all windows. Let the queries reach the end of the input, in a last driver."""
        for given in self.inputs.values():
            given.add(queries.as_records([(queries.END_KEY, queries.END_S, 0)]))
        if self.application is not None:
            self.application.stop()
        app = self.launch(to_end=True)
        for name in QUERIES:
            app.call("finish", name=name, seconds=STUCK_S)
        app.stop()
        self.application = None

    # ---- time

    def run(
        self,
        seconds: float,
        *,
        fault_s: float = 0,
        faults: list[str] | None = None,
        sample: Callable[[], None] = lambda: None,
    ) -> None:
        """Feed for `seconds`, and do one fault about every `fault_s` seconds.

        Takes the `faults` in turn; without them, any fault by chance.
        """
        end = time.monotonic() + seconds
        next_fault = time.monotonic() + fault_s
        sampled_at = 0.0
        while time.monotonic() < end or self._actions:
            now = time.monotonic()
            while self._actions and self._actions[0][0] <= now:
                heapq.heappop(self._actions)[2]()
            if self.application is None or self.application.process.poll() is not None:
                self.revive()
            if now < end and self.is_due():
                self.feed()
            if fault_s and now >= next_fault and now < end and not self._actions:
                if faults is None:
                    self.hurt(self.rng.choices(list(CHANCES), list(CHANCES.values()))[0])
                elif faults and self.hurt(faults[0]):
                    faults.pop(0)
                next_fault = time.monotonic() + fault_s * self.rng.uniform(0.4, 1.6)
            if now - sampled_at >= 1:
                sampled_at = now
                self.look()
                self.check()
                sample()
            time.sleep(0.05)

    def is_due(self) -> bool:
        """Return whether to feed.

        Yes if every query has done a batch since the last file, or if no query moves.
        """
        waited_s = time.monotonic() - self._fed_at
        moved = all(self._done.get(name, 0) > self._done_at_feed.get(name, 0) for name in QUERIES)
        return waited_s >= self.feed_s and (moved or waited_s > SLOW_FEED_S)

    def look(self) -> None:
        """Note progress. Raises: AssertionError: no query did a batch for `STUCK_S` seconds."""
        done = {
            name: len(os.listdir(out)) if (out := self.home / "out" / name).is_dir() else 0
            for name in QUERIES
        }
        now = time.monotonic()
        if done != self._done:
            self._done, self._progress_at = done, now
        assert now - self._progress_at < STUCK_S, f"no query did a batch for {STUCK_S:.0f} s"

    def check(self) -> None:
        """Note failed queries, and stop their driver. `run` starts another, like a supervisor."""
        app, now = self.application, time.monotonic()
        if (
            app is None
            or app.process.poll() is not None
            or self._actions
            or now - self._checked_at < 15
        ):
            return
        self._checked_at = now
        for name in QUERIES:
            failed = app.call("failed", name=name, seconds=STUCK_S)
            if failed is not None:
                self.tally.failures.append(f"{name}: {failed[:1500]}")
                assert len(self.tally.failures) < MAX_FAILURES, (
                    f"queries fail again and again: {self.tally.failures}"
                )
                self.say(f"query {name} failed; the driver is started again")
                app.stop()
                return

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (time.monotonic() + seconds, next(self._order), action))

    def revive(self) -> None:
        """Start the dead driver again, after its executors have ended."""
        wait_until(
            lambda: not self.cluster.executors(),
            seconds=60,
            what="the executors of the dead driver to end",
        )
        self.launch()

    # ---- faults

    def driver(self) -> tuple[int, ...]:
        """Return the process ids of the driver: its JVM, and the Python below it."""
        assert self.application is not None
        group = self.application.process.pid
        found = [p.pid for p in self.cluster.processes() if _group_of(p.pid) == group]
        return tuple(found)

    def hurt(self, fault: str, victim: Executor | None = None) -> bool:
        """Do one fault to the driver, to an executor, or to an executor's agent.

        victim: the executor; None: one by chance. Return False if no executor runs now.
        """
        executors = self.cluster.executors() if victim is None else [victim]
        if fault != "driver killed":
            executors = [e for e in executors if e.agent]
            if not executors:
                return False
        target = self.rng.choice(executors) if executors else None
        pause_s = self.rng.uniform(*self.pause_s)
        if fault == "driver killed":
            for pid in self.driver():
                _signal(pid, signal.SIGKILL)
            assert self.application is not None
            self.application.process.wait(timeout=30)
        elif target is None:
            return False
        elif fault == "executor killed":
            _signal(target.pid, signal.SIGKILL)
        elif fault == "agent killed":
            _signal(target.agent, signal.SIGKILL)
        elif fault == "executor paused":
            self._pause([target.pid, target.agent], pause_s)
        elif fault == "agent paused":
            self._pause([target.agent], pause_s)
        else:
            raise ValueError(fault)
        self.tally.faults[fault] += 1
        self.say(
            f"{fault}{f' for {pause_s:.1f} s' if 'paused' in fault else ''}; {self.tally.files}"
            " files so far"
        )
        return True

    def _pause(self, pids: list[int], seconds: float) -> None:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)

        def go_on() -> None:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

        self.later(seconds, go_on)

    # ---- results

    def results(self, name: str) -> Counter[queries.Row]:
        """Return all rows that a query wrote. Raises: AssertionError: a batch is missing."""
        parts = sorted((self.home / "out" / name).glob("[0-9]*.json"), key=lambda p: int(p.stem))
        assert [int(p.stem) for p in parts] == list(range(len(parts))), (
            f"{name}: a batch is missing"
        )
        return Counter(
            tuple(row)
            for part in parts
            for row in json.loads(part.read_text())
            if row[0] != queries.END_KEY
        )

    def expected(self) -> dict[str, Counter[queries.Row]]:
        """Return the results of the batch computation over all input, by query."""
        left, right = (
            [
                row
                for number in range(self.tally.files)
                for row in queries.file_rows(self.seed, side, number)
            ]
            for side in ("left", "right")
        )
        return {
            "joined": queries.expect_joined(left, right),
            "sessions": queries.expect_sessions(left),
            "buckets": queries.expect_buckets(right),
        }


CHANCES = {
    "executor killed": 4,
    "agent killed": 4,
    "executor paused": 4,
    "agent paused": 3,
    "driver killed": 1,
}


def _signal(pid: int, number: int) -> None:
    if pid and alive(pid):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return  # the process has ended by itself


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1
