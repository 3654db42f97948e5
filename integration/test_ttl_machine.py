"""A store whose rows end, beside a model with a clock: any order of batches, aborts, attempts that
are repeated, restores, snapshots, and changes of the time to live.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from integration.harness import Harness, Schema, millponds_own
from integration.provider import Provider, Store
from integration.store_cases import open_provider
from integration.ttl_machine import Versions, batches_of, in_each_tier, play
from integration.ttl_model import Aged, age_of
from millpond.model.ids import StoreId, VersionId
from millpond.storage.local import LocalStorage
from millpond.store.entries import entries, open_version
from millpond.store.files import StoreFiles

pytestmark = millponds_own

PLAIN = Schema("k string, n bigint", "v string")
EXAMPLES = int(os.environ.get("MILLPOND_TTL_EXAMPLES", "12"))
_KEYS = [[text, number] for text in ("", "a", "ü€") for number in (0, 1, None)]

_BATCHES = batches_of(
    {
        "writes": st.lists(
            st.tuples(st.integers(0, len(_KEYS) - 1), st.sampled_from([None, "v", "w" * 30_000])),
            max_size=7,
        ),
        "reads_first": st.booleans(),
        "ends": st.sampled_from(["commit"] * 5 + ["abort", "again"]),
        "then": st.sampled_from([""] * 4 + ["snapshot", "restore"]),
    }
)


class _Machine:
    """One store over its versions, and the model of each."""

    def __init__(self, harness: Harness, directory: Path, conf: dict[str, Any]) -> None:
        self.harness, self.directory, self.conf = harness, directory, conf
        self.provider = self._open()
        self.versions: Versions[str, list[Any]] = Versions()

    def _open(self) -> Provider:
        return open_provider(
            self.harness, self.directory, schema=PLAIN, operator="dedupe", conf=self.conf
        )

    def run(self, batch: dict[str, Any]) -> None:
        """Run one batch."""
        version, model, timed, ended = self.versions.begin(batch)
        if batch["reads_first"]:
            read = self.provider.read_store(version, timed=timed)
            self._check(read, model)
            store = self.provider.upgrade(read, version, timed=timed)
        else:
            store = self.provider.store(version, timed=timed)
        self._check(store, model)
        for number, value in batch["writes"]:
            key = _KEYS[number]
            if value is None:
                store.remove(key)
                model.rows.pop(repr(key), None)
            else:
                store.put(key, [value])
                model.write(repr(key), [value], timed)
        self._check(store, model)
        if batch["ends"] == "abort":
            store.abort()
        else:
            store.commit()
            metrics = store.metrics()
            assert metrics["keys"] == len(model.rows)
            assert metrics["custom"]["millpondExpiredRows"] == ended
            self.versions.models.append(model)
        if batch["then"] == "snapshot":
            self.provider.snapshot()
        elif batch["then"] == "restore":
            self.provider.close()
            self.provider = self._open()

    def _check(self, store: Store, model: Aged[str, list[Any]]) -> None:
        found = store.scan()
        assert len(found) == len(model.rows)
        assert {repr(key): value for key, value in found} == model.values()
        for key in _KEYS[:3]:
            assert store.get(key) == model.values().get(repr(key))

    def check_ages(self) -> None:
        """Check the ages of the newest version, as they lie on storage."""
        storage = LocalStorage(str(self.directory))
        newest = VersionId(len(self.versions.models) - 1, "")
        found: list[int | None] = []
        if newest.version:
            with entries(open_version(StoreFiles(storage, StoreId(0, 0), 1), newest)) as stored:
                found = [age_of(value) for _, value in stored]
        assert Counter(found) == Counter(age for _, age in self.versions.models[-1].rows.values())

    def close(self) -> None:
        """Close the store."""
        self.provider.close()


@in_each_tier
def test_rows_end_as_in_the_model(harness: Harness, tmp_path: Path, conf: dict[str, Any]) -> None:
    play(
        lambda checkpoint: _Machine(harness, checkpoint, conf),
        _BATCHES,
        tmp_path,
        examples=EXAMPLES,
        at_end=_Machine.check_ages,
    )
