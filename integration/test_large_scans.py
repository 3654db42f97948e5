# SPDX-License-Identifier: Apache-2.0
"""Scans of large rows: they take no more of the heap than a few of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.harness import Harness, providers_to_test
from integration.jvm import MILLPOND
from integration.provider import Numbered, Provider, Schema
from integration.store_cases import open_provider

pytestmark = pytest.mark.spark

KIB, MIB = 1 << 10, 1 << 20
_SCHEMA = Schema("k bigint", "v string")


@pytest.fixture(params=providers_to_test(), ids=lambda c: c.rsplit(".", 1)[1])
def provider_class(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _open(harness: Harness, checkpoint: Path, provider_class: str, **options: str) -> Provider:
    return open_provider(
        harness,
        checkpoint,
        provider_class=provider_class,
        schema=_SCHEMA,
        operator="dedupe",
        conf={f"millpond.{k.replace('_', '.')}": v for k, v in options.items()},
    )


def _fill(provider: Provider, layer: Numbered) -> None:
    """Commit version 1, and make a snapshot of it."""
    store = provider.store(0)
    store.put_numbered(layer)
    store.commit()
    provider.store(1).abort()  # proves version 1
    provider.snapshot()


def test_a_scan_fetches_few_large_rows_at_once_and_keeps_none_that_it_gave_out(
    harness: Harness, tmp_path: Path, provider_class: str
) -> None:
    def scan(provider: Provider) -> None:
        store = provider.read_store(1)

        def costs(rows: int) -> dict[str, Any]:
            return dict(harness.call("scan_costs", s=store.name, rows=rows))

        costs(2)  # loads classes
        found = costs(90)
        assert found["rows"] == 90
        assert found["most"] < 2 * MIB
        assert found["kept"] == 0
        assert costs(1000)["rows"] == 100
        store.release()
        provider.close()

    provider = _open(harness, tmp_path, provider_class)
    _fill(provider, Numbered(100, "row", 256 * KIB))
    scan(provider)
    scan(_open(harness, tmp_path, provider_class, restore_warmUp="false"))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("provider_class", "budget"),
    [(c, b) for c in providers_to_test() for b in ("1g", "32m") if c == MILLPOND or b == "1g"],
    indirect=["provider_class"],
    ids=lambda v: v.rsplit(".", 1)[-1],
)
def test_rows_of_more_than_the_heap_are_scanned(
    tmp_path: Path, provider_class: str, budget: str
) -> None:
    """With the small budget they lie in many sorted files, which the scan merges."""
    layer = Numbered(80, "row", 4 * MIB)
    # of a heap this small Spark would reserve all
    harness = Harness(tmp_path, heap="256m", conf={"spark.testing.reservedMemory": "0"})
    options = {"memory_budget": budget, "restore_warmUp": "false"}
    provider = _open(harness, tmp_path / "checkpoint", provider_class, **options)
    _fill(provider, layer)
    for _ in range(2):
        store = provider.read_store(1)
        assert store.check_numbered([layer]) == layer.until
        store.release()
        provider.close()
        provider = _open(harness, tmp_path / "checkpoint", provider_class, **options)
    provider.close()
    harness.stop()
