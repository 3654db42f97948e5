"""Queries in Spark's real-time mode: what runs, what Spark refuses, changes of the mode, kills."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import millpond
from integration.depth import deep
from integration.harness import EVERYTHING, millponds_own
from integration.jvm import IS_SPARK_4_2, MILLPOND, ROCKSDB
from integration.processes import wait_until
from integration.real_time import RealTimeJob, RefusedError, with_either_store
from integration.real_time_job import PARTITIONS, REFUSED, RUNS
from millpond import checkpoint, savepoint

pytestmark = [pytest.mark.spark, millponds_own]
needs_43 = pytest.mark.skipif(IS_SPARK_4_2, reason="Spark 4.2 has no state in real-time mode")

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_REAL_TIME = "spark.sql.streaming.stateStore.millpond.realTime"
_PARTITIONS = "spark.sql.shuffle.partitions"
_SPAN_S = 0.5  # of a batch


def _rows(count: int, start: int = 0) -> list[str]:
    return [
        f"{'abcdefg'[i * i % 7]}{i % 3},{1_700_000_000 + i},{i % 5}"
        for i in range(start, start + count)
    ]


def _counted(rows: list[str]) -> list[str]:
    """Return the state of the query `count` after `rows`, computed in one go."""
    found: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for row in rows:
        k, _, v = row.split(",")
        found[k] += 1
        sums[k] += int(v)
    return sorted(
        f"Row(key=Row(k='{k}'), value=Row(count={n}, sum={sums[k]}))" for k, n in found.items()
    )


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealTimeJob]]:
    with with_either_store(tmp_path_factory.mktemp("real-time")) as both:
        yield both


# A timer fires when its batch ends, or when the clock says so.
_BY_CLOCK = {"event-time", "processing-time"}
_QUICK = {"count"}


@needs_43
@pytest.mark.parametrize("query", [q if q in _QUICK else deep(q) for q in RUNS])
def test_every_query_of_real_time_mode_runs(jobs: dict[str, RealTimeJob], query: str) -> None:
    """The sink gets the rows that it gets with Spark's store; each input row is seen once."""
    seen = {}
    for name, job in jobs.items():
        job.do("new_source")
        job.do("start", query=query, seconds=_SPAN_S)
        job.do("add", rows=_rows(40))
        job.do("settle")
        job.do("add", rows=_rows(40, 40))
        job.do("settle")
        job.do("stop")
        seen[name] = sorted(job.out(query))
    if query in _BY_CLOCK:
        seen = {
            name: [re.sub("input.*", "input", row) for row in rows if ",input" in row]
            for name, rows in seen.items()
        }
        assert len(seen["millpond"]) == 80
    assert seen["millpond"] == seen["rocksdb"] != []
    assert checkpoint.verify(jobs["millpond"].work / query).problems == []


@needs_43
@pytest.mark.parametrize("query", list(REFUSED))
def test_what_spark_refuses_gets_sparks_error(jobs: dict[str, RealTimeJob], query: str) -> None:
    """The text is that of Spark's own store, with the names of Spark's own nodes."""
    texts = {}
    for name, job in jobs.items():
        job.do("new_source")
        job.do("start", query=query, seconds=_SPAN_S)
        text = job.do("failure").split("SQLSTATE")[0].split("exception:")[1]
        # the numbers of columns are those of their session
        texts[name] = re.sub(r"#\d+", "#", text.replace(str(job.work), ""))
    assert texts["millpond"] == texts["rocksdb"] != ""


@needs_43
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "complete"}, "OUTPUT_MODE_NOT_SUPPORTED"),
        ({"mode": "append"}, "OUTPUT_MODE"),
        # Spark refuses this one in update mode with any trigger
        ({"query": "session-window"}, "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"),
        (
            {"options": {"asyncProgressTrackingEnabled": "true"}},
            "does not support async progress tracking",
        ),
    ],
)
def test_settings_that_spark_refuses(
    jobs: dict[str, RealTimeJob], arguments: dict[str, object], says: str
) -> None:
    """Other output modes, and progress that is tracked late, which a stateful query never has."""
    for job in jobs.values():
        job.do("new_source")
        try:
            wanted = {"query": "count", "name": "refused", "seconds": _SPAN_S, **arguments}
            job.do("start", **wanted)
            text = job.do("failure")
        except RefusedError as e:
            text = str(e)
        assert says in text


