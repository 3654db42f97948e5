"""A smoke run of the benchmark at tiny size: it works, and its results are complete.

No test here judges a duration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_chart, bench_codec, bench_measures, bench_report, bench_store
from integration.jvm import LIGHT

_REPOSITORY = Path(__file__).resolve().parents[1]
_CONTENDERS = ("millpond", "rocksdb-changelog")
# Whether it runs, not how fast: its JVMs begin as those of all tests do, on the collector that the
# benchmarks choose. Each `java` reads this, and what a benchmark itself says has precedence.
_LIGHT = {"JDK_JAVA_OPTIONS": LIGHT.replace("-XX:+UseSerialGC ", "")}


def _run(*arguments: str, program: str = "run.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_REPOSITORY / "benchmarks" / program), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1500, check=False, env=os.environ | _LIGHT
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Return results and stdout of one smoke run of Millpond and the baseline."""
    out = tmp_path_factory.mktemp("bench") / "results" / "quick.json"
    names = ["--contenders", ",".join(_CONTENDERS), "--scenarios", "aggregation"]
    done = _run(
        "--quick",
        *("--only", "store,scan,query", *names),
        *("--work-dir", str(out.parent.parent), "--out", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert [p.name for p in out.parent.parent.iterdir()] == ["results"], (
        "the run left scratch files behind"
    )
    results: dict[str, Any] = json.loads(out.read_text())
    return results, done.stdout


@pytest.mark.deep
@pytest.mark.spark
def test_results_name_host_commit_and_versions(quick: tuple[dict[str, Any], str]) -> None:
    results, _ = quick
    assert (results["format"], results["quick"], results["repetitions"], results["failures"]) == (
        1,
        True,
        1,
        [],
    )
    assert [c["name"] for c in results["contenders"]] == list(_CONTENDERS)
    assert results["host"]["cores"] >= 1 and results["host"]["memory_bytes"] > 0
    assert results["versions"]["spark"].startswith("4.") and results["versions"]["rocksdbjni"]
    assert len(results["commit"]) in (0, 40)  # none in an unpacked archive


@pytest.mark.deep
@pytest.mark.spark
def test_store_level_holds_every_raw_duration(quick: tuple[dict[str, Any], str]) -> None:
    results, _ = quick
    sizes = bench_store.sizes(1, quick=True)
    for name in _CONTENDERS:
        (raw,) = results["store"][name]
        assert len(raw["load_ms"]) == len(raw["load_commit_ms"]) == sizes.keys // sizes.load_batch
        for what in ("us_per_op", "commit_ms", "reopen_ms"):
            assert len(raw[f"update_{what}"]) == sizes.update_batches
            assert len(raw[f"update_with_snapshots_{what}"]) == sizes.snapshot_batches
        assert len(raw["rollback_ms"]) == sizes.rollbacks
        assert len(raw["restore_first_get_ms"]) == len(raw["restore_all_ms"]) == sizes.restores
        assert raw["update_latency_us"]["count"] == sizes.ops * sizes.update_batches
        assert raw["snapshot_ms"], "no snapshot was taken in the phase with snapshots"
        assert raw["bytes_per_batch"] > 0
        assert [p["name"] for p in raw["phases"]][:2] == ["warm-up", "load"]


@pytest.mark.deep
@pytest.mark.spark
def test_scans_are_measured_in_memory_on_disk_and_without_a_store(
    quick: tuple[dict[str, Any], str],
) -> None:
    results, _ = quick
    sizes = bench_store.scan_sizes(1, quick=True)
    every = {
        "scan_us_per_row",
        "prefix_scan_us",
        "ordered_scan_us_per_row",
        "eviction_ms",
        "eviction_of_a_tenth_ms",
    }
    for name, parts in (("millpond", {"store", "disk"}), ("rocksdb-changelog", {"store"})):
        (raw,) = results["scan"][name]
        assert set(raw) == parts
        assert every <= set(raw["store"]) and len(raw["store"]["eviction_ms"]) == sizes.evictions
    disk = results["scan"]["millpond"][0]["disk"]
    assert every | {"raw_scan_us_per_row", "raw_prefix_scan_us"} <= set(disk)


@pytest.mark.deep
@pytest.mark.spark
def test_query_level_keeps_warm_up_apart_and_states_agree(
    quick: tuple[dict[str, Any], str],
) -> None:
    results, _ = quick
    (size,) = results["query_sizes"]
    for name in _CONTENDERS:
        (raw,) = results["query"][name]
        run = raw["aggregation"]
        assert run["warmup"] == size["warmup"]
        assert [b["batch"] for b in run["batches"]] == list(
            range(size["warmup"] + size["measured"])
        )
        assert {(b["rows"], b["state_rows"]) for b in run["batches"]} == {
            (size["rows"], size["rows"])
        }
    assert bench_report.disagreements(results["query"]) == []


@pytest.mark.deep
@pytest.mark.spark
def test_summary_table_and_chart_come_from_the_raw_results(
    quick: tuple[dict[str, Any], str],
) -> None:
    results, stdout = quick
    summary = results["summary"]
    measured = [m.name for m in bench_measures.MEASURES if m.level in ("store", "scan")]
    expected = {*measured, "aggregation"}
    assert set(summary) == expected
    commit = summary["commit_ms"]
    assert set(commit["median"]) == set(_CONTENDERS)
    ratio = commit["median"]["rocksdb-changelog"] / commit["median"]["millpond"]
    assert commit["times_better_than_baseline"]["millpond"] == pytest.approx(ratio)
    for row in summary.values():
        assert row["title"] in stdout
    chart = ElementTree.fromstring(bench_chart.svg(results))
    drawn = {element.text for element in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert {"get+put", "commit", "aggregation"} <= drawn


def test_a_store_of_another_size_is_told() -> None:
    def run(rows: int) -> dict[str, Any]:
        return {"join": {"warmup": 0, "batches": [{"batch": 0, "state_rows": rows}]}}

    assert bench_report.disagreements({"a": [run(3)], "b": [run(3)]}) == []
    (line,) = bench_report.disagreements({"a": [run(3)], "b": [run(4)]})
    assert "4 state rows in b, 3 in a" in line


def test_ratios_and_goals() -> None:
    by_name = {m.name: m for m in bench_measures.MEASURES}
    costs = {"millpond": 2.0, "rocksdb-changelog": 10.0, "hdfs": 2.4}
    get_put = by_name["get_put_us"]
    assert get_put.ratio(costs, "millpond", "rocksdb-changelog") == 5.0
    assert get_put.goal is not None
    assert get_put.goal.met(costs, 0) is False  # 5x the baseline, but only 1.2x the heap store
    assert get_put.goal.met(costs | {"hdfs": 3.0}, 0) is True
    assert get_put.goal.met({"millpond": 2.0}, 0) is None
    rates = {"millpond": 150.0, "rocksdb-changelog": 100.0}
    assert by_name["join"].ratio(rates, "millpond", "rocksdb-changelog") == 1.5
    memory = by_name["memory_mib"].goal
    assert memory is not None
    assert memory.met({"millpond": 200.0, "rocksdb-changelog": 120.0}, 1_000_000) is True
    assert memory.met({"millpond": 210.0, "rocksdb-changelog": 120.0}, 1_000_000) is False


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0123, "0.012"),
        (0.5, "0.50"),
        (9.876, "9.88"),
        (42.19, "42.2"),
        (987.6, "988"),
        (123456, "123 000"),
    ],
)
def test_figures_have_three_significant_digits(value: float | None, text: str) -> None:
    assert bench_report.figure(value) == text


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    done = _run("--quick", "--contenders", "millpont")
    assert done.returncode == 2
    assert "millpont" in done.stderr and "rocksdb-changelog" in done.stderr


