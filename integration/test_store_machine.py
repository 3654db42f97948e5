"""A state machine compares a real provider in a JVM with a dict of every version.

The same rules run on Millpond's store and on Spark's RocksDB store. Spark's store proves the rules.
Examples are derandomised. A failure prints its sequence. The next run repeats it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from integration.harness import Harness, ProviderError, Row, Schema, Store, providers_to_test
from integration.jvm import MILLPOND, ROCKSDB
from integration.provider_machine import (
    PARTITIONS,
    ProviderMachine,
    Variant,
    few_first,
    in_partition,
    run_machine,
)
from integration.store_model import State, as_state, canon, write_spark_metadata

EXAMPLES = int(os.environ.get("MILLPOND_MACHINE_EXAMPLES", "16"))
FEW = min(EXAMPLES, 6)  # of the test that is not deep
STEPS = 45
TEXTS = ["", "a", "ab", "b", "ü€", "\U0001f600", "x" * 40, None]
VALUES = st.tuples(
    st.one_of(st.none(), st.text(max_size=6), st.integers(1, 5).map(lambda n: "v" * (n * 50_000))),
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
)


def _variants() -> list[Variant]:
    found = []
    if MILLPOND in providers_to_test():
        # Values have up to 250 kB. One row can exceed this budget, so rows leave memory at every
        # step.
        tiny, heap = (("millpond.memory.budget", "64k"),), (("millpond.backend", "heap"),)
        found += [(2, tiny, "plain"), (1, (), "plain")]
        found += [(2, (), "prefix"), (1, tiny, "prefix"), (2, heap, "prefix")]
    mine = [Variant(MILLPOND, *rest) for rest in found]
    if ROCKSDB in providers_to_test():  # it proves the model
        mine += [Variant(ROCKSDB, f, (), s) for f, s in ((1, "plain"), (2, "prefix"))]
    return mine


def _keys(harness: Harness, prefix: bool) -> list[Row]:
    """Return keys that Spark's shuffle sends to `PARTITION`. Several have the same prefix."""
    candidates: list[Row] = [
        [t, n] for n in (-1, 0, 1, 2, 3, 255, 256, 2**40, -(2**63), None) for t in TEXTS
    ]
    hashed, schema = (
        ([[k[0]] for k in candidates], "k string") if prefix else (candidates, Schema().key)
    )
    mine = in_partition(harness, candidates, hashed, schema)
    assert len(mine) >= 10, mine
    return mine


