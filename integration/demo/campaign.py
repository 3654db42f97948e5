"""Runs the streaming jobs to their end through a series of kills, and records what happened."""

from __future__ import annotations

import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.demo import processes
from integration.demo.batches import QueryLog
from integration.demo.queries import JOBS
from integration.demo.screen import Screen

POLL_S = 0.004
# A killed driver's helpers notice by end of file, at once; this is the patience of a loaded machine.
GONE_WITHIN_S = 20.0
# No batch of any job within this time: something hangs.
STALL_S = 120.0
LOG_TAIL_LINES = 40


class DemoFailed(Exception):
    """The demo cannot go on, or something did not hold; the message says what."""


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """What one job's progress reports add up to, over all its lives."""

    batches: dict[int, int] = field(default_factory=dict)  # batch -> input rows
    state_rows: int = 0
    peak_state_rows: int = 0
    late_rows: int = 0
    commit_ms: list[int] = field(default_factory=list)
    batch_ms: list[int] = field(default_factory=list)
    custom: dict[str, int] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        self.batches[event["batch"]] = event["input_rows"]
        self.state_rows = event["state_rows"]
        self.peak_state_rows = max(self.peak_state_rows, self.state_rows)
        self.late_rows += event["late_rows"]
        self.commit_ms.append(event["commit_ms"])
        self.batch_ms.append(event["batch_ms"])
        for name, value in event["custom"].items():
            self.custom[name] = self.custom.get(name, 0) + value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill -9 of the driver, seen from the files that it left."""

    job: str  # the job that was aimed at
    batch: int
    mid_batch: bool  # after the death: begun in the offset log, not in the commit log
    others: tuple[str, ...]  # other jobs that were in mid-batch too
    stores_written: int  # stores of the job that already held the state of the batch
    stores: int
    killed: tuple[str, ...]  # roles
    gone_ms: int  # until the last process of the run had ended, the agent by itself


class Campaign:
    """The lives of one driver: start, kill in mid-batch, start again, up to the end of the data."""

    def __init__(
        self, *, work: Path, provider: str, files: int, kills: int, seed: int, screen: Screen, tag: str
    ) -> None:
        self.work, self.provider, self.files, self.screen, self.tag = work, provider, files, screen, tag
        self.logs = {job.name: QueryLog(work / "checkpoints" / job.name) for job in JOBS}
        self.records = {job.name: JobRecord() for job in JOBS}
        self.kills: list[Kill] = []
        self.lives = 0
        self._rng = random.Random(seed)
        self._plan = self._planned(kills)

    def _planned(self, kills: int) -> list[tuple[str, int]]:
        """Return, per kill, the job to aim at and the file from which on: spread over the run, drawn from the seed."""
        names = [job.name for job in JOBS]
        self._rng.shuffle(names)
        stride = self.files / (kills + 1)
        return [
            (names[index % len(names)], int(stride * (index + self._rng.uniform(0.7, 1.3)))) for index in range(kills)
        ]

    def run(self) -> None:
        """Run the jobs to their end.

        Raises:
            DemoFailed: a job failed or hung, or a process outlived its driver.
        """
        while not self._life():
            pass

    def _life(self) -> bool:
        """Run one driver; return True when it reached the end of the data, False when it was killed."""
        self.lives += 1
        aim = self._plan[0] if self._plan else None
        watched: int | None = None
        heard = time.monotonic()
        # A batch that the last life left unfinished is not one that runs: only what this life begins counts.
        inherited = {name: log.begun() for name, log in self.logs.items()}
        child, events = self._start()
        try:
            while True:
                try:
                    event = events.get(timeout=POLL_S)
                except queue.Empty:
                    event = {}
                if event is None:
                    break
                if event:
                    heard = time.monotonic()
                    self._tell(event)
                elif time.monotonic() - heard > STALL_S:
                    raise DemoFailed(f"no micro-batch was committed for {STALL_S:.0f} s\n{self._log_tail()}")
                if aim is None:
                    continue
                log = self.logs[aim[0]]
                batch = log.running()
                if batch is None or batch <= inherited[aim[0]] or batch == watched or log.files_begun() < aim[1]:
                    continue
                watched = batch
                # Anywhere in the batch: planning, reading, state updates, state commit, sink commit.
                time.sleep(self._rng.uniform(0.0, 0.9) * self._typical_batch_s(aim[0]))
                if log.running() != batch:
                    continue  # that batch was faster; the next one then
                kill = self._kill(child, aim[0], batch)
                self.kills.append(kill)
                if kill.mid_batch:
                    self._plan.pop(0)
                return False
            if child.wait(timeout=GONE_WITHIN_S) != 0:
                raise DemoFailed(f"the driver ended with exit code {child.returncode}\n{self._log_tail()}")
            self._await_gone("the driver ended")
            return True
        finally:
            processes.kill(processes.find(self.tag))
            child.wait()
            if child.stdin:
                child.stdin.close()

    def _start(self) -> tuple[subprocess.Popen[str], queue.Queue[dict[str, Any] | None]]:
        with (self.work / "driver.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "integration.demo.job", str(self.work), self.provider],
                env=environment(self.work, self.tag),
                cwd=self.work,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def read() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                if line.endswith("\n"):  # the last line of a killed driver may be torn
                    events.put(json.loads(line))
            events.put(None)

        threading.Thread(target=read, daemon=True).start()
        return child, events

    def _tell(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "progress":
                record = self.records[event["job"]]
                record.add(event)
                read = sum(min(log.files_begun(), self.files) for log in self.logs.values())
                share = read / (self.files * len(self.logs))
                self.screen.status(
                    f"{share:4.0%}  {event['job']:8}  batch {event['batch']:3}  {event['input_rows']:6,} rows in"
                    f"  {event['state_rows']:7,} in state  commit {event['commit_ms']:4} ms"
                )
            case "running":
                what = "again, each query from its last committed batch" if self.kills else "four queries in one driver"
                self.screen.stamped(f"life {self.lives}: running {what}")
            case "failed":
                raise DemoFailed(f"job {event['job']} failed: {event['message']}\n{self._log_tail()}")

    def _typical_batch_s(self, job: str) -> float:
        recent = self.records[job].batch_ms[-10:]
        return statistics.median(recent) / 1000 if recent else 0.5

    def _kill(self, child: subprocess.Popen[str], job: str, batch: int) -> Kill:
        ours = processes.find(self.tag)
        victims = [process for process in ours if process.role in ("jvm", "driver")]
        victims.sort(key=lambda process: process.role != "jvm")  # the JVM first: nothing may warn it
        processes.kill(victims)
        died = time.monotonic()
        child.wait(timeout=GONE_WITHIN_S)
        self._await_gone("its JVM was killed")
        running = {name: log.running() for name, log in self.logs.items()}
        written, stores = self.logs[job].stores_written(batch)
        kill = Kill(
            job=job,
            batch=batch,
            mid_batch=running[job] == batch,
            others=tuple(f"{name} {at}" for name, at in running.items() if at is not None and name != job),
            stores_written=written,
            stores=stores,
            killed=tuple(process.role for process in victims),
            gone_ms=round((time.monotonic() - died) * 1000),
        )
        self._tell_kill(kill)
        return kill

    def _tell_kill(self, kill: Kill) -> None:
        if not kill.mid_batch:
            self.screen.stamped(f"kill -9 came after batch {kill.batch} of {kill.job}; it does not count", style="red")
            return
        count = sum(kill.mid_batch for kill in self.kills) + 1
        self.screen.stamped(
            f"kill -9 number {count}, driver and JVM in mid-batch: batch {kill.batch} of {kill.job} begun, not committed",
            style="red",
        )
        self.screen.line(
            f"          {kill.stores_written} of its {kill.stores} state stores had that batch already; "
            f"all processes gone after {kill.gone_ms} ms"
        )
        if kill.others:
            self.screen.line(f"          in mid-batch as well: {', '.join(kill.others)}")

    def _await_gone(self, why: str) -> None:
        gone = processes.wait_until(lambda: not processes.find(self.tag), timeout_s=GONE_WITHIN_S)
        if not gone:
            left = ", ".join(f"{process.role} (pid {process.pid})" for process in processes.find(self.tag))
            raise DemoFailed(f"{left} still alive {GONE_WITHIN_S:.0f} s after {why}")

    def _log_tail(self) -> str:
        lines = (self.work / "driver.log").read_text(errors="replace").splitlines()
        return "\n".join(["last lines of the driver's log:", *lines[-LOG_TAIL_LINES:]])


def environment(work: Path, tag: str) -> dict[str, str]:
    """Return the environment of the demo's children: tagged, on loopback, scratch below `work`, this Spark only."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_CONF"))
    }
    package_root = str(Path(__file__).resolve().parents[2])
    return inherited | {
        processes.TAG: tag,
        "PYTHONPATH": os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(work / "scratch"),
    }
