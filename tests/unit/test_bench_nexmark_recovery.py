"""The benchmark Nexmark: a query is killed in the middle of a batch, and comes back."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_nexmark, bench_nexmark_report
from benchmarks.bench_contenders import BASELINE, HEAP_PEER, OURS
from benchmarks.bench_env import BenchError
from benchmarks.bench_nexmark_events import EVENTS
from benchmarks.bench_nexmark_flink import last_checkpoint
from benchmarks.bench_nexmark_query import taken
from benchmarks.bench_nexmark_recovery import committed_of, mid_batch, recover
from benchmarks.bench_process import kill_when

# Its first life commits two of three batches, and stays in the third; its second ends that one.
_QUERY = """
import json, signal, subprocess, sys
from pathlib import Path
spec, result = (Path(given) for given in sys.argv[1:])
checkpoint = Path(json.loads(spec.read_text())["checkpoint"])
again = checkpoint.is_dir()
for log in ("offsets", "commits"):
    (checkpoint / log).mkdir(parents=True, exist_ok=True)
if not again:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (checkpoint / "child").write_text(str(child.pid))
for batch in [2] if again else range(3):
    (checkpoint / "offsets" / str(batch)).touch()
    if batch == 2 and not again:
        signal.pause()
    (checkpoint / "commits" / str(batch)).touch()
