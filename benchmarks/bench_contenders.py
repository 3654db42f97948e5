# SPDX-License-Identifier: Apache-2.0
"""The contenders: each is a provider class with session options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

# Bytes of one row in a store: two UnsafeRows of two longs, version bytes, slot prefix.
KEY_AND_VALUE_BYTES = 60
_STATE = "spark.sql.streaming.stateStore."
_SPARK_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
MILLPOND_PROVIDER = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"
MILLPOND_EXTENSION = "org.apache.spark.sql.millpond.MillpondExtension"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to keep state.

    Attributes:
        name: the word for `--contenders`.
        label: the head of its column.
        durability: what `commit` guarantees on a local `file:` Spark checkpoint when it returns.
        conf: session options, with the provider class.
        ours: it needs Millpond's jar.
        snapshot_phase: it takes part in the phase with a concurrent snapshot.
        scans: it takes part in the level of the scans.
        queries: the query scenarios that it runs (`bench_query.SCENARIOS`).
        budget_share: Millpond's `memory.budget` as a share of the state's bytes. None: the default,
            30 % of the heap; if that cannot hold the state, `bench_store.WHOLE_SHARE`.
        on_heap: it keeps state on the JVM's heap.
    """

    name: str
    label: str
    durability: str
    conf: dict[str, str]
    ours: bool = False
    snapshot_phase: bool = True
    scans: bool = False
    queries: tuple[str, ...] = field(default=())
    budget_share: float | None = None
    on_heap: bool = False

    def heap_mib(self, scale: float) -> int:
        """Return the heap of its processes at `scale` million keys, in MiB.

        It grows only for a contender with state on the heap.
        """
        return int(2048 + (1024 * scale if self.on_heap else 0))

    def bounded(self, mib: float) -> dict[str, str]:
        """Return the options that bound its memory for the state of all stores."""
        if self.ours:
            return {f"{_STATE}millpond.memory.budget": str(int(mib * 2**20))}
        return {
            f"{_STATE}rocksdb.boundedMemoryUsage": "true",
            f"{_STATE}rocksdb.maxMemoryUsageMB": str(max(1, round(mib))),
        }


def _provider(class_name: str) -> dict[str, str]:
    return {_STATE + "providerClass": class_name}


def _millpond(**options: str) -> dict[str, str]:
    options = {"agent__driverPython": sys.executable} | options
    conf = _provider(MILLPOND_PROVIDER) | {"spark.sql.extensions": MILLPOND_EXTENSION}
    return conf | {
        f"{_STATE}millpond.{name.replace('__', '.')}": value for name, value in options.items()
    }


def _rocksdb(*, changelog: bool) -> dict[str, str]:
    conf = _provider(_SPARK_PROVIDERS + "RocksDBStateStoreProvider")
    return conf | {_STATE + "rocksdb.changelogCheckpointing.enabled": str(changelog).lower()}


_ALL_QUERIES = ("aggregation", "join", "session", "partitions200", "pandas")

CONTENDERS: dict[str, Contender] = {
    c.name: c
    for c in (
        Contender(
            name="millpond",
            label="Millpond",
            durability="fsync",
            conf=_millpond(),
            ours=True,
            scans=True,
            queries=_ALL_QUERIES,
        ),
        Contender(
            name="millpond-nofsync",
            label="Millpond, no fsync",
            durability="page cache",
            conf=_millpond(commit__fsync="false"),
            ours=True,
            snapshot_phase=False,
        ),
        Contender(
            name="millpond-quarter",
            label="Millpond, memory for a quarter",
            durability="fsync",
            conf=_millpond(),
            ours=True,
            snapshot_phase=False,
            budget_share=0.25,
        ),
        Contender(
            name="rocksdb-changelog",
            label="RocksDB, changelog",
            durability="page cache",
            conf=_rocksdb(changelog=True),
            scans=True,
            queries=_ALL_QUERIES,
        ),
        Contender(
            name="rocksdb-snapshot",
            label="RocksDB, snapshot per batch",
            durability="page cache",
            conf=_rocksdb(changelog=False),
            snapshot_phase=False,
            queries=("aggregation",),
        ),
        Contender(
            name="hdfs",
            label="HDFSBacked (heap)",
            durability="page cache",
            conf=_provider(_SPARK_PROVIDERS + "HDFSBackedStateStoreProvider"),
            on_heap=True,
            queries=("aggregation",),
        ),
    )
}

OURS = "millpond"
OURS_QUARTER = "millpond-quarter"
BASELINE = "rocksdb-changelog"
# No stores, so not in the table. The same rows through the same shuffle without state show what
# Spark itself takes.
STATELESS = "stateless"
FLINK = "flink"
HEAP_PEER = "hdfs"


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Return the names, with another first each time: a machine has better and worse minutes."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def parse(names: str) -> list[Contender]:
    """Return the contenders of a comma-separated list, in its order, without duplicates.

    Raises: ValueError: a name is unknown or the list is empty.
    """
    wanted = list(dict.fromkeys(n.strip() for n in names.split(",") if n.strip()))
    unknown = [n for n in wanted if n not in CONTENDERS]
    if unknown or not wanted:
        raise ValueError(f"unknown contenders {unknown}; there are {', '.join(CONTENDERS)}")
    return [CONTENDERS[n] for n in wanted]
