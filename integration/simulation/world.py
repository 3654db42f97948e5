"""The world of a simulated run: executors, agents, providers, threads, the clock, Spark's logs."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from integration.harness import ProviderError
from integration.jvm import MILLPOND
from integration.simulation.agents import Agent, storage_of
from integration.simulation.choices import Choices
from integration.simulation.director import FAULTS, Director, Executor, Wrong
from integration.simulation.families import Shape
from integration.simulation.jvm import Jvm
from integration.simulation.setting import Setting


class World(Director):
    """The world of one run.

    The main thread acts as Spark's driver and runs the tasks. Other threads work in the background.
    """

    def __init__(
        self, jvm: Jvm, setting: Setting, shape: Shape, choices: Choices, work_dir: Path
    ) -> None:
        self.dir = work_dir
        self.checkpoint = work_dir / "checkpoint"
        super().__init__(jvm, setting, choices, self.checkpoint)
        self.shape = shape
        self.run = 0
        self._names = 0
        seed = int.from_bytes(hashlib.sha256(str(choices.seed).encode()).digest()[:7], "big")
        stretches = {
            "warm-up.rows": setting.rows_at_once,
            "flush.gather": setting.gather_bytes,
            "segment": 2000,
            "log.waiting": setting.waiting_rows,
            "changelog.room": setting.room_bytes,
            "disk.passes": setting.passes,
        }
        self.command(
            "begin", seed=seed, stretches=stretches, failing=[prefix for prefix, _ in FAULTS]
        )
        for index in (0, 1):
            self.executors.append(self.new_executor(index))

    # ---- executors and providers

    def new_executor(self, index: int, root: Path | None = None) -> Executor:
        """Start one more executor.

        root: the Spark checkpoint for which it works; None: this run's.
        """
        self._names += 1
        name = f"executor-{index}.{self._names}"
        local_root = str(self.dir / f"agent-{self._names}" / "root")
        os.makedirs(local_root)
        storage = (
            self.storage if root is None else storage_of("local", str(root), lambda: self.now_ms)
        )
        executor = Executor(name, Agent(self, storage, local_root), local_root)
        self._owners[name] = executor
        return executor

    def of_executor(self, executor: Executor, do: str, **arguments: Any) -> Any:
        """Run a command on the main thread, in the name of the executor."""
        return self.command(do, executor.name, **arguments)

    def provider(
        self,
        executor: Executor,
        partition: int,
        partitions: int,
        *,
        run: int | None = None,
        root: Path | None = None,
    ) -> str:
        """Return the executor's provider of a partition in a run. Open it if there is none."""
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
        """Return a new name."""
        self._names += 1
        return f"{kind}{self._names}"

    def close_provider(self, executor: Executor, key: tuple[int, int]) -> None:
        """Unload a provider, as Spark does. Stores that its tasks still hold end with it."""
        name = executor.providers.pop(key)
        for store in executor.sessions.pop(name, []):
            self._quietly(executor, "abort", s=store)
        self.of_executor(executor, "close", p=name)
        executor.unloaded.append(name)

    def _quietly(self, executor: Executor, do: str, **arguments: Any) -> None:
        try:
            self.of_executor(executor, do, **arguments)
        except ProviderError as error:
            self.log(f"{do}: {error.causes[0][0]}")

    def kill(self, executor: Executor) -> Executor:
        """Kill the executor's process; its memory is gone. Return its successor."""
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
        for name in executor.unloaded:
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
        """Let all background work end. Nothing else goes wrong meanwhile."""
        self.command("stats")  # the answer names threads that have just begun
        self._end_threads()
        for call in self._calls.values():  # calls for which no thread waits
            if not call.done:
                call.finish()

    def breathe(self) -> None:
        """Sometimes let another thread go on between two actions of the main thread."""
        self.beside()
        if self.threads and not self.quiet:
            threads = list(self.threads)
            chosen = self.choices.pick(self.setting.meanwhile, len(threads))
            if chosen and threads[chosen - 1] in self.threads:
                self.log(f"{self.threads[threads[chosen - 1]][0]} goes on")
                self.command("run", t=threads[chosen - 1])

    def spawn(self, executor: Executor, name: str, commands: list[dict[str, Any]]) -> int:
        """Begin commands in the background. Return their thread."""
        return int(self.command("spawn", name=name, owner=executor.name, commands=commands))

    def abandon(self) -> bool:
        """End all work after a failure. Return whether the JVM can serve the next run."""
        for command in self.commands:
            command.kill()
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
            for provider in (*executor.providers.values(), *executor.unloaded):
                self._quietly(executor, "drop", p=provider)
        self._end_threads()
        stats = self.command("stats")
        return bool(stats["used_bytes"] == 0 and stats["actors"] == 0 and stats["stores"] <= 1)

    def close(self) -> None:
        """End the simulated processes in order. Nothing may be left."""
        self.quiet = True
        self.settle()
        for executor in self.executors:
            for key in list(executor.providers):
                self.close_provider(executor, key)
        self.settle()
