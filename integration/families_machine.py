"""A state machine opens, writes and commits a store of several column families, beside dicts.

`test_families_machine` has the rules for ranges, scans and iterators.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from integration import families
from integration.families import Pool, of_join, of_transform
from integration.harness import Cursor, Harness, ProviderError, Row, Store
from integration.jvm import MILLPOND, ROCKSDB
from integration.provider_machine import PARTITIONS, ProviderMachine, in_partition
from integration.store_model import Node, canon, write_spark_metadata
from millpond.format.layout import ManifestFile, file_of

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


def kinds_of(harness: Harness, shape: str) -> dict[str, Kind]:
    """Return the families of a `transform` or a `join`, with keys of one partition."""
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


class FamiliesLife(ProviderMachine):
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
            self.versions = {n: f for n, f in self.versions.items() if n[0] < done.version}
        self.versions[node] = _copied(self.families)
        self._committed(done, {})

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
            file = file_of(str(path.relative_to(self.checkpoint)))
            assert isinstance(file, ManifestFile)
            snapshot = file.version
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
