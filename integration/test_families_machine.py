"""A state machine compares all store methods with dicts.

It has several column families, and all five key encoder specs. One shape has the families of
`transformWithState`: whole keys, lists, maps, TTL, any order. The other has the families of a
stream-stream join: keys with an event time before or behind. The same rules run on Millpond's store
and on Spark's RocksDB store. Spark's store proves the rules.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from integration.families_machine import FamiliesLife, Kind, Walk, kinds_of
from integration.harness import Change, Harness, Row, Schema, providers_to_test
from integration.jvm import MILLPOND, ROCKSDB
from integration.provider_machine import Variant, few_first, run_machine
from integration.store_model import canon

EXAMPLES = int(os.environ.get("MILLPOND_MACHINE_EXAMPLES", "8"))
FEW = min(EXAMPLES, 4)  # of the test that is not deep
STEPS = 60


def _variants() -> list[Variant]:
    found = []
    if MILLPOND in providers_to_test():
        tiny, heap = (("millpond.memory.budget", "64k"),), (("millpond.backend", "heap"),)
        found += [Variant(MILLPOND, 1, (), "transform"), Variant(MILLPOND, 2, tiny, "join")]
        found += [Variant(MILLPOND, 2, tiny, "transform"), Variant(MILLPOND, 1, heap, "join")]
    if ROCKSDB in providers_to_test():  # it proves the model
        found += [Variant(ROCKSDB, 2, (), "transform"), Variant(ROCKSDB, 1, (), "join")]
    return found


class FamiliesMachine(FamiliesLife):
    """Ranges, scans and iterators of the open store, and the change feed of its versions."""

    # -- ranges
    # ----------------------------------------------------------------------------------------------

    def _bounds(self, data: st.DataObject, kind: Kind) -> tuple[Row | None, Row | None]:
        """Return both ends of a range.

        The order decides their places among the keys. If a range may not span prefixes, both ends
        have one prefix.
        """
        assert kind.order is not None
        places = [kind.order(k) for k in kind.keys]
        certain = [k for k, p in zip(kind.keys, places, strict=True) if places.count(p) == 1]
        if not kind.ranged:
            assert kind.prefix is not None
            wanted = kind.prefix(data.draw(st.sampled_from(kind.keys)))
            certain = [k for k in kind.keys if kind.prefix(k) == wanted]
            return data.draw(st.sampled_from(certain)), data.draw(st.sampled_from(certain))
        one = st.one_of(st.none(), st.sampled_from(certain)) if certain else st.none()
        return data.draw(one), data.draw(one)

    def _between(
        self, kind: Kind, begin: Row | None, end: Row | None
    ) -> dict[str, tuple[Row, list[Row]]]:
        order = kind.order
        assert order is not None
        found = {}
        for name, (key, values) in self.families[kind.name].items():
            apart = not kind.ranged and begin is not None and key[:1] != begin[:1]
            low = begin is not None and order(key) < order(begin)
            high = end is not None and order(key) >= order(end)
            if not (apart or low or high):
                found[name] = (key, values)
        return found

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def delete_range(self, data: st.DataObject) -> None:
        """Delete the keys from one key on and before another, in a family with an order."""
        assert self.store is not None
        kind = self._draw_kind(data, lambda k: k.schema.spec["type"] == "range")
        if kind is None:
            return
        begin, end = self._bounds(data, kind)
        if begin is None or end is None:
            return
        assert kind.order is not None
        if kind.order(begin) > kind.order(end):
            begin, end = end, begin
        self.store.delete_range(begin, end, cf=kind.name)
        for name in self._between(kind, begin, end):
            del self.families[kind.name][name]

    # -- reading
    # ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def point_reads(self, data: st.DataObject) -> None:
        """Call `get`, `keyExists`, `multiGet` and `valuesIterator`."""
        assert self.store is not None
        kind = self._draw_kind(data)
        if kind is None:
            return
        rows, cf = self.families[kind.name], kind.name
        firsts = [rows[canon(k)][1][0] if canon(k) in rows else None for k in kind.keys]
        i = data.draw(st.integers(0, len(kind.keys) - 1))
        key = kind.keys[i]
        assert self.store.get(key, cf=cf) == firsts[i]
        assert self.store.exists(key, cf=cf) == (canon(key) in rows)
        assert self.store.multi_get(kind.keys, cf=cf) == firsts
        if kind.schema.multi:
            assert self.store.values(key, cf=cf) == (
                rows[canon(key)][1] if canon(key) in rows else []
            )

    def _scan(
        self, data: st.DataObject, kind: Kind
    ) -> tuple[dict[str, Any], dict[str, tuple[Row, list[Row]]], bool]:
        """Draw a scan. Return its arguments, the rows that it must yield, and whether in order."""
        rows = self.families[kind.name]
        ways = ["all", *(["prefix"] if kind.prefix else []), *(["range"] if kind.order else [])]
        way = data.draw(st.sampled_from(ways))
        if way == "prefix":
            assert kind.prefix is not None
            prefix = kind.prefix(data.draw(st.sampled_from(kind.keys)))
            return (
                {"scan": "prefix", "k": prefix},
                {n: r for n, r in rows.items() if canon(kind.prefix(r[0])) == canon(prefix)},
                True,
            )
        if way == "range":
            begin, end = self._bounds(data, kind)
            return (
                {"scan": "range", "from": begin, "to": end},
                self._between(kind, begin, end),
                True,
            )
        return {}, dict(rows), kind.ranged

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def scan(self, data: st.DataObject) -> None:
        """Run a scan, with or without each value of a list."""
        assert self.store is not None
        kind = self._draw_kind(data)
        if kind is None:
            return
        arguments, rows, ordered = self._scan(data, kind)
        each = kind.schema.multi and data.draw(st.booleans())
        pairs = self.store.scan(cf=kind.name, multi=each, lazily=self.lazily, **arguments)
        self._same(kind, pairs, rows, each, ordered)

    @precondition(lambda self: self.store is not None and len(self.walks) < 3)
    @rule(data=st.data())
    def iterator_open(self, data: st.DataObject) -> None:
        """Open an iterator. Until its end it must yield exactly the rows that are there now."""
        assert self.store is not None
        kind = self._draw_kind(data)
        if kind is None:
            return
        arguments, rows, ordered = self._scan(data, kind)
        each = kind.schema.multi and data.draw(st.booleans())
        cursor = self.store.iterate(cf=kind.name, multi=each, **arguments)
        self.walks.append(Walk(cursor, kind.name, rows, each, ordered))

    @precondition(lambda self: bool(self.walks))
    @rule(which=st.integers(0, 2), count=st.sampled_from([1, 1, 2, -1]), remove=st.booleans())
    def iterator_step(self, which: int, count: int, remove: bool) -> None:
        """Read on in an iterator. Sometimes, like eviction, remove keys before reading pairs."""
        walk = self.walks[which % len(self.walks)]
        remove = remove and walk.family in self.families
        pairs = walk.cursor.next(count, remove=remove, lazily=self.lazily)
        walk.seen += pairs
        if remove:
            for key, _ in pairs:
                self.families[walk.family].pop(canon(key), None)
        for key, value in pairs:
            assert value in walk.expected[canon(key)][1]
        if count == -1:
            self._same(self.kinds[walk.family], walk.seen, walk.expected, walk.each, walk.ordered)
            self.walks.remove(walk)
            walk.cursor.close()

    @precondition(lambda self: self.store is not None and len(self.walks) < 3)
    @rule(data=st.data(), steps=st.integers(0, 3))
    def reusable_iterator(self, data: st.DataObject, steps: int) -> None:
        """A reusable iterator starts at the first row. At each seek it sees all earlier writes."""
        assert self.store is not None
        kind = self._draw_kind(data, lambda k: k.schema.spec["type"] == "range")
        if kind is None:
            return
        assert kind.prefix is not None and kind.order is not None
        cursor = self.store.iterate(scan="reusable", cf=kind.name)
        seen = cursor.next(steps, lazily=self.lazily) if steps else []
        assert [kind.order(k) for k, _ in seen] == sorted(
            kind.order(r[0]) for r in self.families[kind.name].values()
        )[: len(seen)]
        for _ in range(2):
            self._write(data, kind)
            place = data.draw(st.sampled_from(kind.keys))
            cursor.seek(kind.prefix(place))
            seen = cursor.next(-1, lazily=self.lazily)
            self._same(kind, seen, self._between(kind, place, None), each=False, ordered=True)
        cursor.close()

    @precondition(lambda self: self.store is not None and len(self.lists) < 2)
    @rule(data=st.data())
    def values_open(self, data: st.DataObject) -> None:
        """Open a `valuesIterator`. It must yield the present list, whatever is written later."""
        assert self.store is not None
        kind = self._draw_kind(data, lambda k: k.schema.multi and bool(self.families[k.name]))
        if kind is None:
            return
        key, values = data.draw(st.sampled_from(list(self.families[kind.name].values())))
        self.lists.append((self.store.iterate(scan="values", k=key, cf=kind.name), list(values)))

    @precondition(lambda self: bool(self.lists))
    @rule(which=st.integers(0, 1), count=st.sampled_from([1, -1]))
    def values_step(self, which: int, count: int) -> None:
        """Read on in a list."""
        cursor, values = self.lists[which % len(self.lists)]
        found = [v for _, v in cursor.next(count, lazily=self.lazily)]
        assert found == (values[:1] if count == 1 else values)
        del values[: len(found)]
        if not values:
            self.lists.remove((cursor, values))

    # -- the change feed
    # --------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is None and self.variant.provider_class == MILLPOND)
    @rule(data=st.data())
    def change_feed(self, data: st.DataObject) -> None:
        """Apply the changes between two versions of a lineage to the first, batch by batch.

        The result must be the second version.
        """
        nodes = [n for n in self.model.lineage(self.model.restorable()[-1]) if n in self.versions][
            ::-1
        ]
        if len(nodes) < 2:
            return
        first = data.draw(st.integers(0, len(nodes) - 2))
        last = data.draw(st.integers(first + 1, len(nodes) - 1))
        names = [
            n
            for n in self.kinds
            if all(n in self.versions[node] for node in nodes[first : last + 1])
        ]
        if not names or nodes[first][0] < self.model.newest - self.variant.retain + 1:
            return
        kind = self.kinds[data.draw(st.sampled_from(names))]
        end = nodes[last]
        self._ask(0, end)
        provider = self._provider(0)
        read = self._open(lambda: provider.read_store(*end))
        read.register_cf(kind.name, kind.schema, internal=kind.internal)
        read.release()
        changes = provider.changes(nodes[first][0] + 1, end[0], cf=kind.name, id=end[1])
        assert [c[3] for c in changes] == sorted(c[3] for c in changes)
        state = dict(self.versions[nodes[first]][kind.name])
        for node in nodes[first + 1 : last + 1]:
            _apply(state, [c for c in changes if c[3] == node[0] - 1])
            assert state == self.versions[node][kind.name], node


def _apply(state: dict[str, tuple[Row, list[Row]]], changes: list[Change]) -> None:
    """Apply one batch's records, in their order."""
    for what, key, value, _ in changes:
        name = canon(key)
        if what == "delete":
            state.pop(name, None)
        else:
            assert value is not None and what in ("update", "append")
            before = state[name][1] if what == "append" and name in state else []
            state[name] = (key, [*before, value])


@pytest.mark.parametrize(
    ("variant", "examples"), few_first(_variants(), FEW, EXAMPLES, of_spark=EXAMPLES // 6)
)
def test_families_equal_dicts_per_version(
    harness: Harness, variant: Variant, examples: int
) -> None:
    """Every family of every version holds its committed rows, in any order of operations."""
    given, of_shape = variant, kinds_of(harness, variant.shape)

    class Machine(FamiliesMachine):
        variant = given
        kinds = of_shape
        schema = Schema("g string", "value binary", use_cf=True)

    Machine.harness = harness
    run_machine(Machine, examples=examples, steps=STEPS)
