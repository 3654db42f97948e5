"""Others read the state beside an erasure. They find that of before, or of afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import millpond
from integration.harness import Row
from integration.simulation.commands import Command
from integration.simulation.director import Wrong
from integration.simulation.erasing import Erasing, grouped, read_family, row_of, shown
from integration.simulation.families import Kind
from integration.simulation.query import Step
from integration.simulation.tasks import Families, Rows, Version
from integration.store_model import canon
from millpond import checkpoint, savepoint, state
from millpond.errors import ErrorKind


class Looking(Erasing):
    """The steps with readers."""

    def do_look(self, step: Step) -> None:
        """A user reads the state. What follows goes on beside that."""
        if self.newest:
            version = self.versions[self.restorable()[-1 - step["by"] % len(self.restorable())]]
            if version.partitions == self.partitions:
                self._look(step, version)
                self.turns(step["turns"])

    def _look(self, step: Step, version: Version) -> None:
        root, batch = str(self.world.checkpoint), version.number - 1
        names = [n for n, kind in self.shape.kinds.items() if not kind.internal]
        name = names[step["which"] % len(names)]
        kind = self.shape.kinds[name]
        key = kind.candidates[step["which"] % len(kind.candidates)]
        what = step["what"]
        new = self.world.dir / self.world.new_name("new")

        def work() -> Any:
            if what == "read":
                return read_family(root, batch, name)
            if what == "get":
                with millpond.lookup(root, column_family=name, batch=batch) as found:
                    return [found.get(named(kind, key)) for _ in range(2)]
            if what == "history":
                return state.history(root, column_family=name, key=named(kind, key))
            if what == "blame":
                return state.blame(root, column_family=name, batch=batch).to_pylist()
            if what == "verify":
                return checkpoint.verify(root)
            if what == "list":
                return state.list(root, batch=batch)
            if what == "fork":
                return millpond.fork(root, str(new), batch=batch)
            form = "canonical" if what == "tables" else "native"
            return savepoint.create(root, str(new), batch=batch, format=form)

        since = self.since()
        command = Command(f"{what} of batch {batch}", {root: self.world.storage}, work)
        seen = (since, self.activity, version, dict(self.versions))

        def judge() -> None:
            try:
                self._judge_look(what, command, seen, name, key, new)
            finally:
                shutil.rmtree(new, ignore_errors=True)

        command.judge = judge
        self.world.commands.append(command)

    def _judge_look(
        self,
        what: str,
        command: Command,
        seen: tuple[int, int, Version, dict[int, Version]],
        name: str,
        key: Row,
        new: Path,
    ) -> None:
        since, activity, version, versions = seen
        kind = self.shape.kinds[name]
        if command.killed:
            return
        if command.failure is not None:
            raise Wrong(f"{what} fails: {type(command.failure).__name__}", command.failure)
        moved = activity != self.activity or bool(self.world.threads) or self.in_batch
        if command.error is not None:
            error = command.error
            overtaken = since != len(self.erased)
            if moved or (overtaken and error.kind is ErrorKind.ERASE_UNFINISHED):
                return
            raise Wrong(f"{what} fails: {error.kind.value}", error) from error
        forms = [*self.forms(version.families, since), self._adopted(version).families]
        rows = [form.get(name, {}) for form in forms]
        if what == "read":
            _one_of(what, grouped(command.result), [shown(form) for form in rows])
        elif what == "get":
            wanted = [_values_of(rows_, key) for rows_ in rows]
            for found in command.result:
                _one_of(what, [row_of(one["value"]) for one in found], wanted)
        elif what == "blame":
            found = sorted({canon(row_of(one["key"])) for one in command.result})
            _one_of(what, found, [sorted(form) for form in rows])
        elif what == "list":
            counted = {f.column_family: f.rows for f in command.result.families}
            kinds = [n for n, k in self.shape.kinds.items() if not k.internal]
            found = {n: counted.get(n, 0) for n in kinds}
            _one_of(what, found, [{n: len(form.get(n, {})) for n in kinds} for form in forms])
        elif what == "verify":
            problems = command.result.problems
            kinds_ = {problem.kind for problem in problems}
            if not moved and problems and ErrorKind.ERASE_UNFINISHED not in kinds_:
                raise Wrong(f"verify finds damage: {sorted(k.value for k in kinds_)}", problems)
        elif what == "history":
            if not moved:
                self._judge_history(command.result, versions, kind, key, since)
        else:
            self._one_of_forms(new, forms)

    def _adopted(self, version: Version) -> Version:
        """Return a version as it is now.

        That has other rows of an erased key, if its batch was committed while the erasure ended.
        """
        return self.versions.get(version.number, version)

    def _one_of_forms(self, new: Path, forms: list[Families]) -> None:
        names = [n for n, kind in self.shape.kinds.items() if not kind.internal]
        found = {n: grouped(read_family(str(new), None, n)) for n in names}
        _one_of("a copy", found, [{n: shown(form.get(n, {})) for n in names} for form in forms])

    def _judge_history(
        self,
        found: Any,
        versions: dict[int, Version],
        kind: Kind,
        key: Row,
        since: int,
    ) -> None:
        if found.unreadable:
            raise Wrong("history finds damage", found.unreadable)
        told = {
            change.batch: [row_of(r["value"]) for r in change.after] for change in found.changes
        }
        seen = [v for number, v in sorted(versions.items()) if number - 1 in found.batches]
        count = len(self.forms({}, since))
        tales = [
            {v.number: self.forms(v.families, since)[form] for v in seen} for form in range(count)
        ]
        tales.append({v.number: self._adopted(v).families for v in seen})
        _one_of("history", told, [_tale(tale, kind.name, key) for tale in tales])


def _tale(told: dict[int, Families], name: str, key: Row) -> dict[int, list[Row]]:
    """Return the values of a key in each batch that changes them, of the families by version."""
    tale: dict[int, list[Row]] = {}
    before: list[Row] | None = None
    for number, families in told.items():
        values = _values_of(families.get(name, {}), key)
        if before != values:
            tale[number - 1] = values
        before = values
    return tale


def _one_of(what: str, found: Any, forms: list[Any]) -> None:
    if not any(found == form for form in forms):
        told = f"{str(found)[:800]}, not one of {str(forms)[:2000]}"
        raise Wrong(f"{what} beside an erasure tells what never was", told)


def named(kind: Kind, key: Row) -> dict[str, Any]:
    """Return a key as the API takes it: by the names of its columns."""
    found: dict[str, Any] = {}
    for column, value in zip(_columns(kind.schema.key), key, strict=True):
        name, _, what = column.partition(" ")
        if what.startswith("struct<"):
            inner = what[len("struct<") : -1].partition(":")[0]
            found[f"{name}.{inner}"] = value[0]
        else:
            found[name] = value
    return found


def _columns(schema: str) -> list[str]:
    return schema.split(", ")


def _values_of(rows: Rows, key: Row) -> list[Row]:
    found = rows.get(json.dumps(key, ensure_ascii=True))
    return [] if found is None else found[1]
