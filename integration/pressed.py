"""A store with several times as many rows as its memory budget holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.depth import by_turns
from integration.harness import Harness, Provider, Row, Schema, Store, short_conf
from integration.jvm import MILLPOND
from integration.store_model import write_spark_metadata

BUDGET = "256k"
ROWS = 4000  # about a megabyte in memory, with overhead: several times the budget
KINDS = {
    "point": Schema(),
    "prefix": Schema(spec={"type": "prefix", "columns": 1}),
    "range": Schema(key="n bigint, k string", spec={"type": "range", "ordinals": [0]}),
}


@dataclass
class Bench:
    """One store of a new Spark checkpoint, and the rows that its versions hold."""

    harness: Harness
    checkpoint: Path
    kind: str = "point"
    checkpoint_format: int = 1
    ids: list[str | None] = field(default_factory=lambda: [None])
    versions: list[dict[int, str]] = field(default_factory=lambda: [{}])

    def __post_init__(self) -> None:
        write_spark_metadata(
            self.checkpoint, operator_name="stateStoreSave", partitions=1, provider_class=MILLPOND
        )

    def provider(self, **options: Any) -> Provider:
        """Return a new provider."""
        settings = {"memory.budget": BUDGET, **options}
        conf = short_conf(
            {
                "checkpointFormatVersion": self.checkpoint_format,
                "minDeltasForSnapshot": 1,
                **{f"millpond.{k}": v for k, v in settings.items()},
            }
        ) | {"spark.sql.shuffle.partitions": "1"}
        schema = KINDS[self.kind]
        root = self.checkpoint / "state"
        return self.harness.open(root, provider_class=MILLPOND, schema=schema, conf=conf)

    def key(self, i: int) -> Row:
        """Return key number `i`."""
        return [i, "k"] if self.kind == "range" else [f"group {i % 7}", i]

    def number(self, key: Row) -> int:
        """Return the number of a key."""
        return int(key[0] if self.kind == "range" else key[1])

    def rows(self, store: Store) -> dict[int, str]:
        """Return all rows. Check that each comes once, and that ordered kinds are in order."""
        found = store.scan()
        numbers = [self.number(k) for k, _ in found]
        assert len(set(numbers)) == len(numbers), "a key came twice"
        if self.kind == "range":
            assert numbers == sorted(numbers)
        return {self.number(k): str(v[0]) for k, v in found}

    def put(self, store: Store, rows: dict[int, str]) -> None:
        """Put rows."""
        store.put_many([(self.key(i), [v, i]) for i, v in rows.items()])

    def commit(self, store: Store, rows: dict[int, str]) -> None:
        """Commit, and note the rows of the version."""
        done = store.commit()
        assert done.version == len(self.versions)
        self.versions.append(rows)
        self.ids.append(done.id)
        assert store.keys() == len(rows)

    def fill(self, store: Store, state: dict[int, str], tag: str) -> dict[int, str]:
        """Write more than the budget: new rows first.

        Then change, remove and put back rows that the batch has spilled by then. Return all rows.
        """
        state = {**state, **{i: f"{tag} {i} " + "x" * 40 for i in range(ROWS)}}
        self.put(store, state)
        again = {i: f"{tag} again {i}" for i in range(0, ROWS, 3)}
        self.put(store, again)
        state |= again
        for i in range(1, ROWS, 40):
            store.remove(self.key(i))
            del state[i]
        for i in range(1, ROWS, 80):
            self.put(store, {i: "back"})
            state[i] = "back"
        return state

    def check(self, version: int, **options: Any) -> None:
        """Check a version by a new provider."""
        provider = self.provider(**options)
        store = provider.read_store(version, self.ids[version])
        assert self.rows(store) == self.versions[version]
        store.release()
        provider.close()


@pytest.fixture(
    params=[pytest.param(p.values, marks=p.marks) for p in by_turns(KINDS)],
    ids=lambda p: f"{p[0]}-format{p[1]}",
)
def store_of_each_kind(request: pytest.FixtureRequest, harness: Harness, tmp_path: Path) -> Bench:
    """Return a store of each kind, in both Spark checkpoint formats."""
    return Bench(harness, tmp_path / "checkpoint", *request.param)


def custom(store: Store, name: str) -> int:
    return int(store.metrics()["custom"][name])