def test_rescale_level_in_the_table() -> None:
    def run(work_ms: float, first_ms: float, rows: int = 5) -> dict[str, Any]:
        case = {
            "work_ms": work_ms,
            "first_batch_ms": first_ms,
            "sum_ms": work_ms + first_ms,
            "state_rows": rows,
        }
        return {"8_to_16": {**case, "written_bytes": 1, "state_bytes": 1000}}

    level = {"millpond": [run(200, 500)], "rocksdb-changelog": [run(6000, 600)]}
    summary = bench_report.summarise({"store_sizes": {"keys": 0}, "rescale": level})
    assert set(summary) == {
        *(
            f"rescale_8_to_16_{what}"
            for what in ("work_ms", "first_batch_ms", "sum_ms", "written", "work")
        )
    }
    assert summary["rescale_8_to_16_work_ms"]["times_better_than_baseline"]["millpond"] == 30
    assert all(row["goal_met"] for row in summary.values())
    assert summary["rescale_8_to_16_written"]["median"]["millpond"] == pytest.approx(0.1)
    assert bench_report.rescale_disagreements(level) == []
    (line,) = bench_report.rescale_disagreements(
        {**level, "rocksdb-changelog": [run(1, 1, rows=6)]}
    )
    assert "8_to_16: 6 state rows" in line


