"""One task: an attempt to make the next version of one partition. Checks every read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from integration.harness import Row
from integration.simulation.director import Executor, Wrong
from integration.simulation.families import Kind
from integration.simulation.world import World
from integration.store_model import canon

Rows = dict[str, tuple[Row, list[Row]]]  # canonical key -> key, its values in order
Families = dict[str, Rows]
Pairs = list[tuple[Row, Row]]
_WRITES = {
    "create_cf",
    "remove_cf",
    "put",
    "put_list",
    "merge",
    "merge_list",
    "remove",
    "delete_range",
}


def copied(families: Families) -> Families:
    """Return an independent copy."""
    return {name: dict(rows) for name, rows in families.items()}


@dataclass(frozen=True)
class Version:
    """A version of the state. Batch `number - 1` made it."""

    number: int
    partitions: int
    ids: tuple[str | None, ...]
    families: Families


def part(version: Version, kinds: dict[str, Kind], partition: int, partitions: int) -> Families:
    """Return the rows of one partition."""
    found: Families = {}
    for name, rows in version.families.items():
        mine = {canon(k) for k in kinds[name].keys(partition, partitions)}
        found[name] = {c: row for c, row in rows.items() if c in mine}
    return found


def same(kind: Kind, pairs: Pairs, rows: Rows, *, each: bool, ordered: bool, what: str) -> None:
    """Check that the pairs are exactly these rows.

    The values of a key must come in order and side by side. With `ordered`, keys must come in
    order.
    """
    grouped: dict[str, list[Row]] = {}
    last: str | None = None
    for key, value in pairs:
        name = canon(key)
        if name != last and name in grouped:
            raise Wrong(f"{what}: a key comes twice", (kind.name, key))
        grouped.setdefault(name, []).append(value)
        last = name
    expected = {name: values if each else values[:1] for name, (_, values) in rows.items()}
    if grouped != expected:
        lost = {n for n in expected if n not in grouped}
        more = {n for n in grouped if n not in expected}
        other = {
            n: (grouped[n], expected[n])
            for n in expected
            if n in grouped and grouped[n] != expected[n]
        }
        raise Wrong(
            f"{what}: wrong rows",
            f"{kind.name}: lost {lost}, too many {more}, other {str(other)[:600]}",
        )
    if ordered and kind.order is not None:
        places = [kind.order(key) for key, _ in pairs]
        if places != sorted(places):
            raise Wrong(f"{what}: wrong order", kind.name)


def family_arguments(kind: Kind) -> dict[str, Any]:
    """Return the arguments of the commands that make a family known."""
    schema = kind.schema
    return {
        "cf": kind.name,
        "key": schema.key,
        "value": schema.value,
        "spec": dict(schema.spec),
        "multi": schema.multi,
        "internal": kind.internal,
    }


@dataclass
class Walk:
    """An open iterator, and the rows that it must yield."""

    name: str
    kind: Kind
    expected: Rows
    each: bool
    ordered: bool
    seen: Pairs


class Task:
    """A task's use of a store. `rows`: the rows that the store must hold for this partition."""

    def __init__(
        self,
        world: World,
        executor: Executor,
        provider: str,
        store: str,
        kinds: dict[str, Kind],
        rows: Families,
    ) -> None:
        self.world, self.executor, self.provider, self.store = world, executor, provider, store
        self.kinds = kinds  # with keys of this partition only
        self.rows = rows
        self.walks: list[Walk] = []
        # The commands that changed rows, and the commands that make families known.
        self.written: list[dict[str, Any]] = []

    def do(self, what: str, **arguments: Any) -> Any:
        """Run one command on the store. Raises: ProviderError."""
        self.world.breathe()
        said = ("cf", "k", "v", "scan", "from", "to")
        self.world.log(
            f"  {what} " + " ".join(str(arguments[n])[:80] for n in said if n in arguments)
        )
        if what in _WRITES:
            self.written.append({"do": what, **arguments})
        return self.world.of_executor(self.executor, what, s=self.store, **arguments)

    # ---- families

    def create(self, name: str) -> None:
        """Call `createColFamilyIfAbsent`, as each task does for all families of the operator."""
        self.do("create_cf", **family_arguments(self.kinds[name]))
        self.rows.setdefault(name, {})

    def drop(self, name: str) -> None:
        """Call `removeColFamilyIfExists`."""
        if self.do("remove_cf", cf=name) is not True:
            raise Wrong("a family was not there to be removed", name)
        self.walks = [walk for walk in self.walks if walk.kind.name != name]
        del self.rows[name]

    # ---- writes

    def write(self, chance: random.Random, name: str) -> None:
        """Put, append to, or remove a key."""
        kind, rows = self.kinds[name], self.rows[name]
        if not kind.candidates:
            return
        key = chance.choice(kind.candidates)
        at = canon(key)
        ways = ["put", "put", "remove"] + (
            ["put_list", "merge", "merge", "merge_list"] if kind.schema.multi else []
        )
        way = chance.choice(ways)
        if way == "remove":
            self.do("remove", cf=name, k=key)
            rows.pop(at, None)
            return
        large = self.world.setting.large
        values = [
            kind.value(chance, large)
            for _ in range(chance.randint(1, 3) if way.endswith("list") else 1)
        ]
        self.do(way, cf=name, k=key, v=values if way.endswith("list") else values[0])
        before = rows[at][1] if at in rows and way.startswith("merge") else []
        rows[at] = (key, [*before, *values])

    def delete_range(self, chance: random.Random, name: str) -> None:
        """Delete the keys from one key on and before another."""
        kind = self.kinds[name]
        ends = self._ends(chance, kind)
        if ends is None or ends[0] is None or ends[1] is None or kind.order is None:
            return
        low, high = sorted((ends[0], ends[1]), key=kind.order)
        self.do("delete_range", cf=name, **{"from": low, "to": high})
        for at in self._between(kind, low, high):
            del self.rows[name][at]

    # ---- reads

    def point(self, chance: random.Random, name: str) -> None:
        """Call `get`, `keyExists`, `multiGet` or `valuesIterator`."""
        kind, rows = self.kinds[name], self.rows[name]
        if not kind.candidates:
            return
        key = chance.choice(kind.candidates)
        values = rows[canon(key)][1] if canon(key) in rows else []
        way = chance.choice(
            ("get", "get", "exists", "multi_get", "values" if kind.schema.multi else "get")
        )
        if way == "multi_get":
            found = self.do(way, cf=name, keys=list(kind.candidates))
            wanted: Any = [
                rows[canon(k)][1][0] if canon(k) in rows else None for k in kind.candidates
            ]
        else:
            found = self.do(way, cf=name, k=key)
            wanted = {
                "exists": bool(values),
                "values": values,
                "get": values[0] if values else None,
            }[way]
        if found != wanted:
            raise Wrong(
                f"{way}: wrong rows", f"{name} {key}: {str(found)[:300]}, not {str(wanted)[:300]}"
            )

    def _ends(self, chance: random.Random, kind: Kind) -> tuple[Row | None, Row | None] | None:
        if kind.order is None or kind.schema.spec["type"] != "range" or not kind.candidates:
            return None
        places = [kind.order(k) for k in kind.candidates]
        certain = [k for k, p in zip(kind.candidates, places, strict=True) if places.count(p) == 1]
        if not certain:
            return None
        return chance.choice([None, *certain]), chance.choice([None, *certain])

    def _between(self, kind: Kind, low: Row | None, high: Row | None) -> Rows:
        order = kind.order
        assert order is not None
        return {
            at: (key, values)
            for at, (key, values) in self.rows[kind.name].items()
            if (low is None or order(key) >= order(low))
            and (high is None or order(key) < order(high))
        }

    def _scan(self, chance: random.Random, kind: Kind) -> tuple[dict[str, Any], Rows, bool]:
        """Return a scan's arguments, the rows that it must yield, and whether in order."""
        rows = self.rows[kind.name]
        ways = ["all", *(["prefix"] if kind.prefix and kind.candidates else []), "range"]
        way = chance.choice(ways)
        if way == "prefix" and kind.prefix is not None:
            prefix = kind.prefix(chance.choice(kind.candidates))
            mine = {
                at: row for at, row in rows.items() if canon(kind.prefix(row[0])) == canon(prefix)
            }
            return {"scan": "prefix", "k": prefix}, mine, True
        ends = self._ends(chance, kind) if way == "range" else None
        if ends is not None:
            return (
                {"scan": "range", "from": ends[0], "to": ends[1]},
                self._between(kind, *ends),
                True,
            )
        return {}, dict(rows), kind.ranged

    def scan(self, chance: random.Random, name: str) -> None:
        """Run a random scan, with or without each value of a list."""
        kind = self.kinds[name]
        arguments, rows, ordered = self._scan(chance, kind)
        each = kind.schema.multi and chance.random() < 0.5
        pairs = self.do("scan", cf=name, multi=each, **arguments)
        same(kind, pairs, rows, each=each, ordered=ordered, what="scan")

    def check_all(self, what: str) -> None:
        """Check every row of every family."""
        for name, rows in self.rows.items():
            kind = self.kinds[name]
            pairs = self.do("scan", cf=name, multi=kind.schema.multi)
            same(kind, pairs, rows, each=kind.schema.multi, ordered=kind.ranged, what=what)

    def begin_walk(self, chance: random.Random, name: str, store: str | None = None) -> None:
        """Open an iterator. Until its end it must yield exactly the rows that are there now."""
        kind = self.kinds[name]
        arguments, rows, ordered = self._scan(chance, kind)
        each = kind.schema.multi and chance.random() < 0.5
        walk = Walk(self.world.new_name("i"), kind, rows, each, ordered, [])
        self.world.of_executor(
            self.executor,
            "iter_open",
            s=store or self.store,
            it=walk.name,
            cf=name,
            multi=each,
            **arguments,
        )
        self.walks.append(walk)

    def step_walk(self, chance: random.Random) -> None:
        """Read on in an iterator, sometimes to its end."""
        if not self.walks:
            return
        walk = chance.choice(self.walks)
        count = chance.choice((1, 2, -1))
        walk.seen += self.do("iter_next", it=walk.name, n=count)
        if count == -1:
            same(
                walk.kind,
                walk.seen,
                walk.expected,
                each=walk.each,
                ordered=walk.ordered,
                what="iterator",
            )
            self.do("iter_close", it=walk.name)
            self.walks.remove(walk)

    def act(self, chance: random.Random) -> None:
        """Do something that an operator does.

        Two attempts must write the same rows, but only the first has iterators open. An iterator
        draws from `chance` too, and that must not change the writes. So each action has its own
        `chance`.
        """
        names = [n for n in self.rows if n in self.kinds]
        if not names:
            return
        name = chance.choice(names)
        ways: list[tuple[int, Callable[[], None]]] = [
            (10, lambda: self.write(chance, name)),
            (4, lambda: self.point(chance, name)),
            (3, lambda: self.scan(chance, name)),
            (1, lambda: self.begin_walk(chance, name)),
            (2, lambda: self.step_walk(chance)),
            (1, lambda: self.delete_range(chance, name)),
        ]
        chance.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()
