"""Runs the streaming jobs to their end through a series of kills, and records what happens."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.demo import processes
from integration.demo.batches import QueryLog
from integration.demo.child import Driver, driver, log_tail
from integration.demo.queries import JOBS
from integration.demo.screen import Screen
from integration.demo.verify import Verified, verify

POLL_S = 0.004
# A killed driver's helpers read the end of a file, and end at once. A loaded machine takes longer.
GONE_WITHIN_S = 20.0
# If no job commits a batch within this time, something hangs.
STALL_S = 120.0
JVM_CHECK_S = 2.0


class DemoFailed(Exception):
    """The demo cannot go on, or something did not hold. The message says what."""


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """The sum of one job's progress reports, over all its lives."""

    state_rows: int = 0
    peak_state_rows: int = 0
    late_rows: int = 0
    commit_ms: list[int] = field(default_factory=list)
    batch_ms: list[int] = field(default_factory=list)
    custom: dict[str, int] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        self.state_rows = event["state_rows"]
        self.peak_state_rows = max(self.peak_state_rows, self.state_rows)
        self.late_rows += event["late_rows"]
        self.commit_ms.append(event["commit_ms"])
        self.batch_ms.append(event["batch_ms"])
        for name, value in event["custom"].items():
            self.custom[name] = self.custom.get(name, 0) + value


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A planned kill: in a batch of `job`, once that job has begun file number `file`."""

    target: str  # driver (with its JVM), or agent
    job: str
    file: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill -9 of the driver, seen from the files that it left."""

    job: str  # the target
    batch: int
    mid_batch: bool  # the dead driver left the batch in the offset log, and not in the commit log
    others: tuple[str, ...]  # other jobs that were in mid-batch too
    stores_written: int  # stores of the job that already held the state of the batch
    stores: int
    killed: tuple[str, ...]  # roles
    gone_ms: int  # until the last process of the run had ended; the agent ends by itself
    verified: Verified | None  # what the Spark checkpoint holds; None with Spark's own store


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKill:
    """One kill -9 of the agent alone, under a running driver."""

    job: str
    batch: int
    committed_ms: int  # until the batch was committed nevertheless


