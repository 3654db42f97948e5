"""Answers the threads of the JVM: who goes on, what goes wrong, what an agent answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.harness import ProviderError
from integration.simulation.agents import Agent, Call, TimedStorage, storage_of
from integration.simulation.choices import NEVER, Choices
from integration.simulation.commands import Command
from integration.simulation.jvm import Jvm, Message
from integration.simulation.setting import Setting
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.testing.faults import Fault, Operation

START_MS = 1_750_000_000_000
MAIN = 0


class Wrong(AssertionError):
    """The store did something wrong.

    `symptom` names it in few words. The same defect has the same symptom.
    """

    def __init__(self, symptom: str, details: object = "") -> None:
        super().__init__(f"{symptom}: {details}" if details != "" else symptom)
        self.symptom = symptom


@dataclass
class Executor:
    """One executor: its providers in the JVM, by run and partition, and its agent."""

    name: str
    agent: Agent
    local_root: str
    providers: dict[tuple[int, int], str] = field(default_factory=dict)
    unloaded: list[str] = field(default_factory=list)  # providers that a task may still use
    # Provider -> stores that a task may still hold.
    sessions: dict[str, list[str]] = field(default_factory=dict)
    dead: bool = False
    disturbed: bool = False  # something went wrong since its last commit
    emptied: bool = False  # its local files were deleted; it may notice that later
    lost: int = 0  # calls that know of their agent's death, and did not ask to kill it yet


# What can go wrong at each point of the store. A text is the start of a point's name.
FAULTS: tuple[tuple[str, tuple[str, ...]], ...] = (
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
_BURSTS = (1, 2, 5, 15, 50)  # for so many operations a command goes on


class Director:
    """Directs one run. Only one thread of the JVM works at a time. The main thread is number 0."""

    def __init__(self, jvm: Jvm, setting: Setting, choices: Choices, checkpoint: Path) -> None:
        self.jvm, self.setting, self.choices = jvm, setting, choices
        self.now_ms = START_MS
        self.storage = storage_of(setting.storage, str(checkpoint), lambda: self.now_ms)
        self.quiet = False  # no faults, and no thread gives way
        self.commands: list[Command] = []  # of users, that nobody has judged yet
        self.trace: list[str] = []
        self.threads: dict[int, tuple[str, str]] = {}  # in the background: name, owner
        # Thread -> the function that checks its results.
        self.on_done: dict[int, Callable[[Message], None]] = {}
        self.executors: list[Executor] = []
        self._calls: dict[int, Call] = {}  # without an answer yet
        self._numbers = 0
        self._owners: dict[str, Executor] = {}
        # How often each thread waited for a lock. This number selects the thread that goes on.
        self._waits: Counter[int] = Counter()
        self._main_owner = ""

    # ---- talk with the JVM

    def log(self, text: str) -> None:
        self.trace.append(text)

    def command(self, do: str, owner: str = "", **arguments: Any) -> Any:
        """Run a command on the main thread. Raises: ProviderError."""
        self._main_owner = owner
        return self.jvm.call(self._answer, do, owner, skip=self._skip(), **arguments)

    def _skip(self) -> tuple[int, int]:
        """Return how many seams the JVM passes before it asks.

        The first number counts seams where another thread may go first. The second counts seams
        where something may go wrong.
        """
        return (
            (NEVER, NEVER)
            if self.quiet
            else (self.choices.yielding.skip(), self.choices.failing.skip())
        )

    def _answer(self, message: Message) -> Message | None:
        for thread, name, owner in message.get("new", ()):
            self.threads[thread] = (name, owner)
        if "passed" in message:
            self.choices.yielding.passed(message["passed"][0])
            self.choices.failing.passed(message["passed"][1])
        if message["m"] == "answer":
            return None
        reply = self._reply(message)
        reply["skip"] = self._skip()
        return reply

    def _reply(self, message: Message) -> Message:
        kind, me = message["m"], message.get("t", MAIN)
        if kind == "yields":
            return self._yields(message["p"], me)
        if kind == "fails":
            return self._fails(message["p"], me)
        if kind == "wait":
            self._waits[me] += 1
            if self._waits[me] > 10_000:
                raise Wrong("threads wait for each other", self.threads)
            others = [t for t in (MAIN, *self.threads) if t != me]
            if not others:
                raise Wrong("a thread waits for a lock that nobody gives back")
            return {"go": others[self._waits[me] % len(others)]}
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
            self.log(
                f"{name} ended"
                + (f": {message['error']['causes'][0][0]}" if "error" in message else "")
            )
            return {"go": self._other(me, 0.5)}
        raise AssertionError(message)

    def _other(self, me: int, probability: float) -> int:
        """Return who goes on instead of `me`: the main thread, or sometimes another."""
        others = [t for t in self.threads if t != me]
        chosen = 0 if self.quiet else self.choices.pick(probability, len(others))
        return others[chosen - 1] if chosen else MAIN

    def _fails(self, point: str, me: int) -> Message:
        kinds = next((kinds for prefix, kinds in FAULTS if point.startswith(prefix)), ())
        if not point.startswith(self.setting.struck):
            kinds = ()
        often = self.setting.local_faults * (0.2 if point.startswith("memory") else 1.0)
        fault = self.choices.failing.pick(often, len(kinds))
        if not fault:
            return {}
        self.log(f"{point}: {kinds[fault - 1]}")
        self._disturb(self._executor_at(me))
        return {"fault": kinds[fault - 1]}

    def _yields(self, point: str, me: int) -> Message:
        others = [t for t in (MAIN, *self.threads) if t != me]
        chosen = self.choices.yielding.pick(self.setting.switches, len(others))
        if not chosen:
            return {}
        self.log(f"{point}: {me} gives way to {others[chosen - 1]}")
        return {"go": others[chosen - 1]}

    def _executor_at(self, thread: int) -> Executor | None:
        return (
            self._owners.get(self.threads[thread][1])
            if thread in self.threads
            else self._owners.get(self._main_owner)
        )

    def _disturb(self, executor: Executor | None) -> None:
        for one in [executor] if executor is not None else self.executors:
            one.disturbed = True

    # ---- agents

    def _call(self, message: Message) -> Message:
        executor = self._owners[message["owner"]]
        if executor.dead or message["dying"]:
            return {"lost": "the executor is dead"}
        call = Call(executor.agent, executor.name, message["method"], message["request"])
        for number, other in self._calls.items():
            if (
                not other.done
                and other.agent is executor.agent
                and call.ticket
                and other.ticket == call.ticket
            ):
                # `other` stands still. The JVM asks for it once more.
                return self._after(other, number, message["t"])
        if not self.quiet:
            dies = self.choices.pick(self.setting.deaths, 8)
            call.dies_at = dies - 1 if 0 < dies < 8 else 1_000_000 if dies else None
            call.may_stand = message["y"] and self.setting.stands > 0
        self._numbers += 1
        self._calls[self._numbers] = call
        return self._after(call, self._numbers, message["t"])

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
        self._calls.pop(number, None)
        self._look(call)
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

    def _look(self, call: Call) -> None:
        """Give times to changelogs. Agents rename them, and the storage does not notice.

        A changelog is as old as the call that published it.
        """
        if call.method == "publish_changelog" and isinstance(self.storage, TimedStorage):
            self.storage.look(f"{layout.STATE_DIR}/0/{call.partition}/")

    def _new_agent(self, executor: Executor) -> None:
        executor.agent.dead = True
        for call in self._calls.values():
            if call.agent is executor.agent and not call.done and Call.of_this_thread() is not call:
                call.finish()
        executor.agent = Agent(self, self.storage, executor.local_root)

    def fault_of(self, operation: Operation) -> Fault | None:
        """Return the fault of a storage operation, or None."""
        self.beside()
        if self.quiet or not self.setting.storage_faults:
            return None
        kinds = _STORAGE_FAULTS[
            "put" if operation.is_put else "delete" if operation.name == "delete" else "other"
        ]
        if operation.is_read and self.setting.bodies:
            kinds = (*kinds, *_BODIES)
        chosen = self.choices.pick(self.setting.storage_faults, len(kinds))
        if not chosen:
            return None
        self.log(f"{operation.name}: {kinds[chosen - 1].value}")
        self._disturb(None)
        return kinds[chosen - 1]

    def stands_still(self, what: str) -> bool:
        """Return whether a call stops at a storage operation, so that others go first."""
        return not self.quiet and self.choices.pick(self.setting.stands) > 0

    def beside(self, often: float | None = None) -> None:
        """Sometimes let a command of a user go on for some operations, or kill it.

        Args:
            often: the probability; None: as the setting says.
        """
        for command in [] if self.quiet else [*self.commands]:
            if command.done:
                continue
            chosen = self.choices.pick(
                self.setting.meanwhile if often is None else often, len(_BURSTS)
            )
            if chosen and command.mortal and self.choices.pick(self.setting.kills):
                self.log(f"{command.name} is killed before: {command.at}")
                command.kill()
            elif chosen:
                command.go(_BURSTS[chosen - 1])
                self.log(f"{command.name} " + ("ends" if command.done else f"is at: {command.at}"))


def kinds_of(error: ProviderError) -> list[ErrorKind]:
    """Return the kinds of Millpond's errors in the chain of causes."""
    found = []
    for _, text in error.causes:
        if text.startswith("[MILLPOND_"):
            found.append(ErrorKind(text[len("[MILLPOND_") :].split("]")[0]))
    return found
