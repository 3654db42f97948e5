"""What a simulated run happens in: executors with their agents and providers, threads, the clock, and Spark's logs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.harness import ProviderError, short_conf
from integration.jvm import MILLPOND
from integration.simulation.agents import Agent, Call, TimedStorage, storage_of
from integration.simulation.choices import Choices
from integration.simulation.families import Shape
from integration.simulation.jvm import Jvm, Message
from millpond import layout
from millpond.errors import ErrorKind
from millpond.testing.faults import Fault, Operation

_TICKET = re.compile(r'"ticket":"(\d+)"')
START_MS = 1_750_000_000_000
MINUTE_MS = 60_000
MAIN = 0


class Wrong(AssertionError):
    """What the store did is wrong. `symptom` names it in few words, the same for the same defect."""

    def __init__(self, symptom: str, details: object = "") -> None:
        super().__init__(f"{symptom}: {details}" if details != "" else symptom)
        self.symptom = symptom


@dataclass(frozen=True)
class Setting:
    """What one seed switches on: the store's options, and how often what goes wrong."""

    shape: str = "transform"
    spark_format: int = 1
    storage: str = "local"
    backend: str = "rocksdb"
    budget: str = "64m"
    exact: bool = True
    retain: int = 2
    deltas: int = 1
    warm_up: bool = True
    grace_ms: int = 10 * MINUTE_MS
    partitions: int = 1
    switches: float = 0.0  # at a seam others go first
    stands: float = 0.0  # at a storage operation others go first
    storage_faults: float = 0.0
    bodies: bool = False  # what is read may be damaged
    local_faults: float = 0.0  # at a seam something goes wrong
    deaths: float = 0.0  # in a call the agent dies
    lingers: bool = False  # threads of tasks that have ended go on with their stores
    large: bool = False
    rows_at_once: int = 3
    gather_bytes: int = 200

    @property
    def conf(self) -> dict[str, str]:
        conf = {
            "checkpointFormatVersion": self.spark_format,
            "minDeltasForSnapshot": self.deltas,
            "millpond.memory.budget": self.budget,
            "millpond.backend": self.backend,
            "millpond.numKeys.exact": self.exact,
            "millpond.restore.warmUp": self.warm_up,
            "millpond.gc.graceMs": self.grace_ms,
            "millpond.gc.intervalMs": 0,
            "millpond.commit.fsync": False,
            "millpond.lock.acquireTimeoutMs": 0,
        }
        return short_conf(conf) | {"spark.sql.streaming.minBatchesToRetain": str(self.retain)}


@dataclass
class Executor:
    """One executor: a JVM's providers, by run and partition, and its agent."""

    name: str
    agent: Agent
    local_root: str
    providers: dict[tuple[int, int], str] = field(default_factory=dict)
    sessions: dict[str, list[str]] = field(default_factory=dict)  # provider -> stores that a task may still hold
    dead: bool = False
    disturbed: bool = False  # something went wrong since its last commit
    emptied: bool = False  # its local files were deleted; it may notice long after
    lost: int = 0  # calls that were told that their agent is gone, and have not killed it yet


# Points of the store where something can go wrong, by how they begin, and what it is.
_FAULTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("flush", ("LOCAL_DISK_FULL",)),
    ("snapshot", ("LOCAL_DISK_FULL", "STORAGE_UNAVAILABLE")),
    ("disk", ("LOCAL_DISK_FULL",)),
    ("spill", ("LOCAL_DISK_FULL",)),
    ("changelog", ("IO",)),
    ("memory", ("MEMORY_EXHAUSTED",)),
    ("load", ("LOCAL_DISK_FULL",)),
)
_STORAGE_FAULTS = {
    "put": (Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.FULL),
    "delete": (Fault.UNAVAILABLE, Fault.LOST_ANSWER),
    "other": (Fault.UNAVAILABLE, Fault.DENIED),
}
_BODIES = (Fault.SHORT_BODY, Fault.WRONG_BODY)


