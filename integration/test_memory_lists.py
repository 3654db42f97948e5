"""Lists of values that outgrow the memory budget, or what a list may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.harness import Harness, Provider, ProviderError, Schema, millponds_own, short_conf
from integration.jvm import MILLPOND
from integration.pressed import Bench

pytestmark = [pytest.mark.spark, millponds_own]


@pytest.mark.deep
def test_a_flush_has_no_more_than_the_old_and_the_new_value_of_a_list_in_memory(
    tmp_path: Path,
) -> None:
    """A thread of the executor flushes. Without memory it would end the executor."""
    megabytes = 1 << 20
    schema = Schema("k string, n bigint", "v string", multi=True)
    harness = Harness(tmp_path, heap="960m")
    bench = Bench(harness, tmp_path / "checkpoint")
    conf = short_conf({"millpond.memory.budget": "1g", "minDeltasForSnapshot": 1})
    try:
        provider = harness.open(
            bench.checkpoint / "state",
            provider_class=MILLPOND,
            schema=schema,
            conf=conf | {"spark.sql.shuffle.partitions": "1"},
        )
        store = provider.store(0)
        for _ in range(8):
            store.merge_blanks(["a", 1], 30 * megabytes)
        store.commit()
        store = provider.store(1)
        store.merge(["a", 1], ["more"])
        store.commit()
        provider.store(2).abort()
        provider.snapshot()
        assert list(bench.checkpoint.glob("state/0/0/2*.manifest"))
        provider.close()
    finally:
        harness.stop()


@pytest.mark.deep
def test_a_list_that_grows_too_large_is_refused_and_what_was_taken_can_be_read(
    tmp_path: Path,
) -> None:
    """A list may have 512 MiB.

    Earlier versions committed lists of a gigabyte, and could not read their changelogs.
    """
    megabytes, budget = 1 << 20, {"millpond.memory.budget": "4g"}
    schema = Schema("k string, n bigint", "v string", multi=True)
    harness = Harness(tmp_path, heap="3g")
    bench = Bench(harness, tmp_path / "checkpoint")
    conf = short_conf(budget) | {"spark.sql.shuffle.partitions": "1"}

    def provider() -> Provider:
        return harness.open(
            bench.checkpoint / "state", provider_class=MILLPOND, schema=schema, conf=conf
        )

    try:
        first = provider()
        store = first.store(0)
        for _ in range(15):
            store.merge_blanks(["a", 1], 32 * megabytes)
        with pytest.raises(ProviderError, match=r"MILLPOND_ROW_TOO_LARGE.*'default'"):
            store.merge_blanks(["a", 1], 32 * megabytes)
        store.merge_blanks(["a", 1], 31 * megabytes)
        store.commit()
        first.close()
        second = provider()
        read = second.read_store(1)
        assert read.exists(["a", 1])
        read.release()
        second.close()
    finally:
        harness.stop()
