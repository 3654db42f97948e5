"""A state machine that drives a real provider in a JVM against a dict of every version.

The same rules run on Spark's RocksDB store, which proves them, and on Millpond's. Examples are derandomised: the
sequence of a failure is printed and comes again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from integration.harness import (
    Commit,
    Cursor,
    Harness,
    Provider,
    ProviderError,
    Row,
    Schema,
    Store,
    providers_to_test,
    short_conf,
)
from integration.jvm import MILLPOND, ROCKSDB
from integration.store_model import Model, Node, State, as_state, canon, write_spark_metadata

PARTITIONS, PARTITION = 4, 2
RETAIN = 6
EXAMPLES = int(os.environ.get("MILLPOND_MACHINE_EXAMPLES", "40"))
STEPS = 45
# Shrinking re-runs the machine some hundred times: worth it at a desk, not in CI, which prints the whole sequence.
PHASES = (Phase.generate, Phase.shrink) if os.environ.get("MILLPOND_MACHINE_SHRINK") else (Phase.generate,)
TEXTS = ["", "a", "ab", "b", "ü€", "\U0001f600", "x" * 40, None]
VALUES = st.tuples(
    st.one_of(st.none(), st.text(max_size=6), st.integers(1, 5).map(lambda n: "v" * (n * 50_000))),
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
)


@dataclass(frozen=True)
class Variant:
    """What one run of the machine is about."""

    provider_class: str
    checkpoint_format: int
    prefix: bool
    conf: tuple[tuple[str, str], ...]

    @property
    def diverges(self) -> bool:
        """Whether a version may be written again with other content.

        Always with ids; without, only Millpond promises it.
        """
        return self.checkpoint_format == 2 or self.provider_class == MILLPOND

    @property
    def retain(self) -> int:
        """Batches kept.

        Spark's own clean-up counts the snapshot of a lost attempt and then misses the chain of the one that won:
        there it deletes nothing.
        """
        return RETAIN if self.provider_class == MILLPOND else 100

    @property
    def name(self) -> str:
        """For the test id."""
        return "-".join(
            [
                self.provider_class.rsplit(".", 1)[1].removesuffix("StateStoreProvider"),
                f"format{self.checkpoint_format}",
                "prefix" if self.prefix else "plain",
                *(f"{k.rsplit('.', 1)[-1]}={v}" for k, v in self.conf),
            ]
        )


def _variants() -> list[Variant]:
    found = [Variant(c, f, p, ()) for c in providers_to_test() for f, p in ((1, False), (2, True))]
    if MILLPOND in providers_to_test():
        # Values go up to 250 kB: such a budget is exceeded by single rows, so that rows leave memory at every step.
        found += [Variant(MILLPOND, f, p, (("millpond.memory.budget", "64k"),)) for f, p in ((1, True), (2, False))]
        found += [Variant(MILLPOND, 2, True, (("millpond.backend", "heap"),))]
    return found


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One JVM for all examples."""
    started = Harness(tmp_path_factory.mktemp("harness"))
    yield started
    started.stop()


def _keys(harness: Harness, prefix: bool) -> list[Row]:
    """Keys that Spark's shuffle would send to `PARTITION`, several to a prefix."""
    candidates: list[Row] = [[t, n] for t in TEXTS for n in (-1, 0, 1, 2, 3, 255, 256, 2**40, -(2**63), None)]
    hashed, schema = ([[k[0]] for k in candidates], "k string") if prefix else (candidates, Schema().key)
    places = harness.partitions_of(hashed, key_schema=schema, partitions=PARTITIONS)
    mine = [k for k, p in zip(candidates, places, strict=True) if p == PARTITION]
    assert len(mine) >= 10, mine
    return mine