class World:
    """All of one run. The main thread acts as Spark's driver and runs the tasks; other threads are in the background."""

    def __init__(self, jvm: Jvm, setting: Setting, shape: Shape, choices: Choices, work_dir: Path) -> None:
        self.jvm, self.setting, self.shape, self.choices = jvm, setting, shape, choices
        self.now_ms = START_MS
        self.dir = work_dir
        self.checkpoint = work_dir / "checkpoint"
        self.storage = storage_of(setting.storage, str(self.checkpoint), lambda: self.now_ms)
        self.quiet = False  # no faults, nobody goes first
        self.trace: list[str] = []
        self.threads: dict[int, tuple[str, str]] = {}  # of the background: name, owner
        self.on_done: dict[int, Callable[[Message], None]] = {}  # thread -> what looks at its results
        self.executors: list[Executor] = []
        self.run = 0
        self._calls: dict[int, Call] = {}
        self._owners: dict[str, Executor] = {}
        self._names = 0
        self._waits = 0
        self._main_owner = ""
        seed = int.from_bytes(hashlib.sha256(str(choices.seed).encode()).digest()[:7], "big")
        stretches = {"warm-up.rows": setting.rows_at_once, "flush.gather": setting.gather_bytes, "segment": 2000}
        self.command("begin", seed=seed, stretches=stretches)
        for index in (0, 1):
            self.executors.append(self.new_executor(index))

    # ---- talk with the JVM

    def log(self, text: str) -> None:
        self.trace.append(text)

    def command(self, do: str, owner: str = "", **arguments: Any) -> Any:
        """Run a command on the main thread. Raises: ProviderError."""
        self._main_owner = owner
        return self.jvm.call(self._answer, do, owner, **arguments)

    def _answer(self, message: Message) -> Message | None:
        for thread, name, owner in message.get("new", ()):
            self.threads[thread] = (name, owner)
        kind, me = message["m"], message.get("t", MAIN)
        if kind == "answer":
            return None
        if kind == "at":
            return self._at(message["p"], me, message["y"])
        if kind == "wait":
            self._waits += 1
            if self._waits > 10_000:
                raise Wrong("threads wait for each other", self.threads)
            others = [t for t in (MAIN, *self.threads) if t != me]
            if not others:
                raise Wrong("a thread waits for a lock that nobody gives back")
            return {"go": others[self._waits % len(others)]}
        if kind == "agent":
            return self._call(message)
        if kind == "agent_go":
            call = self._calls[message["call"]]
            return self._after(call, message["call"], me)
        if kind == "agent_kill":
            executor = self._owners[message["owner"]]
            if executor.lost:
                executor.lost -= 1
            elif not executor.dead:
                self.log(f"the agent of {executor.name} is killed")
                self._new_agent(executor)
            return {}
        if kind == "done":
            name, _ = self.threads.pop(me)
            if me in self.on_done:
                self.on_done.pop(me)(message)
            self.log(f"{name} ended" + (f": {message['error']['causes'][0][0]}" if "error" in message else ""))
            return {"go": self._other(me, 0.5)}
        raise AssertionError(message)

    def _other(self, me: int, probability: float) -> int:
        """Who goes on instead of `me`: the main thread, or sometimes another."""
        others = [t for t in self.threads if t != me]
        chosen = 0 if self.quiet else self.choices.pick(probability, len(others))
        return others[chosen - 1] if chosen else MAIN

    def _at(self, point: str, me: int, may_yield: bool) -> Message:
        if self.quiet:
            return {}
        executor = self._executor_at(me)
        kinds = next((kinds for prefix, kinds in _FAULTS if point.startswith(prefix)), ())
        often = self.setting.local_faults * (0.2 if point.startswith("memory") else 1.0)
        fault = self.choices.pick(often, len(kinds)) if kinds else 0
        if fault:
            self.log(f"{point}: {kinds[fault - 1]}")
            self._disturb(executor)
            return {"fault": kinds[fault - 1]}
        others = [t for t in (MAIN, *self.threads) if t != me]
        if may_yield and others:
            chosen = self.choices.pick(self.setting.switches, len(others))
            if chosen:
                self.log(f"{point}: {me} gives way to {others[chosen - 1]}")
                return {"go": others[chosen - 1]}
        return {}

    def _executor_at(self, thread: int) -> Executor | None:
        return (
            self._owners.get(self.threads[thread][1]) if thread in self.threads else self._owners.get(self._main_owner)
        )

    def _disturb(self, executor: Executor | None) -> None:
        for one in [executor] if executor is not None else self.executors:
            one.disturbed = True

    # ---- agents

    def _call(self, message: Message) -> Message:
        executor = self._owners[message["owner"]]
        if executor.dead or message["dying"]:
            return {"lost": "the executor is dead"}
        number = self._standing(executor, message["request"])
        if number is not None:
            return self._after(self._calls[number], number, message["t"])
        dies_at: int | None = None
        if not self.quiet:
            dies = self.choices.pick(self.setting.deaths, 8)
            dies_at = dies - 1 if 0 < dies < 8 else 1_000_000 if dies else None
        may_stand = message["y"] and not self.quiet and self.setting.stands > 0
        ticket = _TICKET.search(message["request"])
        call = Call(executor.agent, message["method"], message["request"], may_stand=may_stand, dies_at=dies_at)
        call.owner, call.ticket = executor.name, ticket[1] if ticket else ""
        number = len(self._calls) + 1
        self._calls[number] = call
        return self._after(call, number, message["t"])

    def _standing(self, executor: Executor, request: str) -> int | None:
        """The call that stands still and is asked for once more."""
        ticket = _TICKET.search(request)
        for number, call in self._calls.items():
            if not call.done and call.agent is executor.agent and ticket and call.ticket == ticket[1]:
                return number
        return None

    def _after(self, call: Call, number: int, me: int) -> Message:
        if not call.done:
            call.go()
        if not call.done:
            others = [t for t in (MAIN, *self.threads) if t != me]
            if not others:
                call.finish()
            else:
                if call.ticket and self.choices.pick(0.5):
                    self.log(f"{call.method} is not done yet")
                    return {"answer": '{"pending":true}'}
                chosen = self.choices.pick(0.5, len(others)) or 1
                self.log(f"{call.method} stands still, {others[chosen - 1]} goes on")
                return {"pause": number, "go": others[chosen - 1]}
        self._look()
        if call.answer is None:
            self.log(f"the agent died in {call.method}")
            self._disturb(None)
            for one in self._owners.values():
                if one.agent is call.agent or one.name == call.owner:
                    one.lost += 1
                if one.agent is call.agent:
                    self._new_agent(one)
            return {"lost": f"the agent died in {call.method}"}
        if not self.quiet and self.choices.pick(self.setting.deaths / 2):
            self.log(f"the answer of {call.method} is lost")
            self._disturb(None)
            return {"lost": f"the answer of {call.method} did not come in time", "late": True}
        if '"error"' in call.answer[:9]:
            self.log(f"{call.method}: {json.loads(call.answer)['error']['kind']}")
        else:
            self.log(call.method)
        return {"answer": call.answer}

    def _look(self) -> None:
        """Changelogs are renamed past the storage: they are as old as the call that published them."""
        if isinstance(self.storage, TimedStorage):
            for info in self.storage.list(layout.STATE_DIR + "/"):
                del info

    def _new_agent(self, executor: Executor) -> None:
        executor.agent.dead = True
        for call in self._calls.values():
            if call.agent is executor.agent and not call.done and Call.of_this_thread() is not call:
                call.finish()
        executor.agent = Agent(self, self.storage, executor.local_root)

    def fault_of(self, operation: Operation) -> Fault | None:
        """What goes wrong with a storage operation."""
        if self.quiet or not self.setting.storage_faults:
            return None
        kinds = _STORAGE_FAULTS["put" if operation.is_put else "delete" if operation.name == "delete" else "other"]
        if operation.is_read and self.setting.bodies:
            kinds = (*kinds, *_BODIES)
        chosen = self.choices.pick(self.setting.storage_faults, len(kinds))
        if not chosen:
            return None
        self.log(f"{operation.name}: {kinds[chosen - 1].value}")
        self._disturb(None)
        return kinds[chosen - 1]

    def stands_still(self, what: str) -> bool:
        """Whether a call stops at a storage operation and others go first."""
        return not self.quiet and self.choices.pick(self.setting.stands) > 0

    # ---- executors and providers

    def new_executor(self, index: int, root: Path | None = None) -> Executor:
        """One more executor. `root`: of the Spark checkpoint that it works on, if not of this one."""
        self._names += 1
        name = f"executor-{index}.{self._names}"
        local_root = str(self.dir / f"agent-{self._names}" / "root")
        os.makedirs(local_root)
        storage = self.storage if root is None else storage_of("local", str(root), lambda: self.now_ms)
        executor = Executor(name, Agent(self, storage, local_root), local_root)
        self._owners[name] = executor
        return executor

    def of_executor(self, executor: Executor, do: str, **arguments: Any) -> Any:
        """Run a command on the main thread as something that the executor does."""
        return self.command(do, executor.name, **arguments)

    def provider(
        self, executor: Executor, partition: int, partitions: int, *, run: int | None = None, root: Path | None = None
    ) -> str:
        """The executor's provider of a partition in a run, opened if there is none."""
        run = self.run if run is None else run
        found = executor.providers.get((run, partition))
        if found is None:
            self._names += 1
            found = executor.providers[(run, partition)] = f"p{self._names}"
            schema = self.shape.schema
            self.of_executor(
                executor,
                "open",
                p=found,
                **{"class": MILLPOND},
                root=str((root or self.checkpoint) / "state"),
                partition=partition,
                key=schema.key,
                value=schema.value,
                spec=dict(schema.spec),
                use_cf=schema.use_cf,
                conf=self.setting.conf | {"spark.sql.shuffle.partitions": str(partitions)},
                run_id=str(uuid.UUID(int=self.run + 1)),
            )
        return found

    def new_name(self, kind: str) -> str:
        """A name that was not used before."""
        self._names += 1
        return f"{kind}{self._names}"

    def close_provider(self, executor: Executor, key: tuple[int, int]) -> None:
        """Spark unloads a provider. What its tasks still hold ends with it."""
        name = executor.providers.pop(key)
        for store in executor.sessions.pop(name, []):
            self._quietly(executor, "abort", s=store)
        self.of_executor(executor, "close", p=name)

    def _quietly(self, executor: Executor, do: str, **arguments: Any) -> None:
        try:
            self.of_executor(executor, do, **arguments)
        except ProviderError as error:
            self.log(f"{do}: {error.causes[0][0]}")

    def kill(self, executor: Executor) -> Executor:
        """The executor's process is gone, and all that it had in memory. Return the one that takes its place."""
        self.log(f"{executor.name} is killed")
        lives_on = self.choices.pick(0.3) > 0  # the agent ends a moment later
        executor.dead = True
        executor.agent.dead = not lives_on
        for call in self._calls.values():
            if call.agent is executor.agent and not call.done:
                call.finish()
        executor.agent.dead = True
        self.command("doom", owner=executor.name)
        self._end_threads(executor.name)
        for key in list(executor.providers):
            name = executor.providers.pop(key)
            self._quietly(executor, "drop", p=name)
        index = self.executors.index(executor)
        shutil.rmtree(self.dir / f"agent-{executor.name.rpartition('.')[2]}", ignore_errors=True)
        self.executors[index] = self.new_executor(index)
        return self.executors[index]

    # ---- threads

    def _end_threads(self, owner: str | None = None) -> None:
        was, self.quiet = self.quiet, True
        for _ in range(1000):
            waiting = [t for t, (_, of) in self.threads.items() if owner in (None, of)]
            if not waiting:
                break
            for thread in waiting:
                if thread in self.threads:
                    self.command("run", t=thread)
        else:
            raise Wrong("threads do not end", self.threads)
        self.quiet = was

    def settle(self) -> None:
        """All that was begun in the background ends, with nothing else going wrong."""
        self.command("stats")  # tells of threads that have just begun
        self._end_threads()
        for call in self._calls.values():  # nobody asks for them any more
            if not call.done:
                call.finish()

    def breathe(self, probability: float = 0.3) -> None:
        """Sometimes others do something between two actions of the main thread."""
        if self.threads and not self.quiet:
            threads = list(self.threads)
            chosen = self.choices.pick(probability, len(threads))
            if chosen and threads[chosen - 1] in self.threads:
                self.log(f"{self.threads[threads[chosen - 1]][0]} goes on")
                self.command("run", t=threads[chosen - 1])

    def spawn(self, executor: Executor, name: str, commands: list[dict[str, Any]]) -> int:
        """Begin something in the background."""
        return int(self.command("spawn", name=name, owner=executor.name, commands=commands))

    def abandon(self) -> bool:
        """After a failure: end all that runs. Return whether the JVM is as good as new."""
        self.quiet = True
        for executor in list(self._owners.values()):
            executor.dead = executor.agent.dead = True
        for call in self._calls.values():
            if not call.done:
                call.finish()
        for executor in self._owners.values():
            self.command("doom", owner=executor.name)
        self._end_threads()
        for executor in self._owners.values():
            for provider in executor.providers.values():
                self._quietly(executor, "drop", p=provider)
        self._end_threads()
        stats = self.command("stats")
        return bool(stats["used_bytes"] == 0 and stats["actors"] == 0 and stats["stores"] <= 1)

    def close(self) -> None:
        """All processes end in order, nothing is left."""
        self.quiet = True
        self.settle()
        for executor in self.executors:
            for key in list(executor.providers):
                self.close_provider(executor, key)
        self.settle()


def kinds_of(error: ProviderError) -> list[ErrorKind]:
    """The kinds of Millpond's errors in the chain of causes."""
    found = []
    for _, text in error.causes:
        if text.startswith("[MILLPOND_"):
            found.append(ErrorKind(text[len("[MILLPOND_") :].split("]")[0]))
    return found
