"""The benchmark Nexmark: the rules of its events, its figures, its tables."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import bench_flink, bench_nexmark, bench_nexmark_flink, bench_nexmark_report
from benchmarks import bench_nexmark_events as events
from benchmarks.bench_contenders import BASELINE, HEAP_PEER, OURS
from benchmarks.bench_nexmark_events import BASE_MS, FIRST_ID, LEAD, Plan, generate, tables
from benchmarks.bench_nexmark_flink import FLINKS
from benchmarks.bench_nexmark_flink_sql import QUERIES as FLINKS_QUERIES
from benchmarks.bench_nexmark_flink_sql import ddl, held
from benchmarks.bench_nexmark_queries import QUERIES
from integration.peers import maven

_PLAN = Plan(seed=7, events=100_000, per_file=50_000)


@cache
def _made() -> dict[str, pa.Table]:
    return tables(_PLAN, 1)


def test_one_person_three_auctions_and_46_bids_in_the_order_of_their_time() -> None:
    made = _made()
    assert {kind: t.num_rows for kind, t in made.items()} == {
        "person": 1_000,
        "auction": 3_000,
        "bid": 46_000,
    }
    for table in made.values():
        times = table["date_time"].to_numpy()
        assert (np.diff(times) >= 0).all()
        # 10,000 events a second: the second file has the seconds 5 to 10.
        assert 5_000 <= times[0] - BASE_MS < 5_005 and 9_995 <= times[-1] - BASE_MS < 10_000


def test_ids_count_up_over_the_files() -> None:
    for kind, first in (("person", 1_000), ("auction", 3_000)):
        ids = _made()[kind]["id"].to_numpy()
        assert (ids == np.arange(first, 2 * first) + FIRST_ID).all()


def test_rows_name_persons_and_auctions_that_are_there_or_come_soon() -> None:
    event = np.arange(_PLAN.per_file, 2 * _PLAN.per_file)
    bids, auctions = _made()["bid"], _made()["auction"]
    of_bid, of_auction = event[event % 50 >= 4], event[(event % 50 >= 1) & (event % 50 < 4)]
    for named, last, behind in (
        (bids["auction"], events.last_auction(of_bid), events.AUCTIONS_IN_FLIGHT),
        (bids["bidder"], events.last_person(of_bid), events.ACTIVE_PERSONS),
        (auctions["seller"], events.last_person(of_auction), events.ACTIVE_PERSONS),
    ):
        ahead = named.to_numpy() - FIRST_ID - last
        assert -behind <= ahead.min() and 0 < ahead.max() <= LEAD
        assert (ahead > 0).mean() < 0.06  # by far most are there already


def test_last_person_and_auction_at_an_event() -> None:
    event = np.array([0, 1, 2, 3, 4, 49, 50, 51])
    assert events.last_person(event).tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert events.last_auction(event).tolist() == [-1, 0, 1, 2, 2, 2, 2, 3]


def test_hot_auctions_bidders_sellers_and_channels() -> None:
    made = _made()
    auction = made["bid"]["auction"].to_numpy() - FIRST_ID
    bidder = made["bid"]["bidder"].to_numpy() - FIRST_ID
    seller = made["auction"]["seller"].to_numpy() - FIRST_ID
    # A half, three quarters, three quarters, and a few that are met by chance.
    assert (auction % 100 == 0).mean() == pytest.approx(0.505, abs=0.01)
    assert (bidder % 100 == 1).mean() == pytest.approx(0.7525, abs=0.01)
    assert (seller % 100 == 0).mean() == pytest.approx(0.7525, abs=0.03)
    channel = made["bid"]["channel"].to_pandas()
    assert channel.str.startswith("channel-").mean() == pytest.approx(0.5, abs=0.01)
    hot = set(channel[~channel.str.startswith("channel-")])
    assert hot == {"Google", "Facebook", "Baidu", "Apple"}
    urls = made["bid"].to_pandas().groupby("channel")["url"].nunique()
    assert (urls == 1).all()


def test_prices_categories_and_ends_of_auctions() -> None:
    made = _made()
    price = made["bid"]["price"].to_numpy()
    assert price.min() >= 100 and price.max() <= 10**8
    assert (price < 10_000).mean() == pytest.approx(1 / 3, abs=0.01)
    auctions = made["auction"].to_pandas()
    assert set(auctions["category"]) == {10, 11, 12, 13, 14}
    assert (auctions["reserve"] > auctions["initial_bid"]).all()
    # 100 auctions are in flight, so an auction takes the time of 100 on average, and twice at most.
    lives = auctions["expires"] - auctions["date_time"]
    assert lives.min() >= 1 and lives.max() <= 2 * 167
    assert lives.mean() == pytest.approx(167, rel=0.05)


def test_rows_have_their_average_size() -> None:
    made = _made()
    bid = made["bid"]["extra"].to_pandas().str.len()
    assert bid.mean() == pytest.approx(100 - 32, rel=0.02)
    assert bid.min() >= 54 and bid.max() < 82
    auctions = made["auction"].to_pandas()
    texts = auctions[["item_name", "description", "extra"]].apply(lambda c: c.str.len()).sum(axis=1)
    assert texts.mean() == pytest.approx(500 - 48, rel=0.02)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    small = Plan(seed=7, events=2_000, per_file=1_000)
    folders = [generate(small, tmp_path / place) for place in "ab"]
    folders.append(generate(Plan(seed=8, events=2_000, per_file=1_000), tmp_path))
    files = [{p.relative_to(f): p.read_bytes() for p in f.rglob("*.parquet")} for f in folders]
    assert len(files[0]) == 9 and files[0] == files[1]
    assert files[0].keys() == files[2].keys()
    assert all(files[0][name] != files[2][name] for name in files[0] if "closing" not in str(name))
    longer = Plan(seed=7, events=4_000, per_file=1_000)
    assert tables(longer, 1)["bid"].equals(tables(small, 1)["bid"])


def test_files_are_written_once(tmp_path: Path) -> None:
    plan = Plan(seed=1, events=1_000, per_file=500)
    (first,) = {generate(plan, tmp_path), generate(plan, tmp_path)}
    assert [p.name for p in tmp_path.iterdir()] == [first.name]
    assert [p.name for p in sorted((first / "bid").iterdir())] == ["00000.parquet", "00001.parquet"]


@pytest.mark.parametrize(("events_", "per_file"), [(1_000, 999), (1_050, 100), (0, 50)])
def test_parts_of_an_epoch_are_refused(events_: int, per_file: int) -> None:
    with pytest.raises(ValueError, match="multiple of 50"):
        Plan(seed=1, events=events_, per_file=per_file)


def _raw(trigger_ms: list[int], rows_out: int = 5) -> dict[str, Any]:
    return {
        "per_file": 100_000,
        "batches": [{"trigger_ms": ms} for ms in [9_000, 8_000, *trigger_ms]],
        "rows_out": rows_out,
        "state_rows": 7,
        "peak_rss_bytes": 3 << 20,
        "stored_bytes": 2 << 20,
    }


def _results(**rows_out: int) -> dict[str, Any]:
    contenders = {
        OURS: _raw([500, 500]),
        BASELINE: _raw([1_500, 500], **rows_out),
        HEAP_PEER: _raw([1_000, 1_000]),
    }
    cell = {"setting": "memory", "query": "q3", "budget_mib": None, "contenders": contenders}
    return {
        "plan": {"events": 400_000},
        "host": {"cores": 2},
        "versions": {"spark": "4.3.0"},
        "cells": {"memory/q3": cell},
    }


def test_rates_count_the_kinds_that_a_query_reads_and_no_warm_up() -> None:
    # q3 reads persons and auctions: 4 of 50 events.
    assert bench_nexmark_report.events_per_s(_raw([500, 500]), "q3") == 16_000
    assert bench_nexmark_report.events_per_s(_raw([500, 500]), "q20") == 196_000
    assert bench_nexmark_report.p99_ms(_raw([500, 700, 600]), "q3") == 700
    assert bench_nexmark_report.p99_ms(_raw([*range(1, 201)]), "q3") == 198


def test_tables_and_chart_have_each_contender() -> None:
    text = bench_nexmark_report.tables(_results())
    row = "| q3, local item suggestion | 7 | 16 000 | 8 000 | 8 000 | 2.0x | 2.0x |"
    assert row in text and "| q3, local item suggestion | 500 | 1 500 | 1 000 |" in text
    drawn = ElementTree.fromstring(bench_nexmark_report.chart(_results(), "memory"))
    said = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"q3, local item suggestion", "2.0x  (16 000 events/s)"} <= said


def test_queries_have_their_order_however_they_were_measured() -> None:
    results = _results()
    results["cells"]["memory/q20"] = results["cells"]["memory/q3"] | {"query": "q20"}
    results["cells"]["memory/q4"] = results["cells"]["memory/q3"] | {"query": "q4"}
    heads = [line for line in bench_nexmark_report.tables(results).splitlines() if "| q" in line]
    assert [line.split(",")[0] for line in heads[:3]] == ["| q3", "| q4", "| q20"]


def test_another_number_of_rows_is_told() -> None:
    assert bench_nexmark_report.disagreements(_results()) == []
    (line,) = bench_nexmark_report.disagreements(_results(rows_out=6))
    assert line.startswith("memory/q3: ") and f"'{BASELINE}': 6" in line


def test_the_heap_store_leaves_out_what_it_cannot_run() -> None:
    assert bench_nexmark.runs(HEAP_PEER, "q20") and not bench_nexmark.runs(HEAP_PEER, "q9")
    assert bench_nexmark.runs(OURS, "q9")


_FLINK = {
    "events": 400_000,
    "runs": [
        {"ms": 9_000, "checkpoint_ms": [900], "checkpoint_bytes": [9 << 20]},
        {"ms": 2_000, "checkpoint_ms": [10, 30, 20], "checkpoint_bytes": [0, 3 << 20, 0]},
    ],
    "peak_rss_bytes": 4 << 20,
}


def test_flinks_last_run_counts_with_its_checkpoints() -> None:
    # q3 reads 4 of 50 events. Windows that are closed are not in the last checkpoint.
    assert bench_nexmark_report.events_per_s(_FLINK, "q3") == 16_000
    assert bench_nexmark_report.p99_ms(_FLINK, "q3") == 30
    assert bench_nexmark_report.stored_bytes(_FLINK, "q3") == 3 << 20


def test_flink_has_columns_beside_sparks_stores() -> None:
    results = _results()
    results["cells"]["memory/q3"]["contenders"]["flink-heap"] = _FLINK
    text = bench_nexmark_report.tables(results)
    assert "| Millpond / Flink, heap |" in text and "| 16 000 | 2.0x | 2.0x | 1.00x |" in text
    assert "| q3, local item suggestion | 2.00 | 2.00 | 2.00 | 3.00 |" in text
    assert bench_nexmark_report.disagreements(results) == []


def test_without_sparks_stores_the_chart_is_relative_to_flink() -> None:
    results = _results()
    results["cells"]["memory/q3"]["contenders"] = {OURS: _raw([250, 250]), "flink-rocksdb": _FLINK}
    drawn = bench_nexmark_report.chart(results, "memory")
    assert "times those of Flink, RocksDB" in drawn and "2.0x  (32 000 events/s)" in drawn


def test_flink_runs_every_query_and_its_tables_have_all_columns() -> None:
    assert FLINKS_QUERIES.keys() == QUERIES.keys()
    assert all(bench_nexmark.runs(flink, query) for flink in FLINKS for query in QUERIES)
    kinds = tuple(_made())
    for kind, statement in zip(kinds, ddl(Path("/e"), kinds, marked=True), strict=True):
        assert statement.startswith(f"CREATE TEMPORARY TABLE {kind} (")
        within = statement.partition("(")[2].split(", ")
        names = [part.split()[0] for part in within if part.endswith((" BIGINT", " STRING"))]
        assert names == _made()[kind].column_names
        assert f"'path' = 'file:///e/{kind}'" in statement and "WATERMARK FOR" in statement
    assert not any("WATERMARK" in made for made in ddl(Path("/e"), kinds, marked=False))


def test_flink_holds_the_columns_and_both_halves_of_each_kind(tmp_path: Path) -> None:
    folder = generate(Plan(seed=7, events=2_000, per_file=1_000), tmp_path)
    asked = held(bench_nexmark_flink.halves(folder, tmp_path), ("auction", "bid"), marked=True)
    assert [*asked] == ["auction", "bid"] and all(kind["marked"] for kind in asked.values())
    names = [column.split()[0] for column in asked["bid"]["columns"]]
    assert names == _made()["bid"].column_names
    first, second = asked["bid"]["halves"]
    assert first.startswith("CREATE TEMPORARY TABLE bid (auction BIGINT, ")
    assert "/bid/0.parquet'" in first and "/bid/1.parquet'" in second
    assert "WATERMARK" not in first  # what reads the file keeps no time


def test_flinks_settings_say_where_state_is(tmp_path: Path) -> None:
    confs = {
        name: bench_nexmark_flink.conf(flink, tmp_path, budget)
        for (name, flink), budget in zip(FLINKS.items(), (64, None), strict=True)
    }
    assert [conf["state.backend.type"] for conf in confs.values()] == ["rocksdb", "hashmap"]
    sizes = [conf["taskmanager.memory.managed.size"] for conf in confs.values()]
    assert sizes == ["64m", "512m"]
    assert FLINKS["flink-heap"].heap_mib(2) == 4096 and FLINKS["flink-rocksdb"].heap_mib(2) == 2048


def test_flinks_readers_get_every_second_batch_in_order(tmp_path: Path) -> None:
    folder = generate(Plan(seed=7, events=3_000, per_file=1_000), tmp_path)
    made = bench_nexmark_flink.halves(folder, tmp_path)
    assert made == bench_nexmark_flink.halves(folder, tmp_path)
    batches = [pq.read_table(folder / "bid" / f"0000{i}.parquet") for i in range(3)]
    even, odd = (pq.read_table(made / "bid" / f"{half}.parquet") for half in range(2))
    assert even.equals(pa.concat_tables([batches[0], batches[2]])) and odd.equals(batches[1])


def test_the_reader_of_parquet_is_of_flinks_version() -> None:
    assert maven.version(bench_flink.POM, "flink.version") == bench_flink.VERSION


def test_unknown_queries_and_results_of_another_plan_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_nexmark.main(["--quick", "--queries", "q1", "--work-dir", str(tmp_path)]) == 2
    assert "q1" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_budget_is_an_eighth_of_what_the_state_takes_in_memory() -> None:
    mib = 1 << 20
    in_memory = _raw([500, 500])
    for batch, state_mib in zip(in_memory["batches"], (10, 80, 400, 320), strict=True):
        batch["state_memory_bytes"] = state_mib * mib
    assert bench_nexmark.budget_mib(in_memory) == 50
    in_memory["batches"] = [{"state_memory_bytes": mib}]
    assert bench_nexmark.budget_mib(in_memory) == 1


def test_the_page_tells_the_budget_and_what_all_in_memory_gives() -> None:
    results = _results()
    cell = results["cells"].pop("memory/q3")
    in_memory = _raw([250, 250])
    for batch in in_memory["batches"]:
        batch["state_memory_bytes"] = 400 << 20
    more = {"setting": "budget", "budget_mib": 50, "in_memory": in_memory}
    results["cells"]["budget/q3"] = cell | more
    text = bench_nexmark_report.tables(results)
    assert "### State of eight times the memory" in text
    assert "| q3, local item suggestion | 400 | 50.0 | 32 000 |" in text
    assert "| q3, local item suggestion | 7 | 16 000 | 8 000 | 8 000 | 2.0x | 2.0x |" in text