@needs_43
def test_the_session_names_no_provider(jobs: dict[str, RealTimeJob]) -> None:
    """The extension takes Millpond's name out of the session, and no other name."""
    job = jobs["millpond"]
    job.do("new_source")
    job.do("set", conf={_PROVIDER: MILLPOND})
    job.do("start", query="count", name="named", seconds=_SPAN_S)
    job.do("add", rows=_rows(3))
    job.do("settle")
    job.do("stop")
    assert job.do("conf", name=_PROVIDER) != MILLPOND
    assert MILLPOND in (job.work / "named/offsets/0").read_text()
    # Without the option the session has the name again.
    job.do("set", conf={_REAL_TIME: "false"})
    job.do("new_source")
    job.do("start", query="count", name="after")
    job.do("add", rows=_rows(3))
    job.do("settle")
    job.do("stop")
    assert job.do("conf", name=_PROVIDER) == MILLPOND
    assert MILLPOND in (job.work / "after/offsets/0").read_text()
    job.do("set", conf={_REAL_TIME: "true"})
    job.do("set", conf={_PROVIDER: ROCKSDB})
    job.do("new_source")
    job.do("start", query="count", name="other", seconds=_SPAN_S)
    job.do("add", rows=_rows(3))
    job.do("settle")
    job.do("stop")
    assert ROCKSDB in (job.work / "other/offsets/0").read_text()
    job.do("set", conf={_PROVIDER: None})
    job.do("start", query="count", name="other", seconds=_SPAN_S)
    failure = job.do("failure")
    assert "MILLPOND_FOREIGN_CHECKPOINT" in failure
    # The user named no provider, so the error says how.
    assert f"set {_PROVIDER} to {ROCKSDB}" in failure


