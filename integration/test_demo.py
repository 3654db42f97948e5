"""The demo in its short form, and proof that it notices faults."""

from __future__ import annotations

import copy
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.demo import data, processes
from integration.demo.batches import QueryLog
from integration.demo.child import environment
from integration.demo.run import judge
from integration.demo.screen import Screen, human_bytes

REPOSITORY = Path(__file__).resolve().parents[1]
# `rocksdb` runs the demo on Spark's own store. A failure there is a fault of the demo.
PROVIDER = os.environ.get("MILLPOND_DEMO_PROVIDER", "millpond")
KILLS = 2


def demo(work: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "integration.demo.run",
        "--fast",
        "--provider",
        PROVIDER,
        "--work",
        str(work),
        *more,
    ]


def left_over(work: Path) -> list[processes.Process]:
    """Return the live processes of the demo with this `work`. All inherit its scratch folder."""
    return processes.find(str(work / "scratch"), name="TMPDIR")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run the short demo to its end. Return its work folder and its result."""
    work = tmp_path_factory.mktemp("demo") / "work"
    done = subprocess.run(
        demo(work, "--json", "--keep", "--kills", str(KILLS)),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr, "control codes without a terminal"
    assert not left_over(work)
    yield work, json.loads(done.stdout)


@pytest.mark.deep
@pytest.mark.spark
def test_killed_jobs_lose_nothing(finished: tuple[Path, dict[str, Any]]) -> None:
    work, result = finished
    assert result["wrong"] == []
    assert result["kills_mid_batch"] == KILLS
    assert result["lives"] >= KILLS + 1
    assert len(result["agent_kills"]) == (PROVIDER == "millpond")
    assert {name: job["differences"] for name, job in result["jobs"].items()} == dict.fromkeys(
        result["jobs"], 0
    )
    feeds = data.Feeds.load(work / "feeds")
    assert feeds.redelivered > 0
    assert result["jobs"]["unique"]["rows_in"] == feeds.flights + feeds.redelivered
    assert result["jobs"]["unique"]["rows_out"] == feeds.flights
    assert result["jobs"]["weather"]["rows_out"] == feeds.flights
    for name, job in result["jobs"].items():
        assert job["batches"] > feeds.files, name
        assert job["peak_state_rows"] > 100, name
        assert job["state_bytes"] > 0, name
        if PROVIDER == "millpond":
            assert job["verified"]["problems"] == [] and job["verified"]["snapshots"] > 0, name
            assert job["custom_metrics"]["millpondChangelogBytes"] > 0, name


@pytest.mark.deep
@pytest.mark.spark
def test_one_changed_row_is_found(finished: tuple[Path, dict[str, Any]]) -> None:
    work, _ = finished
    # Change the input of the batch side. The stream's output cannot change: the sink's log has the
    # sizes of its files.
    part = work / "feeds" / "deliveries" / "0001.parquet"
    original = part.read_bytes()
    table = pq.read_table(part)
    delivered = pq.read_table(part.parent, columns=["flight_id"])["flight_id"].to_pylist()
    row = next(
        i for i, flight in enumerate(table["flight_id"].to_pylist()) if delivered.count(flight) == 1
    )
    column = table.schema.get_field_index("distance")
    distances = table["distance"].to_pylist()
    distances[row] += 1
    changed = pa.array(distances, type=table.schema.field(column).type)
    pq.write_table(table.set_column(column, table.schema.field(column), changed), part)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "integration.demo.compare", str(work)],
            cwd=REPOSITORY,
            env=environment(work, "compare"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    finally:
        part.write_bytes(original)
    assert done.returncode == 1 and done.stdout, done.stderr
    verdicts = json.loads(done.stdout.splitlines()[-1])
    assert (verdicts["unique"]["missing"], verdicts["unique"]["unexpected"]) == (1, 1)
    assert len(verdicts["unique"]["samples"]) == 2
    assert {name: verdict["equal"] for name, verdict in verdicts.items() if name != "unique"} == {
        "hourly": True,
        "weather": True,
        "sessions": True,
    }


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    work = tmp_path / "work"
    last_to_start = "agent" if PROVIDER == "millpond" else "jvm"
    with subprocess.Popen(demo(work), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as running:
        assert processes.wait_until(
            lambda: (
                last_to_start in {one.role for one in left_over(work)} or running.poll() is not None
            ),
            timeout_s=120,
        )
        ended_early = running.poll() is not None
        running.send_signal(number)
        out, _ = running.communicate(timeout=60)
    assert not ended_early, out
    assert running.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL), out
    assert processes.wait_until(lambda: not left_over(work), timeout_s=30), left_over(work)
    # A demo that dies by kill -9 cannot remove its folder.
    assert work.exists() == (number == signal.SIGKILL)


def test_judge_finds_every_kind_of_fault() -> None:
    job = {
        "differences": 0,
        "samples": [],
        "source_rows": 5,
        "source_expected": 5,
        "late_rows": 0,
        "rows_out": 5,
        "peak_state_rows": 5,
        "verified": {"problems": []},
    }
    good: dict[str, Any] = {
        "provider": "millpond",
        "jobs": {"unique": job},
        "kills": [{"job": "unique", "verified": {"problems": []}}],
        "kills_mid_batch": 2,
        "agent_kills": [{}],
    }
    assert judge(good, 2) == []
    for name, value in [
        ("differences", 1),
        ("source_rows", 4),
        ("late_rows", 1),
        ("rows_out", 0),
        ("peak_state_rows", 0),
    ]:
        bad = copy.deepcopy(good)
        bad["jobs"]["unique"][name] = value
        assert len(judge(bad, 2)) == 1, name
    bad = copy.deepcopy(good)
    bad["jobs"]["unique"]["verified"]["problems"] = ["torn"]
    bad["kills"][0]["verified"]["problems"] = ["torn"]
    assert len(judge(bad, 2)) == 2
    assert judge(good | {"agent_kills": []}, 2) == ["the agent was not killed in mid-batch"]
    assert judge(good, 3) == ["only 2 of 3 kills happened in mid-batch"]


def test_feeds_are_in_event_time_order_and_complete(tmp_path: Path) -> None:
    feeds = data.prepare(tmp_path, days=9, period_days=2, seed=7)
    flights = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "flights").iterdir())]
    delivered = [
        pq.read_table(path).to_pylist() for path in sorted((tmp_path / "deliveries").iterdir())
    ]
    assert len(flights) == len(delivered) == feeds.files + data.MARKER_FILES
    assert len(list((tmp_path / "weather").iterdir())) == feeds.files + data.MARKER_FILES

    for rows in (*flights[feeds.files :], *delivered[feeds.files :]):
        assert [row["flight_id"] for row in rows] == ["marker"]
    flights, delivered = flights[: feeds.files], delivered[: feeds.files]

    newest = None
    for rows in flights:
        assert newest is None or min(row["event_time"] for row in rows) > newest
        newest = max(row["event_time"] for row in rows)

    once = [row["flight_id"] for rows in flights for row in rows]
    twice = [row["flight_id"] for rows in delivered for row in rows]
    assert len(once) == len(set(once)) == feeds.flights
    assert set(twice) == set(once) and len(twice) == feeds.flights + feeds.redelivered
    lateness = timedelta(days=int(feeds.lateness.split()[0]))
    newest = None
    for rows in delivered:
        assert newest is None or min(row["event_time"] for row in rows) > newest - lateness
        newest = max(row["event_time"] for row in rows)

    mtimes = [path.stat().st_mtime for path in sorted((tmp_path / "deliveries").iterdir())]
    assert mtimes == sorted(set(mtimes))
    assert data.Feeds.load(tmp_path) == feeds


def test_the_same_seed_makes_the_same_feeds(tmp_path: Path) -> None:
    made = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / name).mkdir()
        data.prepare(tmp_path / name, days=5, period_days=2, seed=seed)
        made.append(
            [
                pq.read_table(path).to_pylist()
                for path in sorted((tmp_path / name / "deliveries").iterdir())
            ]
        )
    assert made[0] == made[1] != made[2]


def test_query_log_tells_a_running_batch_from_a_committed_one(tmp_path: Path) -> None:
    log = QueryLog(tmp_path)
    assert (log.begun(), log.committed(), log.running(), log.files_begun()) == (-1, -1, None, 0)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "offsets" / "9").write_text(
        'v1\n{"batchWatermarkMs":0}\n{"logOffset":7}\n{"logOffset":6}'
    )
    (tmp_path / "offsets" / ".10.tmp").touch()
    assert log.running() == 9
    assert log.files_begun() == 7
    (tmp_path / "commits" / "9").touch()
    assert log.running() is None

    for store, names in {
        "0/0": ["9.changelog", "10.changelog"],
        "0/1": ["9.changelog", ".10.changelog.crc"],
    }.items():
        folder = tmp_path / "state" / store
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"12")
    os.link(
        tmp_path / "state" / "0" / "0" / "9.changelog",
        tmp_path / "state" / "0" / "0" / "9_0123.changelog",
    )
    assert log.stores_written(9) == (1, 2)
    assert log.state_bytes() == 8


def test_screen_without_a_terminal_is_plain_text() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.line("title", style="bold")
    screen.status("first")
    screen.status("too fresh to be worth a line")
    screen.table(("job", "rows"), [("a", "1,000"), ("long", "2")])
    text = out.getvalue()
    assert "\x1b" not in text and "\r" not in text
    assert "first" in text and "too fresh" not in text
    assert text.splitlines()[-4:] == ["job    rows", "----  -----", "a     1,000", "long      2"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (2 * 10**12, "2.0 TB")],
)
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text
