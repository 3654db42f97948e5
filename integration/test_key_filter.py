"""A store beyond its memory tells in memory that a key is new, and denies no key that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.harness import Harness, Numbered, Provider, millponds_own, module_harness
from integration.store_cases import open_small

pytestmark = [pytest.mark.spark, millponds_own]

ROWS = 20_000  # several times the budget
MOST_BATCHES = 200

harness = module_harness


def _until_no_read(provider: Provider, version: int) -> int:
    """Ask for absent keys, a batch each time, until the disk is hardly read. Return the version."""
    absent = [[k] for k in range(10 * ROWS, 10 * ROWS + 500)]
    for _ in range(MOST_BATCHES):
        store = provider.store(version)
        assert store.multi_get(absent) == [None] * len(absent)
        assert store.commit().version == version + 1
        version += 1
        if int(store.metrics()["custom"]["millpondDiskReads"]) < len(absent) // 5:
            return version
    raise AssertionError("absent keys are looked up on disk")


def test_absent_keys_need_no_disk(harness: Harness, tmp_path: Path) -> None:
    """Keys come, go and come back, in the tier's first files and in later ones; also restored."""
    checkpoint = tmp_path / "checkpoint"
    provider = open_small(harness, checkpoint, "512k")
    layers = [Numbered(ROWS, "first", 20)]
    store = provider.store(0)
    store.put_numbered(layers[0])
    version = store.commit().version
    version = _until_no_read(provider, version)
    for layer in (
        Numbered(2 * ROWS, "new", 20, first=ROWS),
        Numbered(ROWS, "", first=0, step=3),
        Numbered(ROWS, "back", 30, first=0, step=6),
    ):
        store = provider.store(version)
        store.put_numbered(layer)
        version = store.commit().version
        layers.append(layer)
        store = provider.read_store(version)
        store.check_numbered(layers)
        store.release()
    version = _until_no_read(provider, version)
    store = provider.store(version)
    store.abort()
    provider.snapshot()
    provider.close()
    provider = open_small(harness, checkpoint, "512k")
    version = _until_no_read(provider, version)
    store = provider.store(version)
    store.check_numbered(layers)
    late = Numbered(3 * ROWS, "late", 20, first=2 * ROWS)
    store.put_numbered(late)
    version = store.commit().version
    store = provider.read_store(version)
    store.check_numbered([*layers, late])
    store.release()
    provider.close()
