"""The common part of the state machines over a provider.

It has two executors' providers of one partition, and Spark's maintenance.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from integration.harness import (
    Commit,
    Cursor,
    Harness,
    Provider,
    ProviderError,
    Row,
    Schema,
    Store,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.store_model import Model, Node, State

PARTITIONS, PARTITION = 4, 2
RETAIN = 6
# Hypothesis runs the machine some hundred times to shrink a failure. CI does not do that: it prints
# the whole sequence.
PHASES = (
    (Phase.generate, Phase.shrink)
    if os.environ.get("MILLPOND_MACHINE_SHRINK")
    else (Phase.generate,)
)


@dataclass(frozen=True)
class Variant:
    """The setting of one run of a machine."""

    provider_class: str
    checkpoint_format: int
    conf: tuple[tuple[str, str], ...]
    shape: str  # the operator whose store it is

    @property
    def diverges(self) -> bool:
        """Return whether an attempt may write a version again with other content.

        With ids it may. Without ids only Millpond allows it.
        """
        return self.checkpoint_format == 2 or self.provider_class == MILLPOND

    @property
    def retain(self) -> int:
        """Return the number of batches to keep.

        Spark's RocksDB store may count the snapshot of a lost attempt, and then delete files of the
        winner. With 100 batches it deletes nothing.
        """
        return RETAIN if self.provider_class == MILLPOND else 100

    @property
    def name(self) -> str:
        """Return the name in the test id."""
        return "-".join(
            [
                self.provider_class.rsplit(".", 1)[1].removesuffix("StateStoreProvider"),
                f"format{self.checkpoint_format}",
                self.shape,
                *(f"{k.rsplit('.', 1)[-1]}={v}" for k, v in self.conf),
            ]
        )


class ProviderMachine(RuleBasedStateMachine):
    """Two providers of one partition, as on two executors. One store is open at a time."""

    harness: Harness
    variant: Variant
    schema: Schema  # of the default column family

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint = Path(tempfile.mkdtemp(dir=self.harness.work_dir))
        self.root = self.write_metadata()
        self.model = Model(self.variant.checkpoint_format, self.variant.retain)
        self.providers: list[Provider | None] = [None, None]
        self.current = 0
        self.anchors = [0, 0]  # the newest version that Spark asked of each provider
        self.store: Store | None = None
        self.read: Store | None = None
        self.base: Node = (0, None)
        self.working: State = {}
        self.touched: set[str] = set()
        self.cursors: list[
            tuple[Cursor, State, State]
        ] = []  # iterator, the rows that it must yield, the rows that it yielded

    def write_metadata(self) -> Path:
        """Write the driver's files into `checkpoint`. Return its state directory."""
        raise NotImplementedError

    def _provider(self, index: int) -> Provider:
        found = self.providers[index]
        if found is None:
            conf = short_conf(
                {
                    "checkpointFormatVersion": self.variant.checkpoint_format,
                    "minDeltasForSnapshot": 2,
                    "rocksdb.changelogCheckpointing.enabled": True,
                    "rocksdb.lockAcquireTimeoutMs": 2000,
                    "rocksdb.mergeOperatorVersion": 2,
                    **dict(self.variant.conf),
                    **(
                        {
                            "millpond.gc.graceMs": 0,
                            "millpond.gc.intervalMs": 0,
                            "millpond.lock.acquireTimeoutMs": 2000,
                        }
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
                schema=self.schema,
                conf=conf,
                partition=PARTITION,
            )
            self.providers[index] = found
        return found

    def _ask(self, index: int, node: Node) -> None:
        """Note that Spark asks provider `index` for `node`.

        Spark asks for a version below another executor's only after a restart of the query. The
        restart ends the other provider. If it lived on, it would collect the new attempt, because
        these tests have no grace period.
        """
        self.model.ask(node)
        if node[0] < self.anchors[1 - index]:
            self._close(1 - index)
        self.anchors[index] = max(node[0], self.anchors[index])

    def _close(self, index: int) -> None:
        provider = self.providers[index]
        self.anchors[index] = 0
        if provider is not None:
            self.providers[index] = None
            provider.close()

    def _open(self, call: Callable[[], Store]) -> Store:
        """Open a store.

        In format 1 another attempt may replace an executor's changelog. The executor may then
        refuse once, before any row of the batch. The retry must succeed.
        """
        try:
            return call()
        except ProviderError as error:
            if (
                self.variant.checkpoint_format == 2
                or "MILLPOND_CHANGELOG_REPLACED" not in error.text
            ):
                raise
            return call()

    def _may_write(self, node: Node) -> bool:
        return self.variant.diverges or node[0] == self.model.newest

    def _check(self, done: Commit, base: Node) -> None:
        assert done.version == base[0] + 1
        if self.variant.checkpoint_format == 1:
            assert done.id is None and done.base_id is None
        else:
            assert done.id is not None and (done.version, done.id) not in self.model.states
            assert done.base_id == base[1]

    def _forget_store(self) -> None:
        """The open store has ended: close its cursors, and forget what it must hold."""
        raise NotImplementedError

    def _committed(self, done: Commit, state: State) -> None:
        rewrites = self.variant.checkpoint_format == 1 and done.version <= self.model.newest
        self.model.add((done.version, done.id), self.base, state)
        self._forget_store()
        # Without ids the other executor cannot know that its copy is stale. Spark would not use
        # that copy again either.
        if rewrites:
            self._close(1 - self.current)

    @precondition(lambda self: self.store is not None)
    @rule()
    def abort(self) -> None:
        """Abort. No later read sees its rows, or its new and dropped families."""
        assert self.store is not None
        self.store.abort()
        self._forget_store()

    @rule(index=st.integers(0, 1), what=st.sampled_from(["snapshot", "snapshot", "cleanup"]))
    def maintenance(self, index: int, what: str) -> None:
        """Spark maintains a provider, perhaps while a task has the store open."""
        provider = self.providers[index]
        if provider is not None:
            provider.snapshot() if what == "snapshot" else provider.cleanup()

    @precondition(lambda self: self.store is None)
    @rule(index=st.integers(0, 1))
    def new_provider(self, index: int) -> None:
        """Spark unloads the provider. The next one starts from storage."""
        self._close(index)


def in_partition(
    harness: Harness, candidates: list[Row], hashed: list[Row], key_schema: str
) -> list[Row]:
    """Return the candidates that Spark's shuffle sends to `PARTITION`, by the hash of `hashed`."""
    places = harness.partitions_of(hashed, key_schema=key_schema, partitions=PARTITIONS)
    return [k for k, p in zip(candidates, places, strict=True) if p == PARTITION]


def few_first(variants: Sequence[Variant], few: int, examples: int, *, of_spark: int) -> list[Any]:
    """Return variants with their number of examples, for `parametrize`. All of them are deep. The
    first one comes with few examples before, and is not.

    Args:
        of_spark: the examples of Spark's store, which only proves the rules. It opens and commits
            ten times slower.
    """
    first = variants[0]
    found = []
    for variant in variants:
        count = examples if variant.provider_class == MILLPOND else max(of_spark, 1)
        name = variant.name
        if variant is first:
            found.append(pytest.param(first, min(few, count), id=name))
            name += "-more"
        found.append(pytest.param(variant, count, id=name, marks=pytest.mark.deep))
    return found


def run_machine(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a machine on derandomised examples.

    A failure prints its sequence. The next run repeats it.
    """
    print(f"hypothesis: derandomised, {examples} examples of {steps} steps")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )
