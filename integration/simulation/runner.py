"""Carries out a schedule: Spark's driver, its tasks, and all that may happen beside them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from integration.harness import ProviderError
from integration.simulation.families import Kind, Shape
from integration.simulation.spark_files import read_ids, write_commit, write_metadata, write_offsets
from integration.simulation.tasks import Families, Task, Version, copied, part
from integration.simulation.world import MINUTE_MS, Executor, Setting, World, Wrong, kinds_of
from millpond import layout
from millpond.errors import ErrorKind, MillpondError
from millpond.rescaling import rescale

Step = dict[str, Any]  # `id`, `do`, and what the step needs

# What a fault explains.
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
_OF_DAMAGE = {
    ErrorKind.CHANGELOG_DAMAGED,
    ErrorKind.MANIFEST_DAMAGED,
    ErrorKind.SST_DAMAGED,
    ErrorKind.FORMAT_DAMAGED,
    ErrorKind.FORMAT_TOO_NEW,
    ErrorKind.CHANGELOG_MISSING,
}
# Without ids nothing but a look at the file tells a store that another executor made its version anew.
_OF_OTHERS = {ErrorKind.CHANGELOG_REPLACED, ErrorKind.STORE_CLOSED}
_ATTEMPTS = 4


class Killed(Exception):
    """The executor of the task was killed."""


class Runner:
    """One run. `versions`: what is true of every batch in Spark's commit log."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.world, self.shape, self.choices = world, shape, world.choices
        self.setting: Setting = world.setting
        self.partitions = self.setting.partitions
        self.versions: dict[int, Version] = {0: Version(0, self.partitions, (None,) * self.partitions, {})}
        self.newest = 0
        self.floor = 1  # the oldest version that retention has left
        self.contents: dict[int, int] = {}  # batch -> what it does
        self.step = 0
        self.used: dict[str, int] = {}  # provider -> version that it committed last
        self.lingering: list[tuple[Executor, Task]] = []
        write_metadata(world.storage, str(world.checkpoint), shape, self.partitions)

    # ---- steps

    def carry_out(self, steps: list[Step]) -> None:
        """Run the steps, then see that all is well."""
        for step in steps:
            self.step = step["id"]
            self.choices.begin(self.step)
            self.world.log(f"-- {' '.join(f'{k}={v}' for k, v in step.items() if k != 'id')}")
            getattr(self, f"do_{step['do']}")(step)
        self.choices.begin(10**6)
        self.finish()

    def do_batch(self, step: Step) -> None:
        """A micro-batch."""
        base = self.newest
        content = self.contents.setdefault(base, self._content(step))
        write_offsets(self.world.storage, base, self.partitions)
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
        write_commit(self.world.storage, base, ids, self.setting.spark_format)
        self.newest = base + 1
        self.versions[self.newest] = Version(self.newest, self.partitions, tuple(ids), families)
        self.contents.pop(base)

    def _content(self, step: Step) -> int:
        return random.Random(f"{self.choices.seed}/{step['id']}/content").getrandbits(60)

    def _family_changes(self, chance: random.Random, families: Families) -> list[tuple[str, str]]:
        """Families that the batch drops and creates, in this order."""
        if not self.shape.has_families:
            return [("create", "default")] if not families else []
        changes = [("drop", n) for n in families if not n.startswith("$") and chance.random() < 0.08]
        dropped = {n for _, n in changes}
        wanted = 0.6 if not families else 0.25
        changes += [("create", n) for n in self.shape.kinds if n not in families and chance.random() < wanted]
        changes += [("create", n) for n in dropped if chance.random() < 0.4]
        if not families and not changes:
            changes = [("create", next(iter(self.shape.kinds)))]
        return changes

    def _task(
        self, step: Step, base: int, partition: int, content: int, changes: list[tuple[str, str]]
    ) -> tuple[str | None, Families] | None:
        """Attempts until one succeeds. The last ones meet no faults: then one must."""
        was = self.world.quiet
        try:
            for number in range(_ATTEMPTS + 2):
                if number >= _ATTEMPTS:
                    self.world.quiet = True
                    self.world.settle()
                index = step.get("executor", 0) ^ (1 if self.choices.pick(0.15 if number == 0 else 0.4) else 0)
                executor = self.world.executors[index]
                seed = f"{content}/{partition}" + (f"/{number}" if self.setting.spark_format == 2 else "")
                try:
                    return self._attempt(executor, base, partition, random.Random(seed), changes, step)
                except Killed:
                    continue
                except ProviderError as error:
                    self._judge(error, executor, last=number == _ATTEMPTS + 1)
            return None
        finally:
            self.world.quiet = was

    def _judge(self, error: ProviderError, executor: Executor, *, last: bool = False) -> None:
        """Raise Wrong unless a fault explains the error."""
        kinds = kinds_of(error)
        self.world.log(f"{error.args[0].splitlines()[0][:150]}")
        if not kinds:
            raise Wrong(f"an error of no kind: {error.causes[-1][0]}", error)
        kind = kinds[0]
        if last:
            raise Wrong(f"does not recover: {kind.value}", error)
        if kind in _OF_OTHERS and self.setting.spark_format == 1:
            return
        excused = _EXCUSED | _OF_DAMAGE if self.setting.bodies else _EXCUSED
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
        world, version = self.world, self.versions[base]
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
            if self.choices.pick(0.4):
                task.check_all("after opening")
            early = chance.randint(0, step.get("ops", 8))
            for _ in range(early):
                self._haunt(task)
                task.act(chance)
            for what, name in changes:
                if what == "drop":
                    task.drop(name)
                elif self.shape.has_families:
                    task.create(name)
                else:
                    task.rows[name] = {}
            for _ in range(step.get("ops", 8) - early):
                self._haunt(task)
                task.act(chance)
            if self.choices.pick(0.15):
                task.check_all("before the commit")
            ending = self.choices.pick(step.get("trouble", 0.15), 4)
            if ending == 1:
                self._killed(executor)
            if ending == 2:
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
        self.used[provider] = base + 1
        executor.disturbed = bool(world.threads)
        self._check_commit(task, done, base)
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
                if self.used.get(task.provider) == version.number:  # it knows the families
                    for name in [n for n in task.rows if self.choices.pick(0.3)]:
                        task.begin_walk(random.Random(self.step), name, store=read)
                world.of_executor(task.executor, "upgrade", p=task.provider, s=task.store, **{"from": read}, **where)
            except ProviderError:
                world.of_executor(task.executor, "release", s=read)
                raise
        else:
            world.of_executor(task.executor, "get_store", p=task.provider, s=task.store, **where)

    def _retain(self, asked: int) -> None:
        self.floor = max(self.floor, asked - self.setting.retain + 1)

    def _check_commit(self, task: Task, done: dict[str, Any], base: int) -> None:
        if done["version"] != base + 1 or (done["id"] is None) != (self.setting.spark_format == 1):
            raise Wrong("the commit answers another version", done)
        if self.setting.exact:
            keys = int(self.world.of_executor(task.executor, "metrics", s=task.store)["keys"])
            expected = sum(len(rows) for name, rows in task.rows.items() if not task.kinds[name].internal)
            if keys != expected:
                raise Wrong("key count is wrong", (keys, expected))

    def _haunt(self, task: Task) -> None:
        """A thread of an attempt that has ended goes on with its store."""
        for executor, old in self.lingering:
            if executor is task.executor and old.provider == task.provider and self.choices.pick(0.2):
                kinds = [old.kinds[n] for n in old.rows if n in old.kinds and old.kinds[n].candidates]
                if not kinds:
                    return
                kind = kinds[self.choices.pick(0.5, len(kinds)) - 1]
                key = kind.candidates[self.choices.pick(0.5, len(kind.candidates)) - 1]
                what = ("put", "remove", "commit", "abort", "put")[self.choices.pick(0.6, 4)]
                chance = random.Random(0)
                arguments = {"put": {"cf": kind.name, "k": key, "v": kind.value(chance, large=False)}}
                arguments["remove"] = {"cf": kind.name, "k": key}
                try:
                    self.world.of_executor(executor, what, s=old.store, **arguments.get(what, {}))
                    self.world.log(f"a thread of {old.store} that lingers: {what}")
                    if what == "commit":
                        raise Wrong("a thread that lingers commits", old.store)
                except ProviderError as error:
                    self.world.log(f"a thread of {old.store} that lingers: {what}: {error.causes[0][0]}")

    def restart(self) -> None:
        """The query ends and begins anew. Its providers are unloaded, or live on for a while."""
        self.world.run += 1
        for executor in self.world.executors:
            for key in list(executor.providers):
                if not self.choices.pick(0.3):
                    self._drop_provider(executor, key)
        self.world.log(f"run {self.world.run}")

    def _drop_provider(self, executor: Executor, key: tuple[int, int]) -> None:
        name = executor.providers[key]
        self.lingering = [(e, t) for e, t in self.lingering if t.provider != name]
        self.world.close_provider(executor, key)

    def do_back(self, step: Step) -> None:
        """Somebody deletes batches from Spark's logs, as the troubleshooting guide tells, and starts the query."""
        known = [v for v in self.restorable() if v < self.newest and self.versions[v].partitions == self.partitions]
        if not known:
            return
        target = known[-min(step["by"], len(known))]
        self.restart()
        logs = [layout.offsets_key, layout.commits_key]
        top = max([self.newest, *self.contents]) + 1
        self.world.storage.delete([key(b) for key in logs for b in range(target, top + 1)])
        self.newest = target
        self.versions = {n: v for n, v in self.versions.items() if n <= target}
        self.contents = {b: c for b, c in self.contents.items() if b < target}

    def do_clock(self, step: Step) -> None:
        """Time passes, or the clock is set."""
        self.world.now_ms += step["ms"]

    def do_kill(self, step: Step) -> None:
        """An executor is killed between batches."""
        with contextlib.suppress(Killed):
            self._killed(self.world.executors[step["executor"]])

    def do_unload(self, step: Step) -> None:
        """Spark unloads the providers of an executor."""
        executor = self.world.executors[step["executor"]]
        for key in list(executor.providers):
            self._drop_provider(executor, key)

    def do_maintain(self, step: Step) -> None:
        """Spark's maintenance of one provider, at once or in the background."""
        executor = self.world.executors[step["executor"]]
        providers = list(executor.providers.values())
        if not providers:
            return
        provider = providers[step["which"] % len(providers)]
        name = f"maintenance of {provider}"
        if any(n == name for n, _ in self.world.threads.values()):
            return
        commands = [{"do": what, "p": provider} for what in step["what"]]
        if step["background"]:
            self.world.spawn(executor, name, commands)
        else:
            for command in commands:
                self.world.of_executor(executor, **command)

    def do_compact(self, step: Step) -> None:
        """RocksDB rewrites its files."""
        for executor in self.world.executors:
            for provider in executor.providers.values():
                self.world.of_executor(executor, "compact", p=provider)

    def do_settle(self, step: Step) -> None:
        """What was begun ends."""
        self.world.settle()

    def do_read(self, step: Step) -> None:
        """A reader of an older version, on an executor that also works for the query."""
        if not self.restorable():
            return
        executor = self.world.executors[step["executor"]]
        version = self.versions[self.restorable()[-1 - step["by"] % len(self.restorable())]]
        if version.partitions != self.partitions:
            return
        partition = step["by"] % version.partitions
        try:
            self._read(executor, version, partition, self.world.provider(executor, partition, self.partitions))
        except ProviderError as error:
            self._judge(error, executor)

    def _read(self, executor: Executor, version: Version, partition: int, provider: str) -> None:
        world, rows = self.world, part(version, self.shape.kinds, partition, version.partitions)
        where = {"version": version.number, "id": version.ids[partition]}
        for last in (False, True):
            store = world.new_name("s")
            world.of_executor(executor, "get_read_store", p=provider, s=store, **where)
            try:
                if last:
                    kinds = self._kinds(partition, version.partitions)
                    Task(world, executor, provider, store, kinds, rows).check_all("a reader")
                elif self.shape.has_families:
                    for name in rows:
                        kind = self.shape.kinds[name]
                        schema = kind.schema
                        world.of_executor(
                            executor,
                            "register_cf",
                            s=store,
                            cf=name,
                            key=schema.key,
                            value=schema.value,
                            spec=dict(schema.spec),
                            multi=schema.multi,
                            internal=kind.internal,
                        )
            finally:
                world.of_executor(executor, "release", s=store)

    def restorable(self) -> list[int]:
        """The versions that must be restorable now, ascending."""
        return [v for v in sorted(self.versions) if v >= max(self.floor, 1)]

    def do_audit(self, step: Step) -> None:
        """Another machine restores what was committed."""
        versions = self.restorable()
        if not versions:
            return
        version = self.versions[versions[-1 - step["by"] % len(versions)]]
        self.audit(version)

    def audit(self, version: Version) -> None:
        """Another machine reads all of a version."""
        was, self.world.quiet = self.world.quiet, True
        stranger = self.world.new_executor(9)
        for partition in range(version.partitions):
            run = -self.world._names
            provider = self.world.provider(stranger, partition, version.partitions, run=run)
            try:
                self._read(stranger, version, partition, provider)
            except ProviderError as error:
                kinds = kinds_of(error)
                kind = kinds[0].value if kinds else error.causes[-1][0]
                raise Wrong(f"a committed version cannot be restored: {kind}", error) from error
            self.world.close_provider(stranger, (run, partition))
        self.world.quiet = was

    def do_rescale(self, step: Step) -> None:
        """The query is stopped and rescaled."""
        if self.newest == 0 or step["partitions"] == self.partitions:
            return
        self.restart()
        if not self.choices.pick(0.2):
            for executor in self.world.executors:
                for key in list(executor.providers):
                    self._drop_provider(executor, key)
        try:
            report = rescale(self.world.storage, "it", step["partitions"], skip_uncommitted=True)
        except MillpondError as error:
            self.world.log(f"rescale: {error.kind.value}")
            if error.kind in (ErrorKind.UNSUPPORTED, ErrorKind.STORE_UNSCALABLE, ErrorKind.PARTITIONS_INVALID):
                return
            raise Wrong(f"the rescale fails: {error.kind.value}", error) from error
        before = self.versions[self.newest]
        self.newest, self.partitions = report.batch + 1, report.partitions
        ids: tuple[str | None, ...] = (None,) * self.partitions
        if self.setting.spark_format == 2:
            ids = read_ids(self.world.storage, report.batch)
        self.versions[self.newest] = Version(self.newest, self.partitions, ids, copied(before.families))
        self.contents.clear()

    # ---- the end

    def finish(self) -> None:
        """The faults stop: the store must work again, hold what was committed, and grow no further."""
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

    def _maintain_all(self) -> None:
        for executor in self.world.executors:
            for provider in list(executor.providers.values()):
                self.world.of_executor(executor, "maintenance", p=provider)

    def _with_open_stores(self, work: Callable[[], None]) -> None:
        """While the next batch has begun: only then is a version proven that was written down before its commit."""
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
            if number >= 2:  # a snapshot counts once enough versions are above it
                self.do_batch({"id": 10**6 + number, "do": "batch", "ops": 1, "trouble": 0.0})
        raise Wrong(f"files are left: {left.split()[1]}", left)

    def _too_many(self) -> str:
        found: dict[str, list[str]] = {}
        for info in self.world.storage.list(f"{layout.STATE_DIR}/0/"):
            parsed = layout.parse_key(info.key)
            if parsed is not None and parsed.file is not None and parsed.store.partition < self.partitions:
                found.setdefault(f"{parsed.store.partition} {type(parsed.file).__name__}", []).append(info.key)
        most = 2 * self.setting.retain + 2 * self.setting.deltas + 4
        for what, keys in found.items():
            bound = 0 if what.endswith("StagingFile") else most * (12 if what.endswith("SstFile") else 1)
            if len(keys) > bound:
                return f"{what}: {len(keys)} > {bound}: {keys[:20]}"
        return ""


def run(world: World, shape: Shape, steps: list[Step]) -> None:
    """Carry out a schedule. Raises: Wrong."""
    Runner(world, shape).carry_out(steps)
