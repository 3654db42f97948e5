"""Carries out a schedule. At its end, checks the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from integration.simulation.director import Wrong
from integration.simulation.families import Shape
from integration.simulation.looking import Looking
from integration.simulation.query import Refused, Step
from integration.simulation.setting import MINUTE_MS
from integration.simulation.world import World
from millpond.format import layout


class Runner(Looking):
    """One run."""

    def carry_out(self, steps: list[Step]) -> None:
        """Run the steps, then check the store."""
        for step in steps:
            self.step = step["id"]
            self.choices.begin(self.step)
            self.world.log(f"-- {' '.join(f'{k}={v}' for k, v in step.items() if k != 'id')}")
            self.before_step(step)
            with contextlib.suppress(Refused):
                getattr(self, f"do_{step['do']}")(step)
        self.choices.begin(10**6)
        self.finish()

    def finish(self) -> None:
        """Stop the faults. Then the store must work, hold the committed state, and stop growing."""
        self.end_all()
        world = self.world
        world.quiet = True
        world.settle()
        for number in (1, 2):
            self.do_batch({"id": 10**6 + number, "do": "batch", "ops": 4, "trouble": 0.0})
        self._bounded()
        for number in self.restorable():
            self.audit(self.versions[number])
        world.close()
        stats = world.command("stats")
        if stats["used_bytes"] or stats["actors"] or stats["stores"] > 1:
            raise Wrong("something is left after all stores are closed", stats)
        for executor in world.executors:
            if kept := executor.agent.service._contexts._stores:
                raise Wrong("an agent keeps stores after all are closed", kept)
        if left := world.jvm.open_files():
            raise Wrong("files are open after all stores are closed", left)

    def _maintain_all(self) -> None:
        for executor in self.world.executors:
            for provider in list(executor.providers.values()):
                self.world.of_executor(executor, "maintenance", p=provider)

    def _with_open_stores(self, work: Callable[[], None]) -> None:
        """Do `work` after the next batch has begun.

        Spark may log a batch before the store commits it. Only the next batch proves the commit.
        """
        executor, version, opened = self.world.executors[0], self.versions[self.newest], []
        for partition in range(self.partitions):
            provider = self.world.provider(executor, partition, self.partitions)
            store = self.world.new_name("s")
            where = {"version": version.number, "id": version.ids[partition]}
            self.world.of_executor(executor, "get_store", p=provider, s=store, **where)
            opened.append(store)
        self._retain(self.newest)
        work()
        for store in opened:
            self.world.of_executor(executor, "abort", s=store)

    def _bounded(self) -> None:
        world, setting = self.world, self.setting
        for executor in world.executors:
            for key in list(executor.providers):
                if key[0] != world.run:
                    self._drop_provider(executor, key)
        left = ""
        for number in range(setting.retain + 5):
            world.now_ms += setting.grace_ms + 61 * MINUTE_MS
            self._with_open_stores(self._maintain_all)
            if number >= 2 and not (left := self._too_many()):
                return
            if number >= 2:  # a snapshot counts only with enough versions above it
                self.do_batch({"id": 10**6 + number, "do": "batch", "ops": 1, "trouble": 0.0})
        raise Wrong(f"files are left: {left.split()[1]}", left)

    def _too_many(self) -> str:
        found: dict[str, list[str]] = {}
        for info in self.world.storage.list(f"{layout.STATE_DIR}/0/"):
            parsed = layout.parse_key(info.key)
            if (
                parsed is not None
                and parsed.file is not None
                and parsed.store.partition < self.partitions
            ):
                found.setdefault(
                    f"{parsed.store.partition} {type(parsed.file).__name__}", []
                ).append(info.key)
        most = 2 * self.setting.retain + 2 * self.setting.deltas + 4
        for what, keys in found.items():
            bound = (
                0
                if what.endswith("StagingFile")
                else most * (12 if what.endswith("SstFile") else 1)
            )
            if len(keys) > bound:
                return f"{what}: {len(keys)} > {bound}: {keys[:20]}"
        return ""


def run(world: World, shape: Shape, steps: list[Step]) -> None:
    """Carry out a schedule. Raises: Wrong."""
    Runner(world, shape).carry_out(steps)
