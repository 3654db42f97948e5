"""What happens beside the query's batches.

Maintenance, readers, second attempts of tasks, kills, clocks, and people who run commands.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import Any

from integration.harness import ProviderError
from integration.simulation.agents import AgentDeath
from integration.simulation.director import Executor, Wrong, kinds_of
from integration.simulation.families import Kind
from integration.simulation.jvm import Message
from integration.simulation.query import Killed, Query, Step
from integration.simulation.spark_files import newest_commit, read_ids
from integration.simulation.tasks import (
    Families,
    Task,
    Version,
    copied,
    family_arguments,
    part,
    same,
)
from millpond import savepoint
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.operations.rescale import rescale
from millpond.store.sst_cache import cache_directory
from millpond.testing.faults import Fault, FaultyStorage, Operation


class Actors(Query):
    """The steps of a schedule. Method `do_<name>` carries out step `<name>`."""

    def do_back(self, step: Step) -> None:
        """A user deletes batches from Spark's logs, as the troubleshooting guide says.

        Then the user starts the query.
        """
        known = [
            v
            for v in self.restorable()
            if v < self.newest and self.versions[v].partitions == self.partitions
        ]
        if not known:
            return
        target = known[-min(step["by"], len(known))]
        self.restart(lives_on=0.7)
        logs = [spark_names.offsets_key, spark_names.commits_key]
        top = max([self.newest, *self.contents]) + 1
        self.world.storage.delete([key(b) for key in logs for b in range(target, top + 1)])
        self.newest = target
        self.versions = {n: v for n, v in self.versions.items() if n <= target}
        self.contents = {b: c for b, c in self.contents.items() if b < target}

    def do_ghost(self, step: Step) -> None:
        """A provider of an older run does its maintenance late. Spark did not unload it."""
        old = [
            (e, name)
            for e in self.world.executors
            for (run, _), name in e.providers.items()
            if run != self.world.run
        ]
        if old:
            self.world.now_ms += step["ms"]
            executor, provider = old[step["which"] % len(old)]
            self.world.of_executor(executor, "cleanup", p=provider)

    def do_clock(self, step: Step) -> None:
        """Time passes, or somebody sets the clock."""
        self.world.now_ms += step["ms"]

    def do_kill(self, step: Step) -> None:
        """Something kills an executor between batches."""
        with contextlib.suppress(Killed):
            self._killed(self.world.executors[step["executor"]])

    def do_unload(self, step: Step) -> None:
        """Spark unloads the providers of an executor."""
        executor = self.world.executors[step["executor"]]
        for key in list(executor.providers):
            self._drop_provider(executor, key)

    def do_maintain(self, step: Step) -> None:
        """Spark maintains one provider, at once or in the background."""
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
                try:
                    self.world.of_executor(executor, "compact", p=provider)
                except ProviderError as error:
                    self._judge(error, executor)

    def do_settle(self, step: Step) -> None:
        """All background work ends."""
        self.world.settle()

    def do_read(self, step: Step) -> None:
        """A reader reads an older version, on an executor that also works for the query."""
        if not self.restorable():
            return
        executor = self.world.executors[step["executor"]]
        version = self.versions[self.restorable()[-1 - step["by"] % len(self.restorable())]]
        if version.partitions != self.partitions:
            return
        partition = step["by"] % version.partitions
        try:
            self._read(
                executor,
                version,
                partition,
                self.world.provider(executor, partition, self.partitions),
            )
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
                        arguments = family_arguments(self.shape.kinds[name])
                        world.of_executor(executor, "register_cf", s=store, **arguments)
            finally:
                world.of_executor(executor, "release", s=store)

    def do_audit(self, step: Step) -> None:
        """Another machine restores the committed state."""
        versions = self.restorable()
        if not versions:
            return
        version = self.versions[versions[-1 - step["by"] % len(versions)]]
        self.audit(version)

    def audit(self, version: Version, root: Path | None = None) -> None:
        """Another machine reads all of a version.

        root: the fork to read; None: the query's own Spark checkpoint.
        """
        was, self.world.quiet = self.world.quiet, True
        stranger = self.world.new_executor(9, root)
        for partition in range(version.partitions):
            run = -self.world._names
            provider = self.world.provider(
                stranger, partition, version.partitions, run=run, root=root
            )
            try:
                self._read(stranger, version, partition, provider)
            except ProviderError as error:
                kinds = kinds_of(error)
                kind = kinds[0].value if kinds else error.causes[-1][0]
                raise Wrong(f"a committed version cannot be restored: {kind}", error) from error
            self.world.close_provider(stranger, (run, partition))
        self.world.quiet = was

    def do_rescale(self, step: Step) -> None:
        """A user stops the query and rescales it."""
        if self.newest == 0 or step["partitions"] == self.partitions:
            return
        self.restart()
        if not self.choices.pick(0.2):
            for executor in self.world.executors:
                for key in list(executor.providers):
                    self._drop_provider(executor, key)
        before = self.versions[self.newest]
        killed = self._rescale_killed(step["partitions"])
        try:
            batch = rescale(
                self.world.storage, "it", step["partitions"], skip_uncommitted=True
            ).batch
        except MillpondError as error:
            self.world.log(f"rescale: {error.kind.value}")
            if error.kind in (ErrorKind.UNSUPPORTED, ErrorKind.STORE_UNSCALABLE):
                return
            if error.kind is not ErrorKind.PARTITIONS_INVALID:
                raise Wrong(f"the rescale fails: {error.kind.value}", error) from error
            batch = newest_commit(self.world.storage)
            if not killed or batch < self.newest:
                return
        self.newest, self.partitions = batch + 1, step["partitions"]
        ids: tuple[str | None, ...] = (None,) * self.partitions
        if self.setting.spark_format == 2:
            ids = read_ids(self.world.storage, batch)
        self.versions[self.newest] = Version(
            self.newest, self.partitions, ids, copied(before.families)
        )
        self.contents.clear()

    def _rescale_killed(self, partitions: int) -> bool:
        """Rescale. Sometimes kill the command before a storage operation, and run it again."""
        left = self.choices.pick(0.4, 60)
        if not left:
            return False

        def choose(operation: Operation) -> Fault | None:
            nonlocal left
            left -= 1
            if not left:
                raise AgentDeath
            return None

        try:
            rescale(
                FaultyStorage(self.world.storage, choose), "it", partitions, skip_uncommitted=True
            )
        except AgentDeath:
            self.world.log("the rescale is killed")
        except MillpondError as error:
            self.world.log(f"rescale: {error.kind.value}")
        return True

    def do_tear(self, step: Step) -> None:
        """Truncate the files in an executor's cache, as a power cut may.

        Open stores keep their files: they hold hard links to them.
        """
        parent = os.path.dirname(self.world.executors[step["executor"]].local_root)
        for entry in sorted(Path(cache_directory(parent)).glob("*.sst")):
            data = entry.read_bytes()
            entry.unlink()
            entry.write_bytes(
                data[: len(data) // 2] if step["cut"] else bytes([data[0] ^ 1]) + data[1:]
            )

    def do_late(self, step: Step) -> None:
        """A second attempt of the newest committed batch ends long after the batch.

        In Spark checkpoint format 1 it replaces the files of the first attempt. Both attempts write
        the same rows.
        """
        partition = step["which"] % self.partitions
        done = self.written.get(partition)
        if self.setting.spark_format != 1 or done is None or done[0] not in self.restorable():
            return
        base, commands = done
        version, executor = self.versions[base], self.world.executors[step["executor"]]
        if version.partitions != self.partitions:
            return
        provider = self.world.provider(executor, partition, self.partitions)
        store = self.world.new_name("s")
        name = f"zombie in {provider}"
        if any(n == name for n, _ in self.world.threads.values()):
            return
        first: dict[str, Any] = {"do": "get_store", "p": provider, "s": store, "version": base}
        batch = [
            first,
            *({**command, "s": store} for command in commands),
            {"do": "commit", "s": store},
        ]
        batch.append({"do": "end_session", "s": store})
        self._retain(base)
        executor.sessions.setdefault(provider, []).append(store)
        thread = self.world.spawn(executor, name, batch)
        self.world.on_done[thread] = lambda message: self._check_zombie(
            message, batch, {}, {}, executor
        )
        self.late.add(thread)

    def do_zombie(self, step: Step) -> None:
        """A second attempt of the next batch's task starts on another executor.

        It runs beside the steps that follow.
        """
        if not self.newest:
            return
        version, partition = self.versions[self.newest], step["which"] % self.partitions
        executor = self.world.executors[step["executor"]]
        since = self.since()
        provider = self.world.provider(executor, partition, self.partitions)
        name = f"zombie in {provider}"
        if any(n == name for n, _ in self.world.threads.values()):
            return
        rows = part(version, self.shape.kinds, partition, self.partitions)
        store = self.world.new_name("s")
        where = {"version": version.number, "id": version.ids[partition]}
        commands: list[dict[str, Any]] = [{"do": "get_store", "p": provider, "s": store, **where}]
        if self.shape.has_families:
            commands += [
                {"do": "create_cf", "s": store, **family_arguments(self.shape.kinds[n])}
                for n in rows
            ]
        kinds = self._kinds(partition, self.partitions)
        commands += [
            {"do": "scan", "s": store, "cf": n, "multi": kinds[n].schema.multi} for n in rows
        ]
        chance = random.Random(f"{self.choices.seed}/{step['id']}/zombie")
        for _ in range(step["ops"]):
            kind = kinds[chance.choice(list(rows))] if rows else None
            if kind is not None and kind.candidates:
                put = {"do": "put", "v": kind.value(chance, large=False)}
                what = put if chance.random() < 0.7 else {"do": "remove"}
                commands.append(
                    {"s": store, "cf": kind.name, "k": chance.choice(kind.candidates), **what}
                )
        # Without ids, the last attempt to publish a version wins. That is right only if all
        # attempts of a batch write the same rows. This attempt writes other rows, so it must not
        # commit.
        commits = self.setting.spark_format == 2 and step["commits"]
        commands.append({"do": "commit" if commits else "abort", "s": store})
        # A failed commit does not give the store back. `end_session` does.
        commands.append({"do": "end_session", "s": store})
        self._retain(self.newest)
        executor.sessions.setdefault(provider, []).append(store)
        thread = self.world.spawn(executor, name, commands)

        def check(message: Message) -> None:
            # Without ids in file names, a query that goes back replaces the files that this attempt
            # reads. An erasure replaces some, too.
            replaced = (
                self.setting.spark_format == 1 and self.versions.get(version.number) is not version
            )
            replaced = replaced or self.erasing or self.since() != since
            self._check_zombie(message, commands, kinds, None if replaced else rows, executor)

        self.world.on_done[thread] = check

    def _check_zombie(
        self,
        message: Message,
        commands: list[dict[str, Any]],
        kinds: dict[str, Kind],
        rows: Families | None,
        executor: Executor,
    ) -> None:
        """Check that a second attempt read the right rows.

        rows: the right rows; None: the simulation does not know them.
        """
        store = commands[0]["s"]
        sessions = executor.sessions.get(commands[0]["p"], [])
        if store in sessions:
            sessions.remove(store)
        for command, result in zip(commands, message.get("results", ()), strict=False):
            if "error" in result:
                error = ProviderError(command, result["error"])
                self.world.log(f"a second attempt: {command['do']}: {error.causes[0][0]}")
                if (
                    command["do"] in ("get_store", "end_session")
                    or kinds_of(error)
                    or error.causes[0][1].startswith("store in ")
                ):
                    # The attempt came too late, or a fault disturbed it, or Spark unloaded its
                    # provider and the driver forgot the store.
                    return
                raise Wrong(f"an error of no kind: {error.causes[-1][0]}", error)
            if command["do"] == "scan" and rows is not None:
                kind = kinds[command["cf"]]
                expected = rows[kind.name]
                each = kind.schema.multi
                same(
                    kind,
                    result["ok"],
                    expected,
                    each=each,
                    ordered=kind.ranged,
                    what="a second attempt",
                )

    def do_litter(self, step: Step) -> None:
        """Leave what a killed process leaves: unfinished files beside the state."""
        for partition in range(self.partitions):
            name = f"{layout.STAGING_PREFIX}{self.step:032x}"
            self.world.storage.put_bytes(f"{layout.STATE_DIR}/0/{partition}/{name}", b"cut off")

    def do_lose(self, step: Step) -> None:
        """Somebody empties the local folders of a running executor."""
        executor = self.world.executors[step["executor"]]
        for provider in executor.providers.values():
            self.world.of_executor(executor, "lose_files", p=provider)
        executor.emptied = True

    def do_savepoint(self, step: Step) -> None:
        """A user makes a savepoint, perhaps while the query runs. Another query goes on from it."""
        if not self.newest or self.setting.storage != "local":
            return
        number = self.restorable()[-1 - step["by"] % len(self.restorable())]
        version, place = self.versions[number], self.world.dir / self.world.new_name("savepoint")
        if version.partitions != self.partitions:
            return
        fork = self.world.dir / self.world.new_name("fork")
        try:
            savepoint.create(str(self.world.checkpoint), str(place), batch=number - 1)
            savepoint.restore(str(place), str(fork))
        except MillpondError as error:
            raise Wrong(f"a savepoint fails: {error.kind.value}", error) from error
        self.audit(version, root=fork)
        for path in (place, fork):
            shutil.rmtree(path)