class Campaign:
    """The lives of one driver: start, kill in mid-batch, start again, until the data ends."""

    def __init__(
        self,
        *,
        work: Path,
        provider: str,
        files: int,
        kills: int,
        seed: int,
        screen: Screen,
        tag: str,
    ) -> None:
        self.work, self.provider, self.files, self.screen, self.tag = (
            work,
            provider,
            files,
            screen,
            tag,
        )
        self.logs = {job.name: QueryLog(work / "checkpoints" / job.name) for job in JOBS}
        self.records = {job.name: JobRecord() for job in JOBS}
        self.kills: list[Kill] = []
        self.agent_kills: list[AgentKill] = []
        self.lives = 0
        self._checked = 0.0
        self._jvm_seen = False
        self._ended: set[str] = set()  # jobs that reached the end of the data
        self._rng = random.Random(seed)
        self._plan = self._planned(kills)

    def _planned(self, kills: int) -> list[Aim]:
        """Return the planned kills, spread over the run. The seed decides jobs and files."""
        names = [job.name for job in JOBS]
        self._rng.shuffle(names)
        # After the first driver, kill an agent alone, if there is an agent.
        targets = ["driver"] * kills
        if self.provider == "millpond":
            targets.insert(1, "agent")
        stride = self.files / (len(targets) + 1)
        return [
            Aim(
                target=target,
                job=names[index % len(names)],
                file=int(stride * (index + self._rng.uniform(0.7, 1.3))),
            )
            for index, target in enumerate(targets)
        ]

    def run(self) -> None:
        """Run the jobs to their end.

        Raises:
            DemoFailed: a job failed or hung, or a process outlived its driver.
        """
        while not self._life():
            pass

    def _life(self) -> bool:
        """Run one driver. Return whether it reached the end of the data; False: it was killed."""
        self.lives += 1
        self._jvm_seen, self._ended = False, set()
        # A batch that the last life left unfinished does not run yet. Only batches that this life
        # begins count.
        inherited = {name: log.begun() for name, log in self.logs.items()}
        self.screen.live("starting Spark ..." if self.lives == 1 else "starting Spark again ...")
        watched: int | None = None
        missed = 0
        heard = time.monotonic()
        with driver(self.work, self.provider, self.tag) as child:
            while (event := child.event(POLL_S)) is not None:
                if event:
                    heard = time.monotonic()
                    self._tell(event)
                else:
                    self._check_alive(heard)
                if not self._plan:
                    continue
                aim = self._aim()
                log = self.logs[aim.job]
                batch = log.running()
                if (
                    batch is None
                    or batch <= inherited[aim.job]
                    or batch == watched
                    or log.files_begun() < aim.file
                ):
                    continue
                watched = batch
                # The kill may come anywhere in the batch: planning, reading, state updates, state
                # commit, sink commit. The batch may be faster than those before it. So the pause
                # halves after every miss, because the data ends.
                time.sleep(self._rng.uniform(0.0, 0.9) * self._typical_batch_s(aim.job) / 2**missed)
                if log.running() != batch:
                    missed += 1
                    continue  # that batch was faster: try the next one
                missed = 0
                if aim.target == "agent":
                    self._kill_agent(child, aim.job, batch)
                    self._plan.pop(0)
                    watched, heard = None, time.monotonic()
                    continue
                kill = self._kill(child, aim.job, batch)
                self._tell_kill(kill)
                self.kills.append(kill)
                if kill.mid_batch:
                    self._plan.pop(0)
                return False
            if child.process.wait(timeout=GONE_WITHIN_S) != 0:
                code = child.process.returncode
                raise DemoFailed(f"the driver ended with exit code {code}\n{log_tail(self.work)}")
            self._await_gone("the driver ended")
        return True

    def _aim(self) -> Aim:
        """Return the next kill. If its job has ended, aim at a job that still runs."""
        aim = self._plan[0]
        if aim.job in self._ended:
            left = [job.name for job in JOBS if job.name not in self._ended]
            if left:
                aim = self._plan[0] = Aim(target=aim.target, job=left[0], file=aim.file)
        return aim

    def _check_alive(self, heard: float) -> None:
        """Raise DemoFailed if the JVM died by itself, or if no event came for long after `heard`.

        The driver of a dead JVM would wait for ever.
        """
        now = time.monotonic()
        if now < self._checked + JVM_CHECK_S:
            return
        self._checked = now
        jvm = any(process.role == "jvm" for process in processes.find(self.tag))
        if self._jvm_seen and not jvm and len(self._ended) < len(JOBS):
            raise DemoFailed(f"the JVM died by itself\n{log_tail(self.work)}")
        self._jvm_seen = jvm
        if now > heard + STALL_S:
            raise DemoFailed(
                f"no micro-batch was committed for {STALL_S:.0f} s\n{log_tail(self.work)}"
            )

    def _typical_batch_s(self, job: str) -> float:
        recent = self.records[job].batch_ms[-10:]
        return statistics.median(recent) / 1000 if recent else 0.5

    def _kill(self, child: Driver, job: str, batch: int) -> Kill:
        victims = [
            process for process in processes.find(self.tag) if process.role in ("jvm", "driver")
        ]
        victims.sort(
            key=lambda process: process.role != "jvm"
        )  # the JVM first, so that nothing warns it
        processes.kill(victims)
        died = time.monotonic()
        child.process.wait(timeout=GONE_WITHIN_S)
        self._await_gone("its JVM was killed")
        gone_ms = round((time.monotonic() - died) * 1000)
        running = {name: log.running() for name, log in self.logs.items()}
        written, stores = self.logs[job].stores_written(batch)
        return Kill(
            job=job,
            batch=batch,
            mid_batch=running[job] == batch,
            others=tuple(
                f"{name} {at}" for name, at in running.items() if at is not None and name != job
            ),
            stores_written=written,
            stores=stores,
            killed=tuple(process.role for process in victims),
            gone_ms=gone_ms,
            verified=(
                verify(self.logs[job].root, self.work, self.tag)
                if self.provider == "millpond"
                else None
            ),
        )

    def _kill_agent(self, child: Driver, job: str, batch: int) -> None:
        """Kill the agent in `batch`. The same driver must commit the batch, with a new agent."""
        victims: list[processes.Process] = []

        def started() -> bool:
            # The first batch of a life may begin before a store starts the agent.
            victims[:] = [
                process for process in processes.find(self.tag) if process.role == "agent"
            ]
            return bool(victims)

        if not processes.wait_until(started, timeout_s=GONE_WITHIN_S):
            raise DemoFailed("a batch runs, but no agent")
        processes.kill(victims)
        died = time.monotonic()
        log = self.logs[job]

        def replaced() -> bool:
            agents = {process for process in processes.find(self.tag) if process.role == "agent"}
            return bool(agents) and not agents & set(victims)

        def recovered() -> bool:
            if child.process.poll() is not None:
                raise DemoFailed(
                    f"the driver ended after its agent was killed\n{log_tail(self.work)}"
                )
            return log.committed() >= batch

        if not processes.wait_until(recovered, timeout_s=STALL_S):
            raise DemoFailed(
                f"batch {batch} of {job} was never committed after the agent was killed"
            )
        committed_ms = round((time.monotonic() - died) * 1000)
        if not processes.wait_until(replaced, timeout_s=GONE_WITHIN_S, every_s=0.1):
            raise DemoFailed("the agent was killed and no new one was started")
        self.agent_kills.append(AgentKill(job=job, batch=batch, committed_ms=committed_ms))
        self.screen.stamped(f"kill -9 of the agent alone, in batch {batch} of {job}", style="red")
        self.screen.line(
            f"          the shim started another, the batch was committed {committed_ms} ms later,"
            " no query noticed"
        )

    def _await_gone(self, why: str) -> None:
        gone = processes.wait_until(lambda: not processes.find(self.tag), timeout_s=GONE_WITHIN_S)
        if not gone:
            left = ", ".join(
                f"{process.role} (pid {process.pid})" for process in processes.find(self.tag)
            )
            raise DemoFailed(f"{left} still alive {GONE_WITHIN_S:.0f} s after {why}")

    def _tell(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "progress":
                self.records[event["job"]].add(event)
                read = sum(min(log.files_begun(), self.files) for log in self.logs.values())
                share = read / (self.files * len(self.logs))
                self.screen.status(
                    f"{share:4.0%}  {event['job']:8}  batch {event['batch']:3} "
                    f" {event['input_rows']:6,} rows in  {event['state_rows']:7,} in state  commit"
                    f" {event['commit_ms']:4} ms"
                )
            case "running":
                what = (
                    "again, each query from its last committed batch"
                    if self.kills
                    else "four queries in one driver"
                )
                self.screen.stamped(f"life {self.lives}: running {what}")
            case "finished":
                self._ended.add(event["job"])
            case "failed":
                # The rest is the stack of Spark's scheduler. The log has it.
                reason = event["message"].partition("\n")[0]
                raise DemoFailed(f"job {event['job']} failed: {reason}\n{log_tail(self.work)}")

    def _tell_kill(self, kill: Kill) -> None:
        if not kill.mid_batch:
            self.screen.stamped(
                f"kill -9 came after batch {kill.batch} of {kill.job}; it does not count",
                style="red",
            )
            return
        number = sum(kill.mid_batch for kill in self.kills) + 1
        self.screen.stamped(
            f"kill -9 number {number}, driver and JVM in mid-batch: batch {kill.batch} of"
            f" {kill.job} begun, not committed",
            style="red",
        )
        self.screen.line(
            f"          {kill.stores_written} of its {kill.stores} state stores had that batch"
            f" already; all processes gone after {kill.gone_ms} ms"
        )
        if kill.others:
            self.screen.line(f"          in mid-batch as well: {', '.join(kill.others)}")
        if kill.verified and not kill.verified.problems:
            self.screen.line(
                f"          left intact: {kill.verified.changelogs} changelogs,"
                f" {kill.verified.snapshots} snapshots of {kill.job} read back,"
                f" {kill.verified.versions} versions of its stores can be restored"
            )