def test_codec_in_the_table() -> None:
    level = {"millpond": [{"codec": bench_codec.measure(100)}], "rocksdb-changelog": [{}]}
    summary = bench_report.summarise({"store_sizes": {"keys": 0}, "savepoint": level})
    assert set(summary) == {
        f"savepoint_codec_{schema}_{way}_rows_per_s"
        for schema in ("fixed", "text")
        for way in ("decode", "encode")
    }
    assert all(row["median"]["millpond"] > 0 for row in summary.values())


@pytest.mark.deep
@pytest.mark.spark
def test_serving_is_measured_beside_a_query() -> None:
    done = _run("--quick", program="bench_serve.py")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.rpartition("results: ")[2].strip())
    figures = json.loads(path.read_text())["figures"]
    assert figures["steady"]["found"] > 0
    assert figures["steady"]["p50_ms"] <= figures["steady"]["p99_ms"]
    assert figures["lag_ms"]["of"] > 0
    assert all(count > 0 for count in figures["batch_ms"]["batches"])
    assert "| at a steady rate |" in done.stdout


@pytest.mark.deep
@pytest.mark.spark
def test_a_page_is_measured_beside_a_query() -> None:
    done = _run("--quick", program="bench_ui.py")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.rpartition("results: ")[2].strip())
    figures = json.loads(path.read_text())["figures"]
    assert figures["lag_ms"]["of"] > 0 and figures["views_ms"]["of"] >= 3
    assert all(count > 0 for count in figures["batches"])
    assert "beside a page" in " ".join(done.stdout.split())


@pytest.mark.deep
@pytest.mark.spark
def test_latency_is_measured_in_real_time_mode(tmp_path: Path) -> None:
    """No record is lost, and each contender has batches that ended in the measured time."""
    out = tmp_path / "latency.json"
    places = ("--out", str(out), "--work-dir", str(tmp_path))
    done = _run("--quick", *places, program="bench_latency.py")
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(out.read_text())["cells"].values()
    assert set(cell["contenders"]) == set(_CONTENDERS)
    for found in cell["contenders"].values():
        assert found["records"] == 10_000 and found["boundaries"] >= 1
        assert 0 < found["figures"]["p50_inside"] <= found["figures"]["max"]
        assert sum(count for _, count in found["histogram"]) == 10_000
    assert "RocksDB store | " in done.stdout and [p.name for p in tmp_path.iterdir()] == [out.name]