class StoreMachine(ProviderMachine):
    """One column family. Each key has one value."""

    keys: list[Row]

    @property
    def prefix(self) -> bool:
        """Return whether keys have a scan prefix."""
        return self.variant.shape == "prefix"

    def write_metadata(self) -> Path:
        """Write the metadata of a session window, or of an aggregation."""
        return write_spark_metadata(
            self.checkpoint,
            operator_name="sessionWindowStateStoreSaveExec" if self.prefix else "stateStoreSave",
            partitions=PARTITIONS,
            prefix_columns=int(self.prefix),
            provider_class=self.variant.provider_class,
        )

    def _forget_store(self) -> None:
        for cursor, _, _ in self.cursors:
            cursor.close()
        self.cursors, self.store, self.read, self.working, self.touched = [], None, None, {}, set()

    # -- life of a store
    # ----------------------------------------------------------------------------------------------

    @initialize()
    def first_commit(self) -> None:
        """Commit version 1 first."""
        self.store = self._provider(0).store(0)
        self.put(self.keys[0], ("first", 1))
        self.commit()

    @precondition(lambda self: self.store is None)
    @rule(
        data=st.data(),
        index=st.sampled_from([0, 0, 0, 1]),
        how=st.sampled_from(["write", "upgrade", "read"]),
        newest=st.sampled_from([True, True, False]),
    )
    def open_store(self, data: st.DataObject, index: int, how: str, newest: bool) -> None:
        """Open a version on either provider: mostly the newest, sometimes an older one."""
        nodes = self.model.restorable()
        node = nodes[-1] if newest else data.draw(st.sampled_from(nodes))
        if how != "read" and not self._may_write(node):
            how = "read"
        provider = self._provider(index)
        self.current = index
        self._ask(index, node)
        self.base, self.working, self.touched = node, dict(self.model.states[node]), set()
        if how == "write":
            self.store = self._open(lambda: provider.store(node[0], node[1]))
            assert as_state(self.store.scan()) == self.working
            return
        read = self._open(lambda: provider.read_store(node[0], node[1]))
        rows = read.scan()
        assert as_state(rows) == self.working
        # Spark's state reader makes one row of a map, or of a session's windows, from neighbours.
        if self.prefix:
            prefixes = [canon(key[:1]) for key, _ in rows]
            assert sum(a != b for a, b in pairwise(prefixes)) == max(len(set(prefixes)) - 1, 0), (
                prefixes
            )
        if how == "read":
            read.release()
            self._forget_store()
        else:
            self.store = self._open(lambda: provider.upgrade(read, node[0], node[1]))
            self.read = read

    @precondition(lambda self: self.store is not None)
    @rule(key=st.integers(0, 9), value=VALUES)
    def put_rule(self, key: int, value: tuple[str | None, int | None]) -> None:
        """Put."""
        self.put(self.keys[key], value)

    def put(self, key: Row, value: tuple[str | None, int | None]) -> None:
        """Put into the store and the model."""
        assert self.store is not None
        if self._fails(partial(self.store.put, key, list(value))):
            return
        self.working[canon(key)] = (key, list(value))
        self.touched.add(canon(key))

    def _fails(self, write: Callable[[], object], *stores: Store) -> bool:
        """Write. Return whether the write failed for a reason that is allowed.

        Under pressure the store reads its last changelogs. Without ids another executor may have
        replaced them. Then the task fails, and its retry loads the store again.
        """
        try:
            write()
        except ProviderError as e:
            if (
                self.variant.checkpoint_format == 2
                or not self.variant.conf
                or "CHANGELOG_REPLACED" not in e.text
            ):
                raise
            for store in stores or ([self.store] if self.store else []):
                store.abort()
            self._forget_store()
            return True
        return False

    @precondition(lambda self: self.store is not None)
    @rule(key=st.integers(0, 9))
    def remove(self, key: int) -> None:
        """Remove a key that exists or not."""
        assert self.store is not None
        if self._fails(partial(self.store.remove, self.keys[key])):
            return
        self.working.pop(canon(self.keys[key]), None)
        self.touched.add(canon(self.keys[key]))

    @precondition(lambda self: self.store is not None)
    @rule(key=st.integers(0, 9))
    def get(self, key: int) -> None:
        """Call `get` and `keyExists`."""
        assert self.store is not None
        expected = self.working.get(canon(self.keys[key]))
        assert self.store.get(self.keys[key]) == (None if expected is None else expected[1])
        assert self.store.exists(self.keys[key]) == (expected is not None)

    @precondition(lambda self: self.read is not None)
    @rule(key=st.integers(0, 9))
    def read_after_upgrade(self, key: int) -> None:
        """Read from the read store after its upgrade.

        For keys that the writer changed, it may show the old or the new value.
        """
        assert self.read is not None
        name = canon(self.keys[key])
        found = self.read.get(self.keys[key])
        allowed = [
            self.model.states[self.base].get(name),
            *([self.working.get(name)] if name in self.touched else []),
        ]
        assert found in [None if pair is None else pair[1] for pair in allowed]

    @precondition(lambda self: self.store is not None)
    @rule()
    def scan(self) -> None:
        """Scan the whole store, with the batch's own writes."""
        assert self.store is not None
        assert as_state(self.store.scan()) == self.working

    def _with_prefix(self, prefix: Any) -> State:
        return {name: pair for name, pair in self.working.items() if pair[0][0] == prefix}

    @precondition(lambda self: self.store is not None and self.prefix)
    @rule(key=st.integers(0, 9))
    def prefix_scan(self, key: int) -> None:
        """Scan all keys with one prefix, and no others."""
        assert self.store is not None
        prefix = self.keys[key][0]
        assert as_state(self.store.scan(scan="prefix", k=[prefix])) == self._with_prefix(prefix)

    @precondition(lambda self: self.store is not None and len(self.cursors) < 3)
    @rule(key=st.integers(0, 9), prefix=st.booleans())
    def iterator_open(self, key: int, prefix: bool) -> None:
        """Open an iterator. Until its end it must yield exactly the rows that are there now."""
        assert self.store is not None
        if prefix and self.prefix:
            value = self.keys[key][0]
            self.cursors.append(
                (self.store.iterate(scan="prefix", k=[value]), self._with_prefix(value), {})
            )
        else:
            self.cursors.append((self.store.iterate(), dict(self.working), {}))

    @precondition(lambda self: bool(self.cursors))
    @rule(which=st.integers(0, 2), count=st.sampled_from([1, 1, 2, -1]), remove=st.booleans())
    def iterator_step(self, which: int, count: int, remove: bool) -> None:
        """Read on in an iterator. Sometimes, like eviction, remove keys before reading pairs."""
        cursor, expected, seen = self.cursors[which % len(self.cursors)]
        pairs: list[tuple[Row, Row]] = []
        step = partial(
            cursor.next, count, remove=remove, lazily=self.variant.provider_class == ROCKSDB
        )
        if self._fails(lambda: pairs.extend(step())):
            return
        for key, value in pairs:
            name = canon(key)
            assert name not in seen, f"{key} twice"
            seen[name] = (key, value)
            assert expected.get(name) == (key, value)
            if remove:
                self.working.pop(name, None)
                self.touched.add(name)
        if count == -1:
            assert seen == expected
            self.cursors.remove((cursor, expected, seen))
            cursor.close()

    @precondition(lambda self: self.store is not None)
    @rule(close_iterators=st.booleans())
    def commit_rule(self, close_iterators: bool) -> None:
        """Commit. Iterators are closed or half-read."""
        if close_iterators:
            for cursor, _, _ in self.cursors:
                cursor.close()
        self.commit()

    def commit(self) -> None:
        """Commit. Version, ids and numKeys must be right."""
        assert self.store is not None
        done = self.store.commit()
        self._check(done, self.base)
        assert self.store.keys() == len(self.working)
        self._committed(done, self.working)

    @precondition(lambda self: self.store is None)
    @rule(
        writes=st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=3), other=st.integers(0, 9)
    )
    def two_attempts(
        self, writes: list[tuple[int, tuple[str | None, int | None]]], other: int
    ) -> None:
        """Two executors commit the same version.

        With ids each has its own, different state. Without ids the attempts are equal.
        """
        base = self.model.restorable()[-1]
        if not self._may_write(base):
            return
        for i in (0, 1):
            self._ask(i, base)
        attempts = [self._open(partial(self._provider(i).store, base[0], base[1])) for i in (0, 1)]
        states = [dict(self.model.states[base]) for _ in attempts]
        for i, store in enumerate(attempts):
            for k, v in writes:
                if self._fails(partial(store.put, self.keys[k], list(v)), *attempts):
                    return
                states[i][canon(self.keys[k])] = (self.keys[k], list(v))
            if i == 1 and self.variant.checkpoint_format == 2:
                store.put(self.keys[other], ["sibling", 7])
                states[i][canon(self.keys[other])] = (self.keys[other], ["sibling", 7])
        for store, state in zip(attempts, states, strict=True):
            done = store.commit()
            self._check(done, base)
            assert store.keys() == len(state)
            self.model.add((done.version, done.id), base, state)

    def teardown(self) -> None:
        """Check every version that Spark may ask for, from storage alone."""
        try:
            if self.store is not None:
                self.store.abort()
                self._forget_store()
            for index in (0, 1):
                self._close(index)
            for node in self.model.restorable():
                read = self._provider(0).read_store(node[0], node[1])
                assert as_state(read.scan()) == self.model.states[node], node
                read.release()
                self._close(0)
        finally:
            for index in (0, 1):
                self._close(index)
            shutil.rmtree(self.checkpoint)


@pytest.mark.parametrize(
    ("variant", "examples"), few_first(_variants(), FEW, EXAMPLES, of_spark=EXAMPLES // 10)
)
def test_store_equals_a_dict_per_version(harness: Harness, variant: Variant, examples: int) -> None:
    """Every version holds its committed rows, in any order of operations."""
    given, mine = variant, _keys(harness, variant.shape == "prefix")
    spec: dict[str, Any] = (
        {"type": "prefix", "columns": 1} if variant.shape == "prefix" else {"type": "none"}
    )

    class Machine(StoreMachine):
        variant = given
        keys = mine
        schema = Schema(spec=spec)

    Machine.harness = harness
    run_machine(Machine, examples=examples, steps=STEPS)
