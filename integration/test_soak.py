"""The soak in its short form, and proof that it notices faults."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from integration.harness import millponds_own
from integration.jvm import REPO
from integration.soak import measure, page, queries
from integration.soak.campaign import QUERIES
from integration.soak.run import SHORT_FAULTS, STEADY_FAULTS


@pytest.mark.deep
@pytest.mark.spark
@millponds_own
def test_the_short_form(tmp_path: Path) -> None:
    """Each fault comes once. No row differs, and no process or file is left.

    The short form does not judge growth, because its processes are not warm at the end.
    """
    out = tmp_path / "result.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "integration.soak.run",
            "--short",
            "--work",
            str(tmp_path / "work"),
            "--out",
            str(out),
        ],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(out.read_text())
    assert result["wrong"] == []
    assert result["faults"] == dict.fromkeys([*SHORT_FAULTS, "driver killed"], 1)
    assert result["driver_lives"] == 2
    assert result["queries"].keys() == QUERIES.keys()
    for query in result["queries"].values():
        assert query["rows"] == query["expected"] > 100
        assert query["checked"]["problems"] == [] and query["checked"]["changelogs"] > 0


def test_growth_beyond_a_bound_is_a_leak() -> None:
    before = measure.Held(rss_kb=1000, files=10, local_files=5, threads=7)
    bounds = {"rss_kb": 100, "files": 3, "threads": 2}
    assert (
        measure.leaks(
            "x", before, replace(before, rss_kb=1100, files=13, threads=9, local_files=500), bounds
        )
        == []
    )
    assert len(measure.leaks("x", before, replace(before, rss_kb=1101), bounds)) == 1
    assert measure.leaks("x", before, replace(before, files=14), bounds) == [
        "x: files grew from 10 to 14, by more than 3"
    ]


# Takes what it holds at a line, and says so.
_HOLDER = """
import mmap, sys, threading
print("begun", flush=True)
sys.stdin.readline()
end = threading.Event()
for _ in range(5):
    threading.Thread(target=end.wait, daemon=True).start()
ballast = mmap.mmap(-1, 40 << 20)
ballast.write(bytes(40 << 20))
files = [open(name, "w") for name in sys.argv[1:]]
print("taken", flush=True)
sys.stdin.readline()
"""


def test_what_a_process_holds_is_seen(tmp_path: Path) -> None:
    """A process of its own: in that of the tests, threads of other tests come and go."""
    local = (
        tmp_path / "millpond-01234567-89ab-cdef-0123-456789abcdef" / "0-0-default-1" / "g1" / "db-1"
    )
    local.mkdir(parents=True)
    names = [str(tmp_path / "a"), str(local / "000001.sst")]
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "begun\n"
        before = measure.held(holder.pid)
        print(file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "taken\n"
        after = measure.held(holder.pid)
        print(file=holder.stdin, flush=True)
    assert before is not None and after is not None
    assert after.files == before.files + 1
    assert after.local_files == before.local_files + 1
    assert after.threads == before.threads + 5
    assert after.rss_kb > before.rss_kb + 30 * 1024
    assert measure.held(holder.pid) is None


def test_the_batch_computation() -> None:
    """The results equal those by hand: pairs within 3 s, runs with gaps up to 8 s, 20 s buckets."""
    left = [("a", 1.0, 5), ("a", 9.0, 6), ("a", 17.001, 7), ("b", 2.0, 8)]
    right = [("a", 4.0, 11), ("a", 4.001, 12), ("c", 1.0, 13), ("a", 25.0, 21)]
    start = 1_704_067_200_000
    assert queries.expect_joined(left, right) == {("a", start + 1000, 5, start + 4000, 11): 1}
    assert queries.expect_sessions(left) == {
        ("a", start + 1000, start + 17_000, 2, 11): 1,
        ("a", start + 17_001, start + 25_001, 1, 7): 1,
        ("b", start + 2000, start + 10_000, 1, 8): 1,
    }
    first = start // 20_000
    assert queries.expect_buckets(right) == {
        ("a", first, 23, "[11, 12]", "[(1, 1), (2, 1)]"): 1,
        ("c", first, 13, "[13]", "[(3, 1)]"): 1,
        ("a", first + 1, 21, "[21]", "[(1, 1)]"): 1,
    }


def test_the_page_shows_the_raw_result() -> None:
    result = json.loads(page.RESULT.read_text())
    assert not result["short"] and result["wrong"] == [] and result["minutes"] >= 30
    kinds = {
        "driver killed",
        "executor killed",
        "agent killed",
        "executor paused",
        "agent paused",
        "queries restarted",
    }
    assert result["faults"].keys() == kinds
    assert {fault.removeprefix("other ") for fault in STEADY_FAULTS} <= kinds
    text = page.PAGE.read_text()
    assert page.page(text, result) == text, "run python -m integration.soak.page"