@pytest.mark.deep
@pytest.mark.spark
def test_many_stores_hold_no_files_and_little_memory(tmp_path: Path) -> None:
    """The goals for an idle store: two open files, half a MiB. These are counts, not durations."""
    out = tmp_path / "stores.json"
    sizes = ("--stores", "60", "--batches", "2")
    chosen = ("--contenders", "millpond", "--out", str(out))
    done = _run(*sizes, *chosen, program="bench_stores.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["contenders"]["millpond"]
    assert found["stores"] == 60 and len(found["batch_ms"]) == 2
    before, after = found["before"], found["after"]
    assert after["files"] - before["files"] < 10
    assert after["threads"] - before["threads"] < 10
    assert after["memory"]["total"] - before["memory"]["total"] < 60 * 512 * 1024
    assert "open files of an idle store" in done.stdout


@pytest.mark.deep
@pytest.mark.spark
def test_a_large_state_is_loaded_updated_restored_saved_and_rescaled(tmp_path: Path) -> None:
    out = tmp_path / "large.json"
    sizes = ("--keys", "2000", "--load-batches", "3", "--rows", "300", "--minutes", "0.01")
    done = _run(*sizes, "--budget-mib", "2", "--out", str(out), program="bench_large.py")
    assert done.returncode == 0, done.stderr
    raw = json.loads(out.read_text())["raw"]
    for name in _CONTENDERS:
        assert len(raw[name]["load"]) >= 3
        assert {b["state_rows"] for b in raw[name]["updates"]} == {2000}
        assert raw[name]["samples"][-1]["written_bytes"] > 0
    assert raw["millpond"]["afterwards"]["rescale from 4 to 8, s"] > 0


@pytest.mark.deep
@pytest.mark.spark
def test_nexmark_is_checked_and_measured(tmp_path: Path) -> None:
    """Every query gives the rows of the batch, and the files of one are read to their end."""
    out = tmp_path / "nexmark.json"
    chosen = ("--contenders", "millpond", "--queries", "q9,q19")
    places = ("--out", str(out), "--work-dir", str(tmp_path))
    done = _run("--quick", *chosen, *places, program="bench_nexmark.py")
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    # Of 60,000 events 3,600 are auctions. Most got a bid before they ended.
    assert 3_000 < results["checked"]["millpond"]["q9"] < 3_600
    # The events of a second end no auction of q9: its watermark is four seconds behind.
    for name, gives_rows in (("memory/q9", False), ("memory/q19", True)):
        raw = results["cells"][name]["contenders"]["millpond"]
        assert len(raw["batches"]) == 4 and raw["state_rows"] > 0
        assert (raw["rows_out"] > 0) == gives_rows
    assert "| q9, winning bids | " in done.stdout and [p.name for p in tmp_path.iterdir()] == [
        out.name
    ]


@pytest.mark.deep
@pytest.mark.spark
def test_nexmark_gives_the_same_rows_from_files_from_memory_and_after_a_kill(
    tmp_path: Path,
) -> None:
    out = tmp_path / "nexmark.json"
    chosen = ("--contenders", "millpond", "--queries", "q19")
    places = ("--out", str(out), "--work-dir", str(tmp_path))
    settings = ("--settings", "memory,source,budget,recovery")
    done = _run("--quick", *chosen, *places, *settings, program="bench_nexmark.py")
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    # Of 60,000 events 3,600 are auctions, and nearly each of them has a bid.
    assert results["recovered"]["millpond"] == results["checked"]["millpond"]
    cells = {name: cell["contenders"]["millpond"] for name, cell in results["cells"].items()}
    whole, killed = cells["memory/q19"], cells["recovery/q19"]
    for name in ("source/q19", "budget/q19"):
        assert cells[name]["rows_out"] == whole["rows_out"], name
        assert [batch["rows"] for batch in cells[name]["batches"]] == [1_840] * 4
    assert killed["committed"] == 2 and len(killed["batches"]) == 2
    assert killed["state_rows"] == whole["state_rows"]
    assert 0 < killed["first_commit_s"] < killed["caught_up_s"]
