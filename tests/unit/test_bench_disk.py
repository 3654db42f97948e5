"""The table of the disk tier's benchmark: medians over processes, and the ratio to Spark's."""

from __future__ import annotations

from typing import Any

from benchmarks import bench_contenders, bench_store
from benchmarks.bench_contenders import BASELINE, OURS
from benchmarks.bench_disk import ROWS, markdown, summary


def _store(load: float, reopen: list[float]) -> dict[str, Any]:
    durations = {
        name: [1.0, 2.0, 9.0]
        for name in (
            "update_us_per_op",
            "update_commit_ms",
            "update_with_snapshots_commit_ms",
            "update_with_snapshots_reopen_ms",
            "scan_us_per_row",
            "restore_first_get_ms",
            "restore_all_ms",
        )
    }
    return {
        **durations,
        "load_us_per_key": load,
        "update_reopen_ms": reopen,
        "update_latency_us": {"p99": 30.0},
        "update_with_snapshots_latency_us": {"p99": 60.0},
        "written_bytes": 3 << 20,
        "local_bytes": 2 << 20,
        "memory": {"after_update": {"native": 5 << 20}},
    }


def test_the_table_has_medians_and_means() -> None:
    """A flush makes one re-open of many long: the median does not show it, the mean does."""
    raw = {
        OURS: {"store": [_store(load, [1.0, 1.0, 10.0]) for load in (1.0, 2.0, 4.0)], "scan": []},
        BASELINE: {"store": [_store(8.0, [4.0, 4.0, 4.0])], "scan": []},
    }
    scans = {"prefix_scan_us": [3.0, 5.0, 4.0], "ordered_scan_us_per_row": [1.0]}
    assert summary(raw)["prefix scan of ten rows, us"] == {}
    raw[OURS]["scan"].append(scans)
    found = summary(raw)
    assert list(found) == [title for title, _, _ in ROWS]
    assert found["load, us a key"] == {OURS: 2.0, BASELINE: 8.0}
    assert found["re-open of the last version, ms"] == {OURS: 1.0, BASELINE: 4.0}
    assert found["re-open, mean, ms"] == {OURS: 4.0, BASELINE: 4.0}
    assert found["written to disk by load and updates, MiB"] == {OURS: 3.0, BASELINE: 3.0}
    assert found["prefix scan of ten rows, us"] == {OURS: 4.0}
    text = markdown(found)
    assert "| load, us a key | 2.00 | 8.00 | 4.0x |" in text, text


def test_the_budget_that_is_asked_for_holds_with_many_keys() -> None:
    millpond = bench_contenders.CONTENDERS[OURS]
    budget = "spark.sql.streaming.stateStore.millpond.memory.budget"
    assert bench_store.conf_of(millpond, 5_000_000, {budget: "64m"})[budget] == "64m"
    assert bench_store.conf_of(millpond, 5_000_000, {})[budget] == "750000000"
    assert budget not in bench_store.conf_of(millpond, 1_000_000, {})
