"""A user erases a key.

An erasure stands still before each operation of the storage. The query, its executors and the other
commands go on there. A kill may come there as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import millpond
from integration.harness import ProviderError, Row
from integration.simulation.actors import Actors
from integration.simulation.commands import Command
from integration.simulation.director import Executor, Wrong, kinds_of
from integration.simulation.families import Kind
from integration.simulation.query import OF_DAMAGE, Refused, Step
from integration.simulation.tasks import Families, Rows, Task, Version
from integration.store_model import canon
from millpond import savepoint
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.format.format_file import decode_format
from millpond.format.manifest import decode_manifest
from millpond.operations.erase.scan import rocksdb_texts
from millpond.storage import LocalStorage, Storage
from millpond.store.collection.announcements import erasures

# What a task meets whose files an erasure replaces: Spark tries again, and that is refused.
_OVERTAKEN = OF_DAMAGE | {
    ErrorKind.ERASE_UNFINISHED,
    ErrorKind.OBJECT_NOT_FOUND,
    ErrorKind.SST_MISSING,
    ErrorKind.VERSION_EXPIRED,
    ErrorKind.CHANGELOG_REPLACED,
}
_MOST_RUNS = 3  # of an erasure that nobody kills
_MOST_TURNS = 1_000_000


@dataclass
class Erasure:
    """An erasure of a key, over all runs of its command.

    text: of the key. newest: the version that is the newest when this run begins. first: nothing of
    an earlier run is left.
    """

    text: str
    paths: tuple[str, ...]
    newest: int = 0
    activity: int = 0
    alone: bool = True  # nothing goes on in the background
    first: bool = True
    is_marked: bool = False
    command: Command | None = None


@dataclass(frozen=True)
class Saved:
    """A savepoint: its place, and the version that is in it."""

    path: Path
    form: str
    version: Version


class Erasing(Actors):
    """The steps with erasures, and those that go on beside one."""

    erasure: Erasure | None = None  # until one run of it ends well
    erased: tuple[str, ...] = ()  # the texts of all erasures that have begun
    stopped = False  # the query has to be started anew
    in_batch = False
    planned = 0  # the newest version that the last erasure knows of
    activity = 0  # how many steps so far may have made files, or deleted some
    saved: tuple[Saved, ...] = ()
    marked = False  # the executor meets the mark in this attempt: it did not know the run before
    known: frozenset[tuple[str, int]] = frozenset()  # executors that have opened stores of a run
    announced: frozenset[str] = frozenset()  # the erasures that had begun before the batch

    # ---- the oracle

    def holds(self, kind: Kind, key: Row, text: str) -> bool:
        """Return whether a row has the key to erase."""
        return bool(kind.hashed(key)[0] == text)

    def without(self, families: Families, text: str) -> Families:
        """Return the rows that are left once the key is erased."""
        return {
            name: {
                at: row
                for at, row in rows.items()
                if not self.holds(self.shape.kinds[name], row[0], text)
            }
            for name, rows in families.items()
        }

    def forms(self, families: Families, since: int) -> list[Families]:
        """Return what a reader may find that began when there were `since` erasures."""
        found = [families]
        for text in self.erased[since:]:
            found.append(self.without(found[-1], text))
        return found

    # ---- steps

    def do_erase(self, step: Step) -> None:
        """A user stops the query and erases a key. What follows goes on beside the erasure."""
        if not self.newest:
            return
        if self.erasure is None or self.erasure.command is not None:
            self.end_erasure()
        self.restart(step["lives_on"])
        if self.erasure is None:
            paths = [str(self.world.checkpoint)]
            if step["saved"]:
                paths += self._save(step["saved"])
            self.erasure = Erasure(self._text(step), tuple(paths))
        self._begin(self.erasure)
        self.turns(step["turns"])

    def do_turns(self, step: Step) -> None:
        """The commands go on by turns."""
        self.turns(step["turns"])

    def before_step(self, step: Step) -> None:
        """Prepare a step: bring to an end what cannot go on beside it."""
        self.tidy()
        alone = ("rescale", "back", "audit", "savepoint", "read", "late")
        if step["do"] in alone:
            self.end_erasure()
        if step["do"] not in ("erase", "look", "turns", "clock"):
            self.activity += 1

    def do_batch(self, step: Step) -> None:
        """Run a micro-batch, beside an erasure or after a killed one, too."""
        erasure = self.erasure
        refused = (
            erasure is not None
            and erasure.is_marked
            and erasure.command is None
            and not any(
                run == self.world.run for e in self.world.executors for run, _ in e.providers
            )
        )
        was = self.newest
        self.announced = erasures(self.world.storage)
        self.in_batch = True
        try:
            super().do_batch(step)
        except Refused:
            self.world.log("the query is refused")
            self.restart(0.5)
        finally:
            self.in_batch = False
        self.tidy()
        if refused and self.newest > was:
            raise Wrong("a query runs while a key is half erased")

    def end_erasure(self) -> None:
        """Let all commands end. An erasure that was killed is run again, until it ends well."""
        self._finish_commands()
        for _ in range(_MOST_RUNS):
            if self.erasure is None:
                return
            self.restart(0.3)
            self._begin(self.erasure)
            self._finish_commands()
        if self.erasure is not None:
            raise Wrong("an erasure does not end")

    def end_all(self) -> None:
        """Bring all commands to an end. Check what was saved."""
        self.tidy()
        self.end_erasure()
        for saved in self.saved:
            self._check_saved(saved)

    # ---- turns

    def turns(self, count: int) -> None:
        for _ in range(count):
            if not self.world.commands:
                break
            self.world.beside(often=0.9)
        self.tidy()

    def _finish_commands(self) -> None:
        for command in [*self.world.commands]:
            command.go(_MOST_TURNS)
        self.tidy()

    def tidy(self) -> None:
        """Judge the commands that have ended."""
        world = self.world
        while over := [command for command in world.commands if command.done]:
            world.commands = [command for command in world.commands if not command.done]
            for command in over:
                world.log(f"{command.name}: {_what(command)}")
                command.judge()
        if self.stopped and not self.in_batch:
            self.restart(0.5)

    def restart(self, lives_on: float = 0.3) -> None:
        """End the query and begin it anew."""
        self.stopped = False
        super().restart(lives_on)

    @property
    def erasing(self) -> bool:
        return self.erasure is not None

    def since(self) -> int:
        return len(self.erased) - self.erasing

    def goes_on(self) -> bool:
        """Let commands go on. Return whether the query does.

        A batch that was begun before an erasure wrote, and is committed after it has ended, is not
        simulated.
        """
        self.world.beside()
        self.tidy()
        has_ended = erasures(self.world.storage) != self.announced and not self._is_marked()
        return not self.stopped and not has_ended

    def opened(self, task: Task, since: int) -> None:
        """Note which rows a task found that opened its store beside an erasure."""
        self.tidy()
        self.known |= {(task.executor.name, self.world.run)}
        if since == len(self.erased):
            return
        task.walks.clear()  # nobody knows which rows they yield
        found = {name: self._scanned(task, name) for name in task.rows}
        forms = self.forms(dict(task.rows), since)
        if self.newest > self.planned or not self.marked:
            # A batch that the erasure does not know of. It has rows of the key or not. An executor
            # that did not meet the mark opens a store while it is written anew: that has some.
            left = self.forms(found, since)[-1]
            if left == forms[-1] and found not in forms:
                forms, self.counts = [found], False
        for form in forms:
            if found == form:
                task.rows.clear()
                task.rows.update(form)
                return
        raise Wrong("a task beside an erasure finds a mixture", (found, task.rows))

    def _scanned(self, task: Task, name: str) -> Rows:
        kind = self.shape.kinds[name]
        found: Rows = {}
        for key, value in task.do("scan", cf=name, multi=kind.schema.multi):
            found.setdefault(canon(key), (key, []))[1].append(value)
        return found

    def before_attempt(self, executor: Executor) -> None:
        self.tidy()
        if self.stopped:
            raise Refused
        known = (executor.name, self.world.run) in self.known
        self.marked = not known and self._is_marked()

    def _judge(self, error: ProviderError, executor: Executor, *, last: bool = False) -> None:
        self.tidy()
        kinds = kinds_of(error)
        # An erasure deletes what is being written when it begins.
        overtaken = _OVERTAKEN | {ErrorKind.STORAGE_UNAVAILABLE}
        if kinds and kinds[0] in overtaken and (self.erasure is not None or self.stopped):
            self.world.log(f"refused: {kinds[0].value}")
            raise Refused
        super()._judge(error, executor, last=last)

    # ---- erasures

    def _text(self, step: Step) -> str:
        texts = sorted(
            {
                kind.hashed(key)[0]
                for name, rows in self.versions[self.newest].families.items()
                for kind in [self.shape.kinds[name]]
                for key, _ in rows.values()
                if kind.hashed(key)[0] is not None
            }
        )
        some = sorted({k.hashed(c)[0] for k in self.shape.kinds.values() for c in k.candidates})
        chosen = texts if texts and step["which"] % 8 else some
        return str(chosen[step["which"] % len(chosen)])

    def _begin(self, erasure: Erasure) -> None:
        self.planned = erasure.newest = self.newest
        erasure.activity = self.activity
        erasure.alone = not self.world.threads
        self.erased = (*self.erased, erasure.text)
        column = self.shape.erased_by
        self.world.log(f"an erasure of {erasure.text}")

        def work() -> Any:
            return millpond.erase(erasure.paths, key={column: erasure.text})

        places = {str(self.world.checkpoint): self.world.storage}
        places |= {path: storage_at(path) for path in erasure.paths[1:]}
        command = Command("an erasure", places, work)
        command.judge = lambda: self._judge_erasure(erasure, command)
        command.mortal = True
        erasure.command = command
        self.world.commands.append(command)

    def _judge_erasure(self, erasure: Erasure, command: Command) -> None:
        erasure.command = None
        was_marked, erasure.is_marked = erasure.is_marked, self._is_marked()
        first, erasure.first = erasure.first, False
        has_run_on = self.newest > erasure.newest
        if command.killed:
            return
        if command.failure is not None:
            raise Wrong(f"an erasure fails: {type(command.failure).__name__}", command.failure)
        error = command.error
        if error is not None:
            # Tasks may have written the key although their batch is not committed.
            seen = has_run_on or erasure.activity != self.activity or not erasure.alone
            excused = {ErrorKind.QUERY_RUNNING} if seen else set()
            if not was_marked and not erasure.is_marked and erasure.activity != self.activity:
                excused |= _OVERTAKEN  # the query removed files while it looked
            if error.kind not in excused:
                raise Wrong(f"an erasure fails: {error.kind.value}", error) from error
            if was_marked and not erasure.is_marked:
                raise Wrong("an erasure that is refused takes the mark away")
            self.stopped = True  # as the command says
            return
        self.erasure = None
        self.stopped = True
        if erasure.is_marked:
            raise Wrong("an erasure that has ended leaves its mark")
        self._check_report(erasure, command.result, first=first and not has_run_on)
        for number, version in self.versions.items():
            if number <= erasure.newest:
                families = self.without(version.families, erasure.text)
                self.versions[number] = replace(version, families=families)
        self.saved = tuple(
            replace(
                one,
                version=replace(
                    one.version, families=self.without(one.version.families, erasure.text)
                ),
            )
            if str(one.path) in erasure.paths
            else one
            for one in self.saved
        )
        if has_run_on:
            self.counts = False  # the batch counted rows that its base has not any more
            for number in self.restorable():
                if number > erasure.newest:
                    self._adopt(erasure.text, number)
            return
        # What a task published while the key was erased, nobody reads: its batch is not committed.
        newest = None if erasure.alone and erasure.activity == self.activity else self.newest
        if not self.world.threads and not self.in_batch:
            self._check_bytes(self.world.storage, erasure.text, newest)
        for path in erasure.paths[1:]:
            self._check_bytes(storage_at(path), erasure.text)

    def _adopt(self, text: str, number: int) -> None:
        """Take over which rows of an erased key a version has that nobody saw coming.

        Its batch was committed while the erasure ended. No other row may be lost.
        """
        version = self.versions[number]
        root, families = str(self.world.checkpoint), self.without(version.families, text)
        for name in families:
            kind = self.shape.kinds[name]
            found = self._at_once(
                "a look at a batch that was committed beside an erasure",
                partial(read_family, root, number - 1, name),
            )
            for key, value in found:
                if self.holds(kind, key, text):
                    families[name].setdefault(canon(key), (key, []))[1].append(value)
        self.versions[number] = replace(version, families=families)

    def _is_marked(self) -> bool:
        try:
            decode_format(self.world.storage.read(layout.FORMAT_KEY))
        except millpond.MillpondError as error:
            return error.kind is ErrorKind.ERASE_UNFINISHED
        return False

    def _check_report(self, erasure: Erasure, report: Any, *, first: bool) -> None:
        place = report.places[0]
        missing = {number - 1 for number in self.restorable()} - {*place.batches}
        if place.proof is None or (first and missing):
            raise Wrong("an erasure leaves out batches", (missing, place))
        version = self.versions[erasure.newest]
        rows = sum(
            self.holds(kind, key, erasure.text)
            for name, rows in version.families.items()
            for kind in [self.shape.kinds[name]]
            if not kind.internal
            for key, _ in rows.values()
        )
        if first and place.rows != rows:
            raise Wrong("an erasure counts wrong", (place.rows, rows))
        if first and place.entries < rows:
            raise Wrong("an erasure counts too few entries", (place.entries, rows))

    def _check_bytes(self, storage: Storage, text: str, newest: int | None = None) -> None:
        for info in storage.list(layout.STATE_PREFIX):
            parsed = layout.parse_key(info.key)
            if parsed is None or isinstance(parsed.file, layout.StagingFile):
                continue
            if (
                newest is not None
                and isinstance(parsed.file, layout.ChangelogFile)
                and parsed.file.version.version > newest
            ):
                continue
            data = storage.read(info.key)
            if isinstance(parsed.file, layout.ManifestFile):
                data += b"".join(rocksdb_texts(decode_manifest(data)))
            if text.encode() in data:
                raise Wrong(f"an erased key is left: {type(parsed.file).__name__}", info.key)

    # ---- savepoints

    def _save(self, form: str) -> list[str]:
        """Make a savepoint of the newest version. Return its path."""
        version = self.versions[self.newest]
        path = self.world.dir / self.world.new_name("saved")
        root = str(self.world.checkpoint)

        def work() -> Any:
            return savepoint.create(root, str(path), format=form)

        self._at_once("a savepoint", work)
        self.saved = (*self.saved, Saved(path, form, version))
        return [str(path)]

    def _check_saved(self, saved: Saved) -> None:
        for name, kind in self.shape.kinds.items():
            rows = saved.version.families.get(name, {})
            if not kind.internal and grouped(read_family(str(saved.path), None, name)) != shown(
                rows
            ):
                raise Wrong("a savepoint has wrong rows", (name, saved.path.name))

    def _at_once(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a command that nothing interrupts. It must not fail."""
        command = Command(name, {str(self.world.checkpoint): self.world.storage}, work)
        command.go(_MOST_TURNS)
        error = command.error or command.failure
        if error is not None:
            raise Wrong(f"{name} fails: {_what(command)}", error) from error
        return command.result


def _what(command: Command) -> str:
    if command.killed:
        return "killed"
    error = command.error
    if error is not None:
        return error.kind.value
    return "done" if command.failure is None else type(command.failure).__name__


def storage_at(path: str) -> Storage:
    """Return the storage of a savepoint."""
    return LocalStorage(path, fsync=False)


def read_family(path: str, batch: int | None, name: str) -> list[tuple[Row, Row]]:
    """Return the rows of a column family by Millpond's API."""
    table = millpond.read_state(path, batch=batch, column_family=name)
    return [(row_of(one["key"]), row_of(one["value"])) for one in table.to_pylist()]


def row_of(value: Any) -> Any:
    """Return a struct as the rows of the simulation have it: a list of its columns."""
    return [row_of(one) for one in value.values()] if isinstance(value, dict) else value


def grouped(pairs: list[tuple[Row, Row]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for key, value in pairs:
        found.setdefault(canon(key), []).append(value)
    return found


def shown(rows: Rows) -> dict[str, list[Row]]:
    return {at: values for at, (_, values) in rows.items()}