class StoreMachine(RuleBasedStateMachine):
    """Two providers of one partition, as on two executors; one store open at a time."""

    harness: Harness
    variant: Variant
    keys: list[Row]

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint = Path(tempfile.mkdtemp(dir=self.harness.work_dir))
        self.root = write_spark_metadata(
            self.checkpoint,
            operator_name="sessionWindowStateStoreSaveExec" if self.variant.prefix else "stateStoreSave",
            partitions=PARTITIONS,
            prefix_columns=int(self.variant.prefix),
            provider_class=self.variant.provider_class,
        )
        self.model = Model(self.variant.checkpoint_format, self.variant.retain)
        self.providers: list[Provider | None] = [None, None]
        self.current = 0
        self.store: Store | None = None
        self.read: Store | None = None
        self.base: Node = (0, None)
        self.working: State = {}
        self.touched: set[str] = set()
        self.cursors: list[tuple[Cursor, State, State]] = []  # iterator, what it must yield, what it has yielded

    # -- providers ---------------------------------------------------------------------------------------------------

    def _provider(self, index: int) -> Provider:
        found = self.providers[index]
        if found is None:
            spec: dict[str, Any] = {"type": "prefix", "columns": 1} if self.variant.prefix else {"type": "none"}
            conf = short_conf(
                {
                    "checkpointFormatVersion": self.variant.checkpoint_format,
                    "minDeltasForSnapshot": 2,
                    "rocksdb.changelogCheckpointing.enabled": True,
                    "rocksdb.lockAcquireTimeoutMs": 2000,
                    **dict(self.variant.conf),
                    **(
                        {"millpond.gc.graceMs": 0, "millpond.gc.intervalMs": 0, "millpond.lock.acquireTimeoutMs": 2000}
                        if self.variant.provider_class == MILLPOND
                        else {}
                    ),
                }
            )
            conf |= {
                "spark.sql.streaming.minBatchesToRetain": str(self.variant.retain),
                "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
                "spark.sql.shuffle.partitions": str(PARTITIONS),
            }
            found = self.harness.open(
                self.root,
                provider_class=self.variant.provider_class,
                schema=Schema(spec=spec),
                conf=conf,
                partition=PARTITION,
            )
            self.providers[index] = found
        return found

    def _close(self, index: int) -> None:
        provider = self.providers[index]
        if provider is not None:
            self.providers[index] = None
            provider.close()

    def _open(self, call: Callable[[], Store]) -> Store:
        """Open a store.

        In format 1 an executor whose changelog another attempt replaced may say so once, before any row of the batch;
        the retry must succeed.
        """
        try:
            return call()
        except ProviderError as error:
            if self.variant.checkpoint_format == 2 or "MILLPOND_CHANGELOG_REPLACED" not in error.text:
                raise
            return call()

    def _forget_store(self) -> None:
        for cursor, _, _ in self.cursors:
            cursor.close()
        self.cursors, self.store, self.read, self.working, self.touched = [], None, None, {}, set()

    def _may_write(self, node: Node) -> bool:
        return self.variant.diverges or node[0] == self.model.newest

    # -- life of a store -----------------------------------------------------------------------------------------------

    @initialize()
    def first_commit(self) -> None:
        """Version 1 is there before anything else is tried."""
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
        """Ask for a version: mostly the newest, sometimes an older one, on either provider."""
        nodes = self.model.restorable()
        node = nodes[-1] if newest else data.draw(st.sampled_from(nodes))
        if how != "read" and not self._may_write(node):
            how = "read"
        provider = self._provider(index)
        self.current = index
        self.model.ask(node)
        self.base, self.working, self.touched = node, dict(self.model.states[node]), set()
        if how == "write":
            self.store = self._open(lambda: provider.store(node[0], node[1]))
            assert as_state(self.store.scan()) == self.working
            return
        read = self._open(lambda: provider.read_store(node[0], node[1]))
        assert as_state(read.scan()) == self.working
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
        """Write. Under pressure the store then reads its last changelogs, and without ids another executor may have put its
        attempt of a version in their place: the task fails, and its retry finds a store that was loaded again."""
        try:
            write()
        except ProviderError as e:
            if self.variant.checkpoint_format == 2 or not self.variant.conf or "CHANGELOG_REPLACED" not in e.text:
                raise
            for store in stores or ([self.store] if self.store else []):
                store.abort()
            self._forget_store()
            return True
        return False

    @precondition(lambda self: self.store is not None)
    @rule(key=st.integers(0, 9))
    def remove(self, key: int) -> None:
        """Remove a key, there or not."""
        assert self.store is not None
        if self._fails(partial(self.store.remove, self.keys[key])):
            return
        self.working.pop(canon(self.keys[key]), None)
        self.touched.add(canon(self.keys[key]))

    @precondition(lambda self: self.store is not None)
    @rule(key=st.integers(0, 9))
    def get(self, key: int) -> None:
        """Get, and keyExists."""
        assert self.store is not None
        expected = self.working.get(canon(self.keys[key]))
        assert self.store.get(self.keys[key]) == (None if expected is None else expected[1])
        assert self.store.exists(self.keys[key]) == (expected is not None)

    @precondition(lambda self: self.read is not None)
    @rule(key=st.integers(0, 9))
    def read_after_upgrade(self, key: int) -> None:
        """The read store keeps serving after its upgrade. What the writer changed meanwhile it may show old or new."""
        assert self.read is not None
        name = canon(self.keys[key])
        found = self.read.get(self.keys[key])
        allowed = [self.model.states[self.base].get(name), *([self.working.get(name)] if name in self.touched else [])]
        assert found in [None if pair is None else pair[1] for pair in allowed]

    @precondition(lambda self: self.store is not None)
    @rule()
    def scan(self) -> None:
        """The whole store, own writes included."""
        assert self.store is not None
        assert as_state(self.store.scan()) == self.working

    def _with_prefix(self, prefix: Any) -> State:
        return {name: pair for name, pair in self.working.items() if pair[0][0] == prefix}

    @precondition(lambda self: self.store is not None and self.variant.prefix)
    @rule(key=st.integers(0, 9))
    def prefix_scan(self, key: int) -> None:
        """All keys with one prefix, and no other."""
        assert self.store is not None
        prefix = self.keys[key][0]
        assert as_state(self.store.scan(scan="prefix", k=[prefix])) == self._with_prefix(prefix)

    @precondition(lambda self: self.store is not None and len(self.cursors) < 3)
    @rule(key=st.integers(0, 9), prefix=st.booleans())
    def iterator_open(self, key: int, prefix: bool) -> None:
        """Open an iterator: from here on it yields exactly what is there now."""
        assert self.store is not None
        if prefix and self.variant.prefix:
            value = self.keys[key][0]
            self.cursors.append((self.store.iterate(scan="prefix", k=[value]), self._with_prefix(value), {}))
        else:
            self.cursors.append((self.store.iterate(), dict(self.working), {}))

    @precondition(lambda self: bool(self.cursors))
    @rule(which=st.integers(0, 2), count=st.sampled_from([1, 1, 2, -1]), remove=st.booleans())
    def iterator_step(self, which: int, count: int, remove: bool) -> None:
        """Step one; sometimes remove each key before its pair is looked at, as eviction does."""
        cursor, expected, seen = self.cursors[which % len(self.cursors)]
        pairs: list[tuple[Row, Row]] = []
        step = partial(cursor.next, count, remove=remove, lazily=self.variant.provider_class == ROCKSDB)
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
        """Commit, with iterators closed or left half-read."""
        if close_iterators:
            for cursor, _, _ in self.cursors:
                cursor.close()
        self.commit()

    def commit(self) -> None:
        """Commit; version, ids and numKeys must be right."""
        assert self.store is not None
        done = self.store.commit()
        self._check(done, self.base)
        assert self.store.keys() == len(self.working)
        rewrites = self.variant.checkpoint_format == 1 and done.version <= self.model.newest
        self.model.add((done.version, done.id), self.base, self.working)
        self._forget_store()
        if (
            rewrites
        ):  # without ids nothing tells another executor that its copy is stale; Spark would not use it again either
            self._close(1 - self.current)

    def _check(self, done: Commit, base: Node) -> None:
        assert done.version == base[0] + 1
        if self.variant.checkpoint_format == 1:
            assert done.id is None and done.base_id is None
        else:
            assert done.id is not None and (done.version, done.id) not in self.model.states
            assert done.base_id == base[1]

    @precondition(lambda self: self.store is not None)
    @rule()
    def abort(self) -> None:
        """Abort: nothing of it is ever seen again."""
        assert self.store is not None
        self.store.abort()
        self._forget_store()

    @precondition(lambda self: self.store is None)
    @rule(writes=st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=3), other=st.integers(0, 9))
    def two_attempts(self, writes: list[tuple[int, tuple[str | None, int | None]]], other: int) -> None:
        """Two executors commit the same version.

        With ids each keeps its own, different state; without, the attempts are equal.
        """
        base = self.model.restorable()[-1]
        if not self._may_write(base):
            return
        self.model.ask(base)
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

    # -- around it
    # ------------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 1), what=st.sampled_from(["snapshot", "snapshot", "cleanup"]))
    def maintenance(self, index: int, what: str) -> None:
        """Spark's maintenance threads, also while a task has the store open."""
        provider = self.providers[index]
        if provider is not None:
            provider.snapshot() if what == "snapshot" else provider.cleanup()

    @precondition(lambda self: self.store is None)
    @rule(index=st.integers(0, 1))
    def new_provider(self, index: int) -> None:
        """The provider is unloaded; the next one starts from storage."""
        self._close(index)

    def teardown(self) -> None:
        """At the end every version that Spark may ask for reads right from storage alone."""
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


@pytest.mark.parametrize("variant", _variants(), ids=lambda v: v.name)
def test_store_equals_a_dict_per_version(harness: Harness, variant: Variant) -> None:
    """Whatever the order of operations, every version holds what was committed into it."""
    given, mine = variant, _keys(harness, variant.prefix)

    class Machine(StoreMachine):
        variant = given
        keys = mine

    Machine.harness = harness
    # Spark's store, some ten times slower to open and commit, is here to prove the rules, not to be tested
    examples = EXAMPLES if variant.provider_class == MILLPOND else max(EXAMPLES // 10, 1)
    print(f"hypothesis: derandomised, {examples} examples of {STEPS} steps")
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )
