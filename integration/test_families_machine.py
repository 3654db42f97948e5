"""A state machine compares all store methods with dicts.

It has several column families, and all five key encoder specs. One shape has the families of
`transformWithState`: whole keys, lists, maps, TTL, any order. The other has the families of a
stream-stream join: keys with an event time before or behind. The same rules run on Millpond's store
and on Spark's RocksDB store. Spark's store proves the rules.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from integration import families
from integration.families import Pool, of_join, of_transform
from integration.harness import (
    Change,
    Cursor,
    Harness,
    ProviderError,
    Row,
    Schema,
    Store,
    providers_to_test,
)
from integration.jvm import MILLPOND, ROCKSDB
from integration.provider_machine import (
    PARTITIONS,
    ProviderMachine,
    Variant,
    few_first,
    in_partition,
    run_machine,
)
from integration.store_model import Node, canon, write_spark_metadata
from millpond.format.layout import ManifestFile, parse_key

EXAMPLES = int(os.environ.get("MILLPOND_MACHINE_EXAMPLES", "8"))
FEW = min(EXAMPLES, 4)  # of the test that is not deep
STEPS = 60
Families = dict[
    str, dict[str, tuple[Row, list[Row]]]
]  # name -> canonical key -> key, its values in order


@dataclass(frozen=True, repr=False)
class Kind(families.Kind):
    """One column family."""

    keys: list[Row] = field(default_factory=list)  # the candidates that the machine uses


_POOL = Pool(
    texts=("", "a", "ab", "b", "ü€", "x" * 40, None),
    users=(-1, 0, 7, None),
    expirations=(0, 5, 2**40),
    doubles=(-1e308, -1.5, -0.0, 0.0, 5e-324, 2.5, None),
    longs=(-(2**63), -300, -1, 0, 1, 255, 256, 2**40, None),
    seconds=(1, None),
    times=(-(2**62), -5, 0, 3, 2**50),
    indexes=(0, 1, 2),
)


def _kinds(harness: Harness, shape: str) -> dict[str, Kind]:
    found = {}
    for kind in of_transform(Kind, _POOL) if shape == "transform" else of_join(Kind, _POOL):
        mine = in_partition(
            harness,
            [*kind.candidates],
            [kind.hashed(k) for k in kind.candidates],
            kind.hashed_schema,
        )
        assert mine, kind.name
        step = max(1, len(mine) // 8)
        found[kind.name] = Kind(**{**kind.__dict__, "keys": mine[::step][:10]})
    return found


def _variants() -> list[Variant]:
    found = []
    if MILLPOND in providers_to_test():
        tiny, heap = (("millpond.memory.budget", "64k"),), (("millpond.backend", "heap"),)
        found += [Variant(MILLPOND, 1, (), "transform"), Variant(MILLPOND, 2, tiny, "join")]
        found += [Variant(MILLPOND, 2, tiny, "transform"), Variant(MILLPOND, 1, heap, "join")]
    if ROCKSDB in providers_to_test():  # it proves the model
        found += [Variant(ROCKSDB, 2, (), "transform"), Variant(ROCKSDB, 1, (), "join")]
    return found


def _copied(families: Families) -> Families:
    return {name: dict(rows) for name, rows in families.items()}


@dataclass
class Walk:
    """An open iterator, the rows that it must yield, and the rows that it yielded."""

    cursor: Cursor
    family: str
    expected: dict[str, tuple[Row, list[Row]]]
    each: bool  # one pair per value
    ordered: bool
    whole: bool = True  # whether it must yield all expected rows before it ends
    seen: list[tuple[Row, Row]] = field(default_factory=list)


class FamiliesMachine(ProviderMachine):
    """`families`: what the open store must hold. `versions`: copies of it, one per version."""

    kinds: dict[str, Kind]

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[Node, Families] = {(0, None): {}}
        self.families: Families = {}
        self.walks: list[Walk] = []
        self.lists: list[
            tuple[Cursor, list[Row]]
        ] = []  # open `valuesIterator`s, and the values that they must still yield

    def write_metadata(self) -> Path:
        """Write the metadata of a transformWithState, or of a join."""
        transform = self.variant.shape == "transform"
        return write_spark_metadata(
            self.checkpoint,
            operator_name="transformWithStateExec" if transform else "symmetricHashJoin",
            partitions=PARTITIONS,
            provider_class=self.variant.provider_class,
            state_variables={"value": "ValueState", "list": "ListState", "map": "MapState"},
        )

    @property
    def lazily(self) -> bool:
        """Return whether to read lazily.

        Spark's RocksDB store reuses its rows: `hasNext` changes the pair that `next` gave.
        """
        return self.variant.provider_class == ROCKSDB

    # -- checks
    # ----------------------------------------------------------------------------------------------

    def _pairs(self, rows: dict[str, tuple[Row, list[Row]]], each: bool) -> list[tuple[str, Row]]:
        return [
            (name, v)
            for name, (_, values) in rows.items()
            for v in (values if each else values[:1])
        ]

    def _same(
        self,
        kind: Kind,
        pairs: list[tuple[Row, Row]],
        rows: dict[str, tuple[Row, list[Row]]],
        each: bool,
        ordered: bool,
    ) -> None:
        """Check that the pairs are exactly these rows.

        The values of a key must come in order and side by side. With `ordered`, keys must come in
        order.
        """
        grouped: dict[str, list[Row]] = {}
        last = ""
        for key, value in pairs:
            name = canon(key)
            assert name == last or name not in grouped, f"values of {key} are not side by side"
            grouped.setdefault(name, []).append(value)
            last = name
        assert grouped == {
            name: values if each else values[:1] for name, (_, values) in rows.items()
        }
        if ordered and kind.order is not None:
            places = [kind.order(key) for key, _ in pairs]
            assert places == sorted(places)

    def _check_all(self, store: Store, families: Families) -> None:
        for name, rows in families.items():
            kind = self.kinds[name]
            each = kind.schema.multi
            pairs = store.scan(cf=name, multi=each, lazily=self.lazily)
            self._same(kind, pairs, rows, each, ordered=kind.ranged)

    def _create_all(self, store: Store, families: Families) -> None:
        for name in families:
            store.create_cf(name, self.kinds[name].schema, internal=self.kinds[name].internal)

    def _forget_store(self) -> None:
        for walk in self.walks:
            walk.cursor.close()
        for cursor, _ in self.lists:
            cursor.close()
        self.walks, self.lists, self.store, self.families = [], [], None, {}

    # -- life of a store
    # ----------------------------------------------------------------------------------------------

    @initialize(data=st.data())
    def first_commit(self, data: st.DataObject) -> None:
        """Version 1 has some rows in each family."""
        self.store = self._provider(0).store(0)
        for name, kind in self.kinds.items():
            self.store.create_cf(name, kind.schema, internal=kind.internal)
            self.families[name] = {}
            for _ in range(3):
                self._write(data, kind)
        self._commit()

    @precondition(lambda self: self.store is None)
    @rule(
        data=st.data(),
        index=st.sampled_from([0, 0, 0, 1]),
        newest=st.sampled_from([True, True, False]),
    )
    def open_store(self, data: st.DataObject, index: int, newest: bool) -> None:
        """Open a version for writing, mostly the newest."""
        nodes = self.model.restorable()
        node = nodes[-1] if newest else data.draw(st.sampled_from(nodes))
        if not self._may_write(node):
            return
        provider = self._provider(index)
        self.current = index
        self._ask(index, node)
        self.base, self.families = node, _copied(self.versions[node])
        self.store = self._open(lambda: provider.store(node[0], node[1]))
        self._create_all(self.store, self.families)
        assert set(self.families) <= set(self.store.cf_names())
        self._check_all(self.store, self.families)

    @precondition(lambda self: self.store is None)
    @rule(data=st.data(), index=st.integers(0, 1))
    def read_version(self, data: st.DataObject, index: int) -> None:
        """Read like the `statestore` source: register families on one read store, read the next."""
        node = data.draw(st.sampled_from(self.model.restorable()))
        self._ask(index, node)
        provider, families = self._provider(index), self.versions[node]
        read = self._open(lambda: provider.read_store(node[0], node[1]))
        for name in families:
            read.register_cf(name, self.kinds[name].schema, internal=self.kinds[name].internal)
        read.release()
        read = provider.read_store(node[0], node[1])
        self._check_all(read, families)
        read.release()

    @precondition(lambda self: self.store is not None)
    @rule()
    def commit(self) -> None:
        """Commit, with iterators left open."""
        self._commit()

    def _commit(self) -> None:
        assert self.store is not None
        done = self.store.commit()
        self._check(done, self.base)
        if self.variant.provider_class == MILLPOND:
            users = [rows for name, rows in self.families.items() if not self.kinds[name].internal]
            assert self.store.keys() == sum(map(len, users))
        node = (done.version, done.id)
        if self.variant.checkpoint_format == 1:
            rewrites = done.version <= self.model.newest
            self.versions = {n: f for n, f in self.versions.items() if n[0] < done.version}
        else:
            rewrites = False
        self.model.add(node, self.base, {})
        self.versions[node] = _copied(self.families)
        self._forget_store()
        if rewrites:  # without ids the other executor cannot know that its copy is stale
            self._close(1 - self.current)

    @precondition(lambda self: self.store is not None)
    @rule()
    def abort(self) -> None:
        """Abort. No later read sees its rows, or its new and dropped families."""
        assert self.store is not None
        self.store.abort()
        self._forget_store()

    # -- families
    # ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def create_family(self, data: st.DataObject) -> None:
        """Create a family. Nothing happens if it exists. A new family is empty."""
        assert self.store is not None
        kind = data.draw(st.sampled_from(list(self.kinds.values())))
        self.store.create_cf(kind.name, kind.schema, internal=kind.internal)
        self.families.setdefault(kind.name, {})
        rows = self.families[kind.name]
        pairs = self.store.scan(cf=kind.name, lazily=self.lazily)
        self._same(kind, pairs, rows, each=False, ordered=kind.ranged)

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def remove_family(self, data: st.DataObject) -> None:
        """Drop a family that is not internal."""
        assert self.store is not None
        kind = data.draw(
            st.sampled_from([k for k in self.kinds.values() if not k.name.startswith("$")])
        )
        if any(w.family == kind.name for w in self.walks):
            return
        assert self.store.remove_cf(kind.name) == (kind.name in self.families)
        if self.families.pop(kind.name, None) is not None:
            with pytest.raises(ProviderError) as caught:
                self.store.get(kind.keys[0], cf=kind.name)
            assert (
                caught.value.condition
                == "STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"
            )

    # -- writing
    # ----------------------------------------------------------------------------------------------

    def _draw_kind(
        self, data: st.DataObject, wanted: Callable[[Kind], bool] = lambda _: True
    ) -> Kind | None:
        kinds = [self.kinds[name] for name in self.families if wanted(self.kinds[name])]
        return data.draw(st.sampled_from(kinds)) if kinds else None

    def _value(self, data: st.DataObject, kind: Kind) -> Row:
        row: Row = []
        for column in kind.schema.value.split(", "):
            what = column.split()[1]
            if what == "void":
                row.append(None)
            elif what == "bigint":
                row.append(data.draw(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))))
            elif what == "boolean":
                row.append(data.draw(st.sampled_from([True, False, None])))
            else:
                short = st.sampled_from(["", "v", "ü€", "w" * 9, None])
                row.append(
                    data.draw(
                        st.one_of(short, short, st.integers(1, 3).map(lambda n: "v" * (n * 30_000)))
                    )
                )
        return row

    def _write(self, data: st.DataObject, kind: Kind) -> None:
        assert self.store is not None
        key = data.draw(st.sampled_from(kind.keys))
        rows, name, cf = self.families[kind.name], canon(key), kind.name
        ways = [
            "put",
            "put",
            "remove",
            *(["put_list", "merge", "merge", "merge_list"] if kind.schema.multi else []),
        ]
        way = data.draw(st.sampled_from(ways))
        if way == "remove":
            self.store.remove(key, cf=cf)
            rows.pop(name, None)
            return
        count = data.draw(st.integers(1, 3)) if way.endswith("list") else 1
        values = [self._value(data, kind) for _ in range(count)]
        if way == "put":
            self.store.put(key, values[0], cf=cf)
        elif way == "put_list":
            self.store.put_list(key, values, cf=cf)
        elif way == "merge":
            self.store.merge(key, values[0], cf=cf)
        else:
            self.store.merge_list(key, values, cf=cf)
        before = rows[name][1] if name in rows and way.startswith("merge") else []
        rows[name] = (key, [*before, *values])

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), count=st.integers(1, 4))
    def write(self, data: st.DataObject, count: int) -> None:
        """Put, append to, or remove some keys."""
        for _ in range(count):
            kind = self._draw_kind(data)
            if kind is not None:
                self._write(data, kind)

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

    # -- end
    # ----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Check every version that Spark may ask for, from storage alone and from each snapshot."""
        try:
            if self.store is not None:
                self.store.abort()
                self._forget_store()
            for index in (0, 1):
                self._close(index)
            for node in self.model.restorable():
                provider = self._provider(0)
                writer = provider.store(*node)
                assert set(writer.cf_names()) == {*self.versions[node], "default"}
                self._create_all(writer, self.versions[node])
                self._check_all(writer, self.versions[node])
                writer.abort()
                if self.variant.provider_class == MILLPOND:
                    self._replay(node)
                self._close(0)
        finally:
            for index in (0, 1):
                self._close(index)
            shutil.rmtree(self.checkpoint)

    def _replay(self, node: Node) -> None:
        """Read the version from each snapshot at or below it.

        Without ids a snapshot may belong to a lost attempt.
        """
        folder = self.root / "0" / "2"
        lineage = self.model.lineage(node)
        for path in folder.glob("*.manifest"):
            parsed = parse_key(str(path.relative_to(self.checkpoint)))
            assert parsed is not None and isinstance(parsed.file, ManifestFile)
            snapshot = parsed.file.version
            ours = (snapshot.version, snapshot.id or None) in lineage
            if snapshot.version > node[0] or (self.variant.checkpoint_format == 2 and not ours):
                continue
            try:
                read = self._provider(0).replay(
                    snapshot.version, *node[:1], snapshot_id=snapshot.id or None, id=node[1]
                )
            except ProviderError as error:
                if (
                    self.variant.checkpoint_format == 2
                    or "MILLPOND_VERSION_NOT_FOUND" not in error.text
                ):
                    raise
                continue
            for name in self.versions[node]:
                read.register_cf(name, self.kinds[name].schema, internal=self.kinds[name].internal)
            self._check_all(read, self.versions[node])
            read.release()


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
    given, of_shape = variant, _kinds(harness, variant.shape)

    class Machine(FamiliesMachine):
        variant = given
        kinds = of_shape
        schema = Schema("g string", "value binary", use_cf=True)

    Machine.harness = harness
    run_machine(Machine, examples=examples, steps=STEPS)