result.write_text(json.dumps({"rows_out": 5}))
"""
_IDLE = [sys.executable, "-c", "import signal; signal.pause()"]


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_query_is_killed_with_its_children_and_ends_its_batch_in_a_second_process(
    tmp_path: Path,
) -> None:
    program, checkpoint = tmp_path / "query.py", tmp_path / "checkpoint"
    program.write_text(_QUERY)
    command, spec = [sys.executable, str(program)], {"conf": {}, "checkpoint": str(checkpoint)}
    raw = recover(command, spec, checkpoint, 3, work_dir=tmp_path, timeout_s=60)
    assert raw["rows_out"] == 5 and raw["committed"] == 2 and raw["backlog_files"] == 1
    assert 0 < raw["first_commit_s"] == raw["caught_up_s"] < 60
    assert not _is_alive(int((checkpoint / "child").read_text()))


def test_a_batch_that_ended_before_the_kill_is_refused(tmp_path: Path) -> None:
    for log in ("offsets", "commits"):
        for batch in (1, 2):
            _entry(tmp_path, log, batch, time.time() - 50)
    with pytest.raises(BenchError, match="batch 2 ended before its process was killed"):
        recover(_IDLE, {"conf": {}}, tmp_path, 3, work_dir=tmp_path, timeout_s=60)


def _entry(checkpoint: Path, log: str, batch: int, at: float) -> None:
    entry = checkpoint / log / str(batch)
    entry.parent.mkdir(exist_ok=True)
    entry.touch()
    os.utime(entry, (at, at))


def test_a_process_that_ends_by_itself_was_not_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('MILLPOND_SOMETHING'); raise SystemExit(3)"]
    with pytest.raises(BenchError, match=r"(?s)it ended, exit code 3.*MILLPOND_SOMETHING"):
        kill_when(lambda: False, command, {}, work_dir=tmp_path, timeout_s=60)
    with pytest.raises(BenchError, match="not to be killed after 0 s"):
        kill_when(lambda: False, _IDLE, {}, work_dir=tmp_path, timeout_s=0)


def test_the_middle_of_a_batch_is_half_of_what_the_one_before_took(tmp_path: Path) -> None:
    due, now = mid_batch(tmp_path, 6), time.time()
    assert not due()
    _entry(tmp_path, "offsets", 6, now - 50)
    with pytest.raises(BenchError, match="batch 6 began before batch 5 ended"):
        due()
    _entry(tmp_path, "offsets", 5, now - 350)
    _entry(tmp_path, "commits", 5, now - 50)
    assert not due()  # 50 s of 300
    _entry(tmp_path, "offsets", 6, now - 151)
    assert due()


def test_the_commit_of_the_batch_that_is_cut_off_is_held_in_the_first_process_alone(
    tmp_path: Path,
) -> None:
    program, checkpoint = tmp_path / "query.py", tmp_path / "checkpoint"
    program.write_text(
        _QUERY.replace("\nagain =", "\nconf = json.loads(spec.read_text())['conf']\nagain =")
        .replace("if not again:", "if not again:\n    Path(FIRST).write_text(spec.read_text())", 1)
        .replace("FIRST", repr(str(tmp_path / "first.json")))
        + "assert conf == {'a': 'b'}, conf\n"
    )
    spec = {"conf": {"a": "b"}, "checkpoint": str(checkpoint)}
    recover([sys.executable, str(program)], spec, checkpoint, 3, work_dir=tmp_path, timeout_s=60)
    conf = json.loads((tmp_path / "first.json").read_text())["conf"]
    assert conf["a"] == "b" and conf["spark.hadoop.millpond.test.hold"] == "commits/2"


def test_two_thirds_of_the_batches_are_committed_before_the_kill() -> None:
    assert [committed_of(files) for files in (4, 6, 7, 10)] == [2, 4, 4, 6]


def test_rows_of_a_batch_that_ran_twice_count_once(tmp_path: Path) -> None:
    for name, rows in (
        ("0", [(("a",), ("a", 1)), (("b",), ("b", 1))]),
        ("10", [(("a",), ("a", 3))]),
        ("9", [(("a",), ("a", 2))]),
        ("11.part", [(("a",), ("a", 4))]),  # its process was killed while it wrote
    ):
        (tmp_path / name).write_bytes(pickle.dumps(rows))
    assert taken(tmp_path, replaced=True) == {("a", 3): 1, ("b", 1): 1}
    every = {("a", 1): 1, ("b", 1): 1, ("a", 2): 1, ("a", 3): 1}
    assert taken(tmp_path, replaced=False) == every


def _recovered(caught_up_s: float, rows_out: int = 5) -> dict[str, Any]:
    return {
        "per_file": 100_000,
        "committed": 6,
        "backlog_files": 4,
        "first_commit_s": 4.5,
        "caught_up_s": caught_up_s,
        "batches": [{"trigger_ms": 1_250}, {"trigger_ms": 300}],
        "rows_out": rows_out,
        "state_rows": 7,
        "peak_rss_bytes": 3 << 20,
    }


def _results(rows_out: int = 5) -> dict[str, Any]:
    contenders = {OURS: _recovered(5), BASELINE: _recovered(10, rows_out)}
    cell = {"setting": "recovery", "query": "q18", "budget_mib": None, "contenders": contenders}
    return {
        "plan": {"events": 1_000_000, "per_file": 100_000},
        "host": {"cores": 2},
        "versions": {"spark": "4.3.0"},
        "cells": {"recovery/q18": cell},
    }


def test_tables_tell_when_the_query_was_back() -> None:
    text = bench_nexmark_report.tables(_results())
    assert "| q18, last bid | 7 | 5.00 | 10.0 | 2.0x |" in text  # less is better
    assert "| q18, last bid | 4.50 | 4.50 |" in text and "| q18, last bid | 1 250 | 1 250 |" in text
    drawn = bench_nexmark_report.chart(_results(), "recovery")
    assert "2.0x  (5.00 s)" in drawn and "times faster than Spark" in drawn
    assert len(bench_nexmark_report.disagreements(_results(rows_out=6))) == 1


def test_every_setting_that_is_published_has_its_place_on_the_page() -> None:
    page = Path("docs/benchmarks-nexmark.md").read_text()
    for name in bench_nexmark_report.SECTIONS:
        for mark in bench_nexmark_report.marks(name):
            assert page.count(mark) == 1, mark


def test_the_default_number_of_events_has_a_place_of_its_own() -> None:
    cell = {"setting": "memory", "query": "q18", "contenders": {"rocksdb-changelog": {}}}
    few: dict[str, Any] = {"plan": {"events": 1_000_000}, "cells": {"memory/q18": cell}}
    many: dict[str, Any] = {"plan": {"events": EVENTS}, "cells": {"memory/q18": cell}}
    assert bench_nexmark_report.section(few, "memory") == "memory"
    assert bench_nexmark_report.section(many, "memory") == "large"
    assert bench_nexmark_report.section(many, "budget") == "budget"
    assert bench_nexmark_report.section(few, "recovery") == "recovery"
    assert bench_nexmark_report.section(many, "recovery") == "large-recovery"
    flinks = cell | {"contenders": {"millpond": {}, "flink-heap": {}}}
    assert bench_nexmark_report.section(many | {"cells": {"q18": flinks}}, "memory") == (
        "large-flink"
    )


def test_flink_starts_from_its_last_complete_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="killed before its first checkpoint"):
        last_checkpoint(tmp_path)
    for name in ("chk-9/_metadata", "chk-10/_metadata", "chk-11/part", "shared/_metadata"):
        (tmp_path / "job" / name).parent.mkdir(parents=True)
        (tmp_path / "job" / name).touch()
    assert last_checkpoint(tmp_path) == tmp_path / "job" / "chk-10"


def test_flink_tells_how_many_events_it_had_left() -> None:
    results = _results()
    flink = {"backlog_events": 412_345, "first_commit_s": 3, "caught_up_s": 2.5, "flink": "2.3.0"}
    flink |= {"peak_rss_bytes": 1 << 20, "runs": [{}]}
    results["cells"]["recovery/q18"]["contenders"]["flink-heap"] = flink
    text = bench_nexmark_report.tables(results)
    assert "| q18, last bid | 7 | 5.00 | 10.0 | 2.50 | 2.0x | 0.50x |" in text
    assert "| q18, last bid | 400 000 | 400 000 | 412 000 |" in text
    assert "| q18, last bid | 1 250 | 1 250 | - |" in text


def test_state_on_a_heap_has_no_other_memory() -> None:
    for heap in (HEAP_PEER, "flink-heap"):
        assert bench_nexmark.runs(heap, "q18", "recovery")
        assert not bench_nexmark.runs(heap, "q18", "budget")
