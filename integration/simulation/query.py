"""The simulated query: its batches, their tasks and attempts, and the true state by Spark's log."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

from integration.harness import ProviderError
from integration.simulation.director import Executor, Wrong, kinds_of
from integration.simulation.families import Kind, Shape
from integration.simulation.setting import Setting
from integration.simulation.spark_files import (
    purge_logs,
    write_commit,
    write_metadata,
    write_offsets,
)
from integration.simulation.tasks import Families, Task, Version, part
from integration.simulation.world import World
from millpond.errors import ErrorKind

Step = dict[str, Any]  # `id`, `do`, and the arguments of the step

# The errors that a fault explains.
_EXCUSED = {
    ErrorKind.STORAGE_UNAVAILABLE,
    ErrorKind.STORAGE_DENIED,
    ErrorKind.STORAGE_FULL,
    ErrorKind.LOCAL_DISK_FULL,
    ErrorKind.LOCAL_FILES_LOST,
    ErrorKind.MEMORY_EXHAUSTED,
    ErrorKind.AGENT_LOST,
    ErrorKind.AGENT_TIMEOUT,
    ErrorKind.STORE_CLOSED,
}
OF_DAMAGE = {
    ErrorKind.CHANGELOG_DAMAGED,
    ErrorKind.MANIFEST_DAMAGED,
    ErrorKind.SST_DAMAGED,
    ErrorKind.FORMAT_DAMAGED,
    ErrorKind.FORMAT_TOO_NEW,
    ErrorKind.CHANGELOG_MISSING,
}
# Without ids, another executor may write a version anew. The store learns that only from the file.
_OF_OTHERS = {ErrorKind.CHANGELOG_REPLACED, ErrorKind.STORE_CLOSED}
# Maintenance may notice the loss before the task does. Then the task must load the store again.
_OF_LOSS = {ErrorKind.LOCAL_FILES_LOST, ErrorKind.STORE_CLOSED}
_ATTEMPTS = 4
# Attempts without faults. The driver may abort one. Each executor may hold files that the other
# executor replaced.
_QUIET_ATTEMPTS = 4


class Refused(Exception):
    """The query cannot go on: a key is being erased from its state."""


class Killed(Exception):
    """Something killed the executor of the task."""


class Query:
    """The simulated query. `versions`: the true state of every batch in Spark's commit log."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.world, self.shape, self.choices = world, shape, world.choices
        self.setting: Setting = world.setting
        self.partitions = self.setting.partitions
        self.versions: dict[int, Version] = {
            0: Version(0, self.partitions, (None,) * self.partitions, {})
        }
        self.newest = 0
        self.floor = 1  # the oldest version that retention kept
        self.contents: dict[int, int] = {}  # batch -> the seed of its changes
        self.step = 0
        self.used: dict[str, int] = {}  # provider -> version that it committed last
        self.lingering: list[tuple[Executor, Task]] = []
        self.written: dict[
            int, tuple[int, list[dict[str, Any]]]
        ] = {}  # partition -> the base of its last commit, and that task's commands
        self.counts = True  # each version says the true number of its keys
        self.late: set[int] = set()  # threads of second attempts that repeat the first one's commit
        write_metadata(world.storage, str(world.checkpoint), shape, self.partitions)

    def do_batch(self, step: Step) -> None:
        """Run a micro-batch."""
        base = self.newest
        content = self.contents.setdefault(base, self._content(step))
        write_offsets(self.world.storage, base, self.partitions)
        if self.setting.purges:
            self._retain(base)
        chance = random.Random(content)
        changes = self._family_changes(chance, self.versions[base].families)
        ids: list[str | None] = [None] * self.partitions
        families: Families = {}
        for partition in range(self.partitions):
            done = self._task(step, base, partition, content, changes)
            if done is None:
                self.restart()
                return
            ids[partition], rows = done
            for name, mine in rows.items():
                families.setdefault(name, {}).update(mine)
            if step.get("dies") == partition:
                self.world.log("the driver dies in the batch")
                self.restart()
                return
            if not self.goes_on():
                self.restart()
                return
        write_commit(self.world.storage, base, ids, self.setting.spark_format)
        self.newest = base + 1
        self.versions[self.newest] = Version(self.newest, self.partitions, tuple(ids), families)
        self.contents.pop(base)

    # ---- what `Erasing` adds

    @property
    def erasing(self) -> bool:
        """Whether a key is being erased."""
        return False

    def since(self) -> int:
        """Return how many erasures have begun and ended so far."""
        return 0

    def goes_on(self) -> bool:
        """Return whether the query goes on after a task."""
        return True

    def before_attempt(self, executor: Executor) -> None:
        """Prepare an attempt of a task. Raises: Refused."""

    def opened(self, task: Task, since: int) -> None:
        """Look at a store that was just opened.

        Args:
            since: how many erasures had ended before.
        """

    def _content(self, step: Step) -> int:
        return random.Random(f"{self.choices.seed}/{step['id']}/content").getrandbits(60)

    def _family_changes(self, chance: random.Random, families: Families) -> list[tuple[str, str]]:
        """Return the families that the batch drops and creates, in this order."""
        if not self.shape.has_families:
            return [("create", "default")] if not families else []
        changes = [
            ("drop", n) for n in families if not n.startswith("$") and chance.random() < 0.08
        ]
        dropped = [n for _, n in changes]
        wanted = 0.6 if not families else 0.25
        changes += [
            ("create", n)
            for n in self.shape.kinds
            if n not in families and chance.random() < wanted
        ]
        changes += [("create", n) for n in dropped if chance.random() < 0.4]
        if not families and not changes:
            changes = [("create", next(iter(self.shape.kinds)))]
        return changes

    def _task(
        self, step: Step, base: int, partition: int, content: int, changes: list[tuple[str, str]]
    ) -> tuple[str | None, Families] | None:
        """Run attempts until one succeeds. The last attempts meet no faults: one must succeed."""
        was = self.world.quiet
        try:
            for number in range(_ATTEMPTS + _QUIET_ATTEMPTS):
                if number >= _ATTEMPTS:
                    self.world.quiet = True
                    self.world.settle()
                index = step.get("executor", 0) ^ (
                    1 if self.choices.pick(0.15 if number == 0 else 0.4) else 0
                )
                executor = self.world.executors[index]
                seed = f"{content}/{partition}" + (
                    f"/{number}" if self.setting.spark_format == 2 else ""
                )
                try:
                    return self._attempt(
                        executor, base, partition, random.Random(seed), changes, step
                    )
                except Killed:
                    continue
                except ProviderError as error:
                    self._judge(error, executor, last=number == _ATTEMPTS + _QUIET_ATTEMPTS - 1)
            return None
        finally:
            self.world.quiet = was

    def _judge(self, error: ProviderError, executor: Executor, *, last: bool = False) -> None:
        """Raise Wrong unless a fault explains the error."""
        kinds = kinds_of(error)
        first_line = error.args[0].splitlines()[0]
        # Paths differ from run to run. The log must not differ.
        self.world.log(re.sub(r"(?<= )/[^ ]+", "PATH", first_line)[:150])
        if not kinds:
            raise Wrong(f"an error of no kind: {error.causes[-1][0]}", error)
        kind = kinds[0]
        if last:
            raise Wrong(f"does not recover: {kind.value}", error)
        if kind in _OF_OTHERS and self.setting.spark_format == 1:
            return
        if kind is ErrorKind.STORE_LOCKED and any(
            name.startswith("zombie") for name, _ in self.world.threads.values()
        ):
            return
        if kind in _OF_LOSS and executor.emptied:
            return
        excused = _EXCUSED | OF_DAMAGE if self.setting.bodies else _EXCUSED
        if not (executor.disturbed and kind in excused):
            raise Wrong(f"{kind.value} without a reason", error)

    def _kinds(self, partition: int, partitions: int) -> dict[str, Kind]:
        return {
            n: replace(k, candidates=tuple(k.keys(partition, partitions)), places=[])
            for n, k in self.shape.kinds.items()
        }

    def _attempt(
        self,
        executor: Executor,
        base: int,
        partition: int,
        chance: random.Random,
        changes: list[tuple[str, str]],
        step: Step,
    ) -> tuple[str | None, Families]:
        self.before_attempt(executor)
        world, version, since = self.world, self.versions[base], self.since()
        provider = world.provider(executor, partition, self.partitions)
        store = world.new_name("s")
        rows = part(version, self.shape.kinds, partition, self.partitions)
        task = Task(world, executor, provider, store, self._kinds(partition, self.partitions), rows)
        world.log(f"task {partition} of version {base + 1} on {executor.name}")
        sessions = executor.sessions.setdefault(provider, [])
        try:
            self._open(task, version, partition)
            sessions.append(store)
            self._retain(base)
            if self.shape.has_families:
                for name in list(rows):
                    task.create(name)
                names = set(task.do("cf_names")) - {"default"}
                if names != set(rows):
                    raise Wrong("other families than were committed", (sorted(names), sorted(rows)))
            self.opened(task, since)
            if self.choices.pick(0.4):
                task.check_all("after opening")
            early = chance.randint(0, step.get("ops", 8))
            for _ in range(early):
                self._haunt(task)
                task.act(random.Random(chance.getrandbits(60)))
            for what, name in changes:
                if what == "drop":
                    task.drop(name)
                elif self.shape.has_families:
                    task.create(name)
                else:
                    task.rows[name] = {}
            for _ in range(step.get("ops", 8) - early):
                self._haunt(task)
                task.act(random.Random(chance.getrandbits(60)))
            if world.threads and self.choices.pick(0.25):
                world.log("what goes on beside the task ends first")
                world.settle()
            if self.choices.pick(0.15):
                task.check_all("before the commit")
            ending = self.choices.pick(step.get("trouble", 0.15), 6)
            if ending == 1:
                self._killed(executor)
            if ending in (2, 6):
                world.log("the task is aborted")
                task.do("abort")
                sessions.remove(store)
                raise Killed
            if ending == 3 and self.setting.lingers:
                world.log("the task ends, one of its threads does not")
                world.of_executor(executor, "end_session", p=provider, s=store)
                self.lingering.append((executor, task))
                raise Killed
            done = world.of_executor(executor, "commit", s=store)
            if ending == 4:
                self._killed(executor)
        except ProviderError:
            world.of_executor(executor, "abort", s=store) if store in sessions else None
            if store in sessions:
                sessions.remove(store)
            raise
        sessions.remove(store)
        if ending == 5:
            world.log("the task fails after its commit")
            world.of_executor(executor, "end_session", s=store)
            self.used.pop(provider, None)  # the provider forgot the families that the batch dropped
            raise Killed
        self.used[provider] = base + 1
        executor.disturbed = bool(world.threads)
        self._check_commit(task, done, base)
        self.written[partition] = (base, task.written)
        return done["id"], task.rows

    def _killed(self, executor: Executor) -> None:
        self.world.kill(executor)
        self.lingering = [(e, t) for e, t in self.lingering if e is not executor]
        raise Killed

    def _open(self, task: Task, version: Version, partition: int) -> None:
        world, where = self.world, {"version": version.number, "id": version.ids[partition]}
        if self.choices.pick(0.2):
            read = world.new_name("s")
            world.of_executor(task.executor, "get_read_store", p=task.provider, s=read, **where)
            try:
                world.breathe()
                # A provider that committed this version knows its families.
                if self.used.get(task.provider) == version.number:
                    for name in [n for n in task.rows if self.choices.pick(0.3)]:
                        task.begin_walk(random.Random(self.step), name, store=read)
                world.of_executor(
                    task.executor,
                    "upgrade",
                    p=task.provider,
                    s=task.store,
                    **{"from": read},
                    **where,
                )
            except ProviderError:
                world.of_executor(task.executor, "release", s=read)
                raise
        else:
            world.of_executor(task.executor, "get_store", p=task.provider, s=task.store, **where)

    def _retain(self, asked: int) -> None:
        self.floor = max(self.floor, asked - self.setting.retain + 1)
        if self.setting.purges:
            purge_logs(self.world.storage, asked - self.setting.retain)

    def _check_commit(self, task: Task, done: dict[str, Any], base: int) -> None:
        if done["version"] != base + 1 or (done["id"] is None) != (self.setting.spark_format == 1):
            raise Wrong("the commit answers another version", done)
        if self.setting.exact and self.counts:
            keys = int(self.world.of_executor(task.executor, "metrics", s=task.store)["keys"])
            expected = sum(
                len(rows) for name, rows in task.rows.items() if not task.kinds[name].internal
            )
            if keys != expected:
                raise Wrong("key count is wrong", (keys, expected))

    def _haunt(self, task: Task) -> None:
        """Let a thread of an ended attempt go on with its store."""
        for executor, old in self.lingering:
            if (
                executor is task.executor
                and old.provider == task.provider
                and self.choices.pick(0.2)
            ):
                kinds = [
                    old.kinds[n] for n in old.rows if n in old.kinds and old.kinds[n].candidates
                ]
                if not kinds:
                    return
                kind = kinds[self.choices.pick(0.5, len(kinds)) - 1]
                key = kind.candidates[self.choices.pick(0.5, len(kind.candidates)) - 1]
                what = ("put", "remove", "commit", "abort", "put")[self.choices.pick(0.6, 4)]
                chance = random.Random(0)
                arguments = {
                    "put": {"cf": kind.name, "k": key, "v": kind.value(chance, large=False)}
                }
                arguments["remove"] = {"cf": kind.name, "k": key}
                try:
                    self.world.of_executor(executor, what, s=old.store, **arguments.get(what, {}))
                    self.world.log(f"a thread of {old.store} that lingers: {what}")
                    if what == "commit":
                        raise Wrong("a thread that lingers commits", old.store)
                except ProviderError as error:
                    self.world.log(
                        f"a thread of {old.store} that lingers: {what}: {error.causes[0][0]}"
                    )

    def restart(self, lives_on: float = 0.3) -> None:
        """End the query and begin it anew.

        Spark unloads its providers. With the probability `lives_on` a provider lives on for a
        while.
        """
        # No user deletes batches from Spark's logs while a task of the query writes.
        if self.late & self.world.threads.keys():
            self.world.settle()
        self.written.clear()
        self.world.run += 1
        for executor in self.world.executors:
            for key in list(executor.providers):
                if not self.choices.pick(lives_on):
                    self._drop_provider(executor, key)
        self.world.log(f"run {self.world.run}")

    def _drop_provider(self, executor: Executor, key: tuple[int, int]) -> None:
        name = executor.providers[key]
        self.lingering = [(e, t) for e, t in self.lingering if t.provider != name]
        self.world.close_provider(executor, key)

    def restorable(self) -> list[int]:
        """Return the versions that must be restorable now, ascending."""
        return [v for v in sorted(self.versions) if v >= max(self.floor, 1)]
