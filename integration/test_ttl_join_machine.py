"""The two stores of a side of a join whose rows end, beside a model with a clock: any order of
batches, failures between two commits, attempts that are repeated, restores, and snapshots.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from integration.harness import Harness, ProviderError, Schema, millponds_own
from integration.provider import Provider, Store, Timed
from integration.store_cases import open_provider
from integration.ttl_machine import Versions, batches_of, in_each_tier, play
from integration.ttl_model import Aged

pytestmark = millponds_own

EXAMPLES = int(os.environ.get("MILLPOND_TTL_EXAMPLES", "10"))
_KEYS = [["", 0], ["a", None], ["ü€" * 9, 1]]
_STORES = {
    "left-keyToNumValues": Schema("k string, n bigint", "value bigint"),
    "left-keyWithIndexToValue": Schema("k string, n bigint, index bigint", "v string, matched int"),
}
_COUNTS, _ROWS = _STORES

_BATCHES = batches_of(
    {
        "writes": st.lists(
            st.tuples(
                st.integers(0, len(_KEYS) - 1),
                st.sampled_from(["append"] * 5 + ["large"] + ["remove"] * 2),
                st.integers(0, 5),
            ),
            max_size=9,
        ),
        "ends": st.sampled_from(["commit"] * 5 + ["abort", "again", "half"]),
        "then": st.sampled_from([""] * 4 + ["snapshot", "restore", "restore-one"]),
    }
)


class _Machine:
    """Both stores over their versions, and the model of each: rows by key and number."""

    def __init__(self, harness: Harness, directory: Path, conf: dict[str, Any]) -> None:
        self.run_id = str(uuid.uuid4())
        self.harness, self.directory, self.conf = harness, directory, conf
        self.providers = {name: self._open(name) for name in _STORES}
        self.versions: Versions[tuple[str, str], None] = Versions()
        self.number = 0

    def _open(self, name: str) -> Provider:
        return open_provider(
            self.harness,
            self.directory,
            schema=_STORES[name],
            operator="symmetricHashJoin",
            store=name,
            conf=self.conf,
            run_id=self.run_id,
        )

    def run(self, batch: dict[str, Any]) -> None:
        """Run one batch."""
        version, model, timed, ended = self.versions.begin(batch)
        counts, rows = (self.providers[name].store(version, timed=timed) for name in _STORES)
        self._check(counts, rows, model)
        for key, what, which in batch["writes"]:
            if what == "remove":
                self._remove(counts, rows, model, _KEYS[key], which, timed)
            else:
                self._append(counts, rows, model, _KEYS[key], 9000 * (what == "large"), timed)
        self._check(counts, rows, model)
        if batch["ends"] == "abort":
            counts.abort()
            rows.abort()
        elif batch["ends"] == "half":
            counts.commit()
            rows.abort()
        else:
            counts.commit()
            rows.commit()
            metrics = rows.metrics()
            assert metrics["keys"] == len(model.rows)
            assert metrics["custom"]["millpondExpiredRows"] == ended
            assert counts.metrics()["custom"]["millpondExpiredRows"] == 0
            self.versions.models.append(model)
        for name in {"restore": [_COUNTS, _ROWS], "restore-one": [_ROWS]}.get(batch["then"], []):
            self.providers[name].close()
            self.providers[name] = self._open(name)
        if batch["then"] == "snapshot":
            for provider in self.providers.values():
                provider.snapshot()

    def close(self) -> None:
        """Close both stores."""
        for provider in self.providers.values():
            provider.close()

    def _append(
        self, counts: Store, rows: Store, model: Any, key: list[Any], size: int, timed: Any
    ) -> None:
        before = (counts.get(key) or [0])[0]
        self.number += 1
        text = f"{self.number}-" + "w" * size
        rows.put([*key, before], [text, 0])
        counts.put(key, [before + 1])
        model.write((repr(key), text), None, timed)

    def _remove(
        self, counts: Store, rows: Store, model: Any, key: list[Any], which: int, timed: Any
    ) -> None:
        """Remove a row as Spark's join does."""
        texts = sorted(text for of, text in model.rows if of == repr(key))
        if not texts:
            return
        text = texts[which % len(texts)]
        (before,) = counts.get(key) or [0]
        found = [rows.get([*key, index]) for index in range(before)]
        index, last = found.index([text, 0]), found[-1]
        assert last is not None
        if index != before - 1:
            rows.put([*key, index], last)
            model.write((repr(key), last[0]), None, timed)
        rows.remove([*key, before - 1])
        del model.rows[repr(key), text]
        if before == 1:
            counts.remove(key)
        else:
            counts.put(key, [before - 1])

    @staticmethod
    def _check(counts: Store, rows: Store, model: Aged[tuple[str, str], None]) -> None:
        found, indexes = [], defaultdict(list)
        for (*key, index), (text, _) in rows.scan():
            found.append((repr(key), text))
            indexes[repr(key)].append(index)
        assert sorted(found) == sorted(model.rows)
        assert {repr(key): list(range(count)) for key, (count,) in counts.scan()} == {
            key: sorted(those) for key, those in indexes.items()
        }


@in_each_tier
def test_rows_end_as_in_the_model(harness: Harness, tmp_path: Path, conf: dict[str, Any]) -> None:
    play(
        lambda checkpoint: _Machine(harness, checkpoint, conf),
        _BATCHES,
        tmp_path,
        examples=EXAMPLES,
    )


def test_many_rows_of_a_key_end_at_once(harness: Harness, tmp_path: Path) -> None:
    """More than one lock spans, and those that stay are between them."""
    machine = _Machine(harness, tmp_path / "checkpoint", {})
    many = [(0, "append", 0)] * 700
    batch = {"passes_ms": 0, "ttl_ms": 10_000, "writes": many, "ends": "commit", "then": ""}
    machine.run(batch)
    machine.run({**batch, "passes_ms": 9000, "writes": [(0, "append", 0), (1, "append", 0)]})
    machine.run({**batch, "passes_ms": 2000, "writes": []})
    assert len(machine.versions.models[-1].rows) == 2
    machine.run({**batch, "passes_ms": 9000, "writes": []})
    assert not machine.versions.models[-1].rows


def test_rows_whose_counts_are_not_open_do_not_end(harness: Harness, tmp_path: Path) -> None:
    """Nor those whose counts are open on another version."""
    machine = _Machine(harness, tmp_path / "checkpoint", {})
    batch = {"passes_ms": 0, "ttl_ms": 10_000, "ends": "commit", "then": ""}
    machine.run({**batch, "writes": [(0, "append", 0)]})
    machine.run({**batch, "writes": [(0, "append", 0)]})
    rows, counts = machine.providers[_ROWS], machine.providers[_COUNTS]
    timed = Timed(machine.versions.now_ms + 20_000, 10_000)
    message = "did not open left-keyToNumValues of operator 0, partition 0, on version 2"
    with pytest.raises(ProviderError, match=message):
        rows.store(2, timed=timed)
    other = counts.store(1, timed=timed)
    with pytest.raises(ProviderError, match=message):
        rows.store(2, timed=timed)
    other.abort()
    machine.run({**batch, "passes_ms": 20_000, "writes": []})
    assert not machine.versions.models[-1].rows