@needs_43
def test_a_session_that_names_another_store_goes_on_with_a_query_of_millponds(
    jobs: dict[str, RealTimeJob],
) -> None:
    """The offset log decides about the store, with this option too. A batch was planned on Spark's
    default store, and each restart failed.
    """
    job, name = jobs["millpond"], "pinned"
    job.do("new_source")
    job.do("start", query="count", name=name)
    job.do("add", rows=_rows(20))
    job.do("settle")
    job.do("stop")
    before = _count(job.work / name, "commit")
    job.do("set", conf={_PROVIDER: ROCKSDB})
    try:
        job.do("start", query="count", name=name)
        job.do("add", rows=_rows(20, 20))
        job.do("settle")
    finally:
        job.do("stop")
        job.do("set", conf={_PROVIDER: None})
    assert _count(job.work / name, "commit") > before
    newest = max((job.work / name / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    assert MILLPOND in newest.read_text()
    assert job.do("state", name=name) == _counted(_rows(40))
    assert checkpoint.verify(job.work / name).problems == []


@needs_43
def test_a_batch_query_may_follow_in_a_session_that_names_millpond_again(
    jobs: dict[str, RealTimeJob],
) -> None:
    """What the extension notes in the session was refused as an option that is spelled wrong."""
    job = jobs["millpond"]
    job.do("new_source")
    job.do("set", conf={_PROVIDER: MILLPOND})
    job.do("start", query="count", name="streamed")
    job.do("stop")
    assert job.do("conf", name=_PROVIDER) != MILLPOND
    job.do("set", conf={_PROVIDER: MILLPOND})
    try:
        assert job.do("batch", keys=["a", "b", "a"]) == 2
    finally:
        job.do("set", conf={_PROVIDER: None})


@needs_43
def test_without_the_option_spark_refuses_the_session(jobs: dict[str, RealTimeJob]) -> None:
    """Spark says which setting is wrong, before Millpond hears of the query."""
    job = jobs["millpond"]
    job.do("set", conf={_REAL_TIME: "false", _PROVIDER: MILLPOND})
    try:
        with pytest.raises(RefusedError, match=r"SQL_CONFIGURATION_NOT_SUPPORTED.*providerClass"):
            job.do("start", query="count", name="without", seconds=_SPAN_S)
    finally:
        job.do("set", conf={_REAL_TIME: "true"})


@needs_43
def test_checkpoint_format_1_is_refused(jobs: dict[str, RealTimeJob]) -> None:
    """Spark refuses it; a new query begins with format 2, by whatever trigger."""
    job = jobs["millpond"]
    job.do("set", conf={_FORMAT: "1"})
    job.do("new_source")
    job.do("start", query="count", name="old")
    job.do("add", rows=_rows(3))
    job.do("settle")
    job.do("stop")
    job.do("set", conf={_FORMAT: None})
    job.do("start", query="count", name="old", seconds=_SPAN_S)
    assert "CHECKPOINT_FORMAT_V1_NOT_SUPPORTED" in job.do("failure")
    # it goes on in its own format
    job.do("start", query="count", name="old")
    job.do("add", rows=_rows(3, 3))
    job.do("settle")
    job.do("stop")
    assert job.do("state", name="old") == _counted(_rows(6))
    # the way that the error's page names: a new query, which begins with the state of this one
    job.do("new_source")
    keys = job.do("bootstrap", query="count", source="old", name="new")
    assert keys == len(_counted(_rows(6)))
    job.do("start", query="count", name="new", seconds=_SPAN_S)
    job.do("add", rows=_rows(3, 6))
    job.do("settle")
    job.do("stop")
    assert job.do("state", name="new") == _counted(_rows(9))
    assert checkpoint.verify(job.work / "new").problems == []


@needs_43
def test_a_field_of_sparks_that_is_gone_is_named(jobs: dict[str, RealTimeJob]) -> None:
    """`transformWithState` in real-time mode needs one that another build of Spark may rename."""
    with pytest.raises(RefusedError, match=r"UNSUPPORTED.*Spark 4\.3.* no field GONE in java"):
        jobs["millpond"].do("private_field", owner="java.lang.String", name="GONE")


@needs_43
def test_the_mode_changes_at_a_restart(jobs: dict[str, RealTimeJob], tmp_path: Path) -> None:
    """State is kept both ways; a rescale, a savepoint, a move of the store come between."""
    job = jobs["millpond"]
    job.do("new_source")
    path = job.work / "both"
    added = 0
    for seconds in (None, _SPAN_S, None, _SPAN_S):
        job.do("start", query="count", name="both", **({"seconds": seconds} if seconds else {}))
        job.do("add", rows=_rows(20, added))
        added += 20
        job.do("settle")
        if seconds:
            # while it runs
            millpond.savepoint.create(path, tmp_path / f"saved-{added}")
        job.do("stop")
        assert job.do("state", name="both") == _counted(_rows(added))
        if added == 40:
            assert millpond.rescale(path, 4).partitions == 4
            assert job.do("state", name="both") == _counted(_rows(added))
    assert checkpoint.verify(path).problems == []
    # the second savepoint goes on by itself, in either mode
    for name, seconds in (("real", _SPAN_S), ("micro", None)):
        savepoint.restore(tmp_path / "saved-80", job.work / name)
        job.do("start", query="count", name=name, **({"seconds": seconds} if seconds else {}))
        job.do("add", rows=_rows(20, added))
        added += 20
        job.do("settle")
        job.do("stop")
        assert job.do("state", name=name) == _counted(_rows(added))


@needs_43
@pytest.mark.parametrize("query", ["count", deep("dedup-count"), deep("processing-time")])
def test_a_query_that_began_in_real_time_mode_is_rescaled(
    jobs: dict[str, RealTimeJob], query: str
) -> None:
    """Spark told of its operators when batch 0 ended. Its stores, which open before, did not know
    how a row leads to its partition, and could never be rescaled.
    """
    job, name = jobs["millpond"], f"begun-{query}"
    job.do("new_source")
    job.do("start", query=query, name=name, seconds=_SPAN_S)
    job.do("add", rows=_rows(20))
    job.do("settle")
    job.do("stop")
    for added, partitions in ((40, 4), (60, 3)):
        assert millpond.rescale(job.work / name, partitions).partitions == partitions
        job.do("start", query=query, name=name, seconds=_SPAN_S)
        job.do("add", rows=_rows(20, added - 20))
        job.do("settle")
        job.do("stop")
        if query == "count":
            assert job.do("state", name=name) == _counted(_rows(added))
        assert checkpoint.verify(job.work / name).problems == []


def _values(job: RealTimeJob, name: str) -> list[str]:
    """Return what a state variable holds. Spark's RocksDB store asks the session for the format."""
    job.do("set", conf={_FORMAT: "2"})
    try:
        return list(job.do("state", name=name, options={"stateVarName": "value"}))
    finally:
        job.do("set", conf={_FORMAT: None})


@needs_43
@pytest.mark.parametrize("seconds", [_SPAN_S, deep(None)])
def test_a_batch_that_is_cut_short_leaves_no_operator(
    jobs: dict[str, RealTimeJob], seconds: float | None
) -> None:
    """The next run may have other variables. Spark writes no operator twice, and so it would write
    down those of the batch that was cut short.
    """
    name = f"operators-{seconds}"
    later = {"seconds": seconds} if seconds else {}
    seen = {}
    for store, job in jobs.items():
        job.do("new_source")
        job.do("start", query="dropped", name=name, seconds=_SPAN_S)
        job.do("add", rows=_rows(20))
        job.do("settle")
        job.do("stop")
        # a variable more, in a batch far longer than the test
        job.do("start", query="counted", name=name, seconds=600)
        job.do("add", rows=_rows(20, 20))
        job.do("seen", name=name, rows=40)
        job.do("stop")
        # this variable has another type
        job.do("start", query="named", name=name, **later)
        job.do("settle")
        job.do("stop")
        seen[store] = [_values(job, name)]
        job.do("start", query="named", name=name, **later)
        job.do("add", rows=_rows(5, 40))
        job.do("settle")
        job.do("stop")
        seen[store].append(_values(job, name))
    assert seen["millpond"] == seen["rocksdb"]
    assert "name='named'" in seen["millpond"][0][0]
    assert checkpoint.verify(jobs["millpond"].work / name).problems == []


@needs_43
@pytest.mark.parametrize("query", ["count", deep("no-time")])
def test_a_first_batch_that_is_cut_short(jobs: dict[str, RealTimeJob], query: str) -> None:
    """The next run may have another number of partitions: nothing was written for the first one."""
    job, name = jobs["millpond"], f"first-{query}"
    job.do("new_source")
    job.do("start", query=query, name=name, seconds=600)
    job.do("add", rows=_rows(20))
    job.do("seen", name=name, rows=20)
    job.do("stop")
    job.do("set", conf={_PARTITIONS: "3"})
    try:
        job.do("start", query=query, name=name, seconds=_SPAN_S)
        job.do("settle")
    finally:
        job.do("stop")
        job.do("set", conf={_PARTITIONS: str(PARTITIONS)})
    if query == "count":
        assert job.do("state", name=name) == _counted(_rows(20))
    assert checkpoint.verify(job.work / name).problems == []
    assert checkpoint.show(job.work / name).partitions == 3


@needs_43
@pytest.mark.deep
@pytest.mark.parametrize("query", ["no-time", "dedup-count"])
def test_operators_keep_their_state_when_the_mode_changes(
    jobs: dict[str, RealTimeJob], query: str
) -> None:
    """Values, lists, maps, keys that were seen: later results are those with Spark's store.

    A key has one row in micro-batches, so it does not matter which rows are in one batch.
    """
    once = list({row.split(",")[0]: row for row in _rows(20, 20)}.values())
    name = f"{query}-modes"
    seen: dict[str, list[list[str]]] = {}
    for store, job in jobs.items():
        job.do("new_source")
        for seconds, rows in ((_SPAN_S, _rows(20)), (None, once), (_SPAN_S, _rows(20, 40))):
            before = Counter(job.out(name))
            job.do("start", query=query, name=name, **({"seconds": seconds} if seconds else {}))
            job.do("add", rows=rows)
            job.do("settle")
            job.do("stop")
            seen.setdefault(store, []).append(sorted((Counter(job.out(name)) - before).elements()))
    assert seen["millpond"] == seen["rocksdb"]
    assert seen["millpond"][-1] != []
    assert checkpoint.verify(jobs["millpond"].work / name).problems == []


@pytest.mark.skipif(not IS_SPARK_4_2, reason="about Spark 4.2")
def test_spark_4_2_gets_a_clear_error(tmp_path: Path) -> None:
    """It has the trigger, and no stateful operator for it."""
    with RealTimeJob(tmp_path / "job") as job:
        job.do("start", query="count", seconds=_SPAN_S)
        assert "[MILLPOND_UNSUPPORTED] Spark 4.2" in job.do("failure")


@needs_43
@pytest.mark.deep
def test_adopt_and_release(jobs: dict[str, RealTimeJob]) -> None:
    """A query in real-time mode moves from Spark's store to Millpond and back."""
    ours, theirs = jobs["millpond"], jobs["rocksdb"]
    theirs.do("new_source")
    theirs.do("start", query="count", name="begun", seconds=_SPAN_S)
    theirs.do("add", rows=_rows(20))
    theirs.do("settle")
    theirs.do("stop")
    millpond.adopt(theirs.work / "begun", ours.work / "adopted")
    ours.do("new_source")
    ours.do("add", rows=_rows(20))
    ours.do("start", query="count", name="adopted", seconds=_SPAN_S)
    ours.do("add", rows=_rows(20, 20))
    ours.do("settle")
    ours.do("stop")
    assert ours.do("state", name="adopted") == _counted(_rows(40))
    millpond.release(ours.work / "adopted", theirs.work / "released", provider="rocksdb")
    theirs.do("add", rows=_rows(20, 20))
    theirs.do("start", query="count", name="released", seconds=_SPAN_S)
    theirs.do("add", rows=_rows(20, 40))
    theirs.do("settle")
    theirs.do("stop")
    rows = [row.split(",") for row in theirs.out("released")]
    finals = {k: max(int(n) for key, n, _ in rows if key == k) for k, _, _ in rows}
    counts = Counter(row.split(",")[0] for row in _rows(60))
    assert finals == {k: n for k, n in counts.items() if k in finals} != {}


@needs_43
@pytest.mark.deep
def test_a_batch_beyond_the_memory_budget(tmp_path: Path) -> None:
    """A long batch moves its writes to the disk. Stopped in the middle, it leaves no trace."""
    conf = {"spark.sql.streaming.stateStore.millpond.memory.budget": "16m"}
    rows = [f"{'k' * 1000}{i % 30_000},{1_700_000_000 + i},{i % 5}" for i in range(40_000)]
    with RealTimeJob(tmp_path / "job", conf=conf) as job:
        job.do("start", query="count", seconds=_SPAN_S)
        job.do("add", rows=_rows(20))
        job.do("settle")
        job.do("stop")
        before = job.do("state", name="count")
        assert before == _counted(_rows(20))
        # a batch far longer than the test
        job.do("start", query="count", seconds=600)
        job.do("add", rows=rows)
        job.do("seen", name="count", rows=20 + len(rows))
        job.do("stop")
        assert job.do("state", name="count") == before
        job.do("start", query="count", seconds=12)
        job.do("settle")
        progress = job.do("progress")
        job.do("stop")
        spills = sum(
            p["stateOperators"][0]["customMetrics"]["millpondSpills"]
            for p in progress
            if p["stateOperators"]
        )
        assert spills > 0
        assert job.do("state", name="count") == _counted([*_rows(20), *rows])
        assert checkpoint.verify(job.work / "count").problems == []


_KILLS = ["changelog", "middle", "offsets", "commit"]


@needs_43
@pytest.mark.deep
@pytest.mark.parametrize("at", _KILLS if EVERYTHING else _KILLS[:2])
def test_killed(tmp_path: Path, at: str) -> None:
    """The driver dies by kill -9, three times: the state has each row of the read offsets once.

    It dies in the middle of a batch, when the first store of the batch has committed, when Spark
    wrote what the batch read, and when the batch was committed. The sink may get rows twice.
    """
    rows: list[str] = []
    query = tmp_path / "job/count"
    for _ in range(3):
        with RealTimeJob(tmp_path / "job") as job:
            job.do("add", rows=rows)
            before = _committed(query)
            if before:
                assert job.do("state", name="count") == _counted(rows[:before])
            # in the middle of a batch that never ends
            job.do("start", query="count", seconds=600 if at == "middle" and rows else _SPAN_S)
            seen = len(job.out("count"))
            more = _rows(200, len(rows))
            rows += more
            job.do("add", rows=more)
            if at == "middle":
                job.do("seen", name="count", rows=seen + len(more))
            else:
                number = _count(query, at)
                job.send("add", rows=_rows(100, len(rows)))
                rows += _rows(100, len(rows))
                wait_until(lambda n=number: _count(query, at) > n, seconds=60, what=at)  # type: ignore[misc]
            job.kill()
        assert checkpoint.verify(query).problems == []
        # whatever the kill left behind, what was committed can be saved
        saved = tmp_path / f"saved-{len(rows)}"
        if _committed(query):
            millpond.savepoint.create(query, saved)
            savepoint.restore(saved, tmp_path / f"job/restored-{len(rows)}")
    with RealTimeJob(tmp_path / "job") as job:
        for restored in (tmp_path / "job").glob("restored-*"):
            assert job.do("state", name=restored.name) == _counted(rows[: _committed(restored)])
        job.do("start", query="count", seconds=_SPAN_S)
        job.do("add", rows=rows)
        job.do("settle")
        job.do("stop")
        assert job.do("state", name="count") == _counted(rows)


def _committed(query: Path) -> int:
    """Return how many rows the last committed batch of a query, and those before, had read."""
    batches = [int(p.name) for p in (query / "commits").glob("*") if p.name.isdigit()]
    if not batches:
        return 0
    text = (query / "offsets" / str(max(batches))).read_text()
    return int(json.loads(text.splitlines()[-1])["0"])


def _count(query: Path, what: str) -> int:
    """Return how many files of a kind a query has."""
    if what == "changelog":
        return sum(1 for _ in (query / "state").rglob("[0-9]*.changelog"))
    folder = query / ("commits" if what == "commit" else what)
    return sum(p.name.isdigit() for p in folder.glob("*"))
