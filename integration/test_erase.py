"""`millpond state erase` takes a key out of every retained version, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millpond
from integration.cases import EVENTS, NO_EMPTY_BATCHES, events
from integration.depth import deep, quick_first
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.streams import Input, Run, finish, settings, start
from integration.test_lookup import _run
from integration.test_plan import Deleting, Variable
from integration.test_s3_queries import on_s3
from millpond import checkpoint, savepoint, state
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.format.manifest import decode_manifest
from millpond.operations.erase import places
from millpond.state.writing import plain
from millpond.storage import LocalStorage, open_checkpoint, open_storage
from tests.failing_storage import FailingStorage, Killed
from tests.s3_server import S3Server, s3_server

pytestmark = pytest.mark.spark
_CASES = [
    "agg-complete",
    "join-full-v4",
    "sessions-append-ids",
    "agg-window-append-ids",
    "scala-event-time-avro",
    "row-processing-time",
    "dedupe-update-odd-keys-ids",
    "join-left",
    "join-full-v3",
]


def leaves(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    else:
        yield value


def whole_state(place: Path, batches: Sequence[int | None]) -> dict[Any, list[dict[str, Any]]]:
    """Return all rows of all batches, as JSON has them."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for batch in batches:
        for family in state.list(place, batch=batch, count=False).families:
            table = millpond.read_state(
                place,
                batch=batch,
                operator=family.operator,
                store=family.store,
                column_family=family.column_family,
            )
            where = (batch, family.operator, family.store, family.column_family)
            found[where] = [plain(row) for row in table.to_pylist(maps_as_pydicts=None)]
    return found


def has(row: dict[str, Any], wanted: list[Any]) -> bool:
    """Whether the columns of a row's key have these values, one after the other."""
    values = list(leaves(row["key"]))
    count = len(wanted)
    return any(values[at : at + count] == wanted for at in range(len(values) - count + 1))


def without(
    found: dict[Any, list[dict[str, Any]]], operator: int, wanted: list[Any]
) -> dict[Any, list[dict[str, Any]]]:
    return {
        where: [row for row in rows if where[1] != operator or not has(row, wanted)]
        for where, rows in found.items()
    }


def sorted_rows(found: dict[Any, list[dict[str, Any]]]) -> dict[Any, list[str]]:
    return {where: sorted(map(json.dumps, rows)) for where, rows in found.items()}


def committed(place: Path) -> list[int]:
    return sorted(int(p.name) for p in (place / "commits").iterdir() if p.name.isdecimal())


def first_key(place: Path, batch: int | None = None) -> tuple[int, dict[str, Any]]:
    """Return an operator and the columns of the key of one of its rows, a text for each."""
    for family in state.list(place, batch=batch, count=False).families:
        if family.internal:
            continue
        rows = millpond.read_state(
            place,
            batch=batch,
            operator=family.operator,
            store=family.store,
            column_family=family.column_family,
        ).to_pylist(maps_as_pydicts=None)
        for row in rows:
            key = row["key"]
            if isinstance(next(iter(key.values())), dict) and len(key) > 1 and "key" in key:
                key = key["key"]
            return family.operator, {
                name: value
                for name, value in key.items()
                if name not in ("index", "session_window", "sessionStartTime", "__event_time")
            }
    raise AssertionError("no row")


@pytest.mark.parametrize("name", quick_first(_CASES))
def test_a_key_goes_from_all_batches(spark: SparkSession, tmp_path: Path, name: str) -> None:
    place = _run(spark, name, tmp_path).checkpoint
    batches = committed(place)
    batch = next(b for b in reversed(batches) if any(whole_state(place, [b]).values()))
    operator, key = first_key(place, batch)
    flat = {
        f"{name}.{inner}" if inner else name: leaf
        for name, value in key.items()
        for inner, leaf in (value.items() if isinstance(value, dict) else [("", value)])
    }
    before = whole_state(place, batches)
    expected = sorted_rows(without(before, operator, [plain(v) for v in flat.values()]))
    assert expected != sorted_rows(before)
    planned = millpond.erase([place], key=flat, operator=operator, dry_run=True)
    assert sorted_rows(whole_state(place, batches)) == sorted_rows(before)
    (done,) = millpond.erase([place], key=flat, operator=operator).places
    # An executor may have published a snapshot in between, which goes as well.
    assert (done.files, done.stores) == (planned.places[0].files, planned.places[0].stores)
    assert done.files and done.proof is not None and done.proof.raw_bytes > 0
    assert done.digest_before != done.digest_after
    assert sorted_rows(whole_state(place, batches)) == expected
    _wait_until_whole(place)
    counted = state.list(place).families
    assert {(f.operator, f.store, f.column_family): f.rows for f in counted} == {
        where[1:]: len({json.dumps(row["key"]) for row in map(json.loads, rows)})
        for where, rows in expected.items()
        if where[0] == batches[-1]
    }
    (again,) = millpond.erase([place], key=flat, operator=operator).places
    assert (again.rows, again.entries, again.files) == (0, 0, 0)


class Query:
    """A query that keeps for each name the largest text, whose files are not compressed."""

    def __init__(
        self,
        spark: SparkSession,
        work: Path,
        spark_format: str = "1",
        conf: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._spark = spark
        schema = pa.schema([("k", pa.string()), ("v", pa.string())])
        self._source, self._run = Input(work / "input", schema), Run(work / "query")
        self._batches = 0
        state_store = "spark.sql.streaming.stateStore"
        self._conf = {
            f"{state_store}.providerClass": MILLPOND,
            "spark.sql.shuffle.partitions": "4",
            f"{state_store}.minDeltasForSnapshot": "2",
            f"{state_store}.millpond.changelog.codec": "none",
            f"{state_store}.millpond.snapshot.compression": "none",
            f"{state_store}.checkpointFormatVersion": spark_format,
            **conf,
        }

    def run(self, count: int) -> Path:
        """Do some batches. Each has every name once."""
        for number in range(self._batches, self._batches + count):
            rows = [{"k": f"name-{n}", "v": f"value-{n}-{number:04}"} for n in range(40)]
            self._source.add([*rows, {"k": "erase-me-0123", "v": f"my-secret-text-{number:04}"}])
        frame = self._source.stream(self._spark).groupBy("k").agg({"v": "max", "*": "count"})
        finish(
            start(self._spark, frame, self._run, output_mode="update", conf=self._conf), self._run
        )
        self._batches += count
        return self._run.checkpoint


def bytes_left(place: Path, needle: bytes) -> list[str]:
    """Return the files whose bytes have the needle. None is compressed, but for tables.

    An executor may be at a snapshot. When a file has gone that was listed, as a staged one that
    got its name, the folder is listed again: its bytes are in a file that the list may not have.
    """

    def content(path: Path) -> bytes:
        rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else []
        return path.read_bytes() + repr(rows).encode()

    while True:
        try:
            files = [path for path in place.rglob("*") if path.is_file()]
            return [str(path.relative_to(place)) for path in files if needle in content(path)]
        except FileNotFoundError:
            continue


def _wait_until_whole(place: Path) -> None:
    """An executor may just be at a snapshot, which it takes back."""
    wait_until(
        lambda: checkpoint.verify(place).problems == [],
        seconds=30,
        what="the executor to take back its snapshot",
    )


def _wait_until_no_byte_is_left(place: Path) -> None:
    """An executor may just be at a snapshot, which it takes back."""
    wait_until(
        lambda: not bytes_left(place, b"my-secret-text") + bytes_left(place, b"erase-me-0123"),
        seconds=30,
        what="the executor to take back its snapshot",
    )


@pytest.mark.parametrize("spark_format", quick_first(["1", "2"]))
def test_no_byte_is_left_and_the_query_goes_on(
    spark: SparkSession, tmp_path: Path, spark_format: str
) -> None:
    query = Query(spark, tmp_path, spark_format)
    place = query.run(5)
    for form in ("native", "canonical"):
        savepoint.create(str(place), str(tmp_path / form), format=form)
    key = {"k": "erase-me-0123"}
    assert bytes_left(place, b"my-secret-text") and bytes_left(place, b"erase-me")
    found = [place, tmp_path / "native", tmp_path / "canonical"]
    report = millpond.erase(found, key=key)
    assert [done.rows for done in report.places] == [1, 1, 1]
    for one in found:
        _wait_until_no_byte_is_left(one)
    for one in found[1:]:
        assert savepoint.verify(str(one)).problems == []
    expected = {f"name-{n}": 5 for n in range(40)}
    for one in found:
        rows = millpond.read_state(one).to_pylist()
        assert {row["key"]["k"]: row["value"]["count"] for row in rows} == expected
    assert bytes_left(tmp_path / "input", b"my-secret-text"), "the sources are not Millpond's"
    query.run(2)
    savepoint.restore(str(found[1]), str(tmp_path / "restored"))
    savepoint.restore(str(found[2]), str(tmp_path / "again"), partitions=8)
    rows = millpond.read_state(place).to_pylist()
    later = {**dict.fromkeys(expected, 7), "erase-me-0123": 2}
    assert {row["key"]["k"]: row["value"]["count"] for row in rows} == later
    assert checkpoint.verify(place).problems == []
    for name in ("restored", "again"):
        rows = millpond.read_state(tmp_path / name).to_pylist()
        assert {row["key"]["k"]: row["value"]["count"] for row in rows} == expected


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.mark.deep
def test_on_s3(
    spark: SparkSession, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a query is on S3, and so is a savepoint. Another query's state is left alone."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = server.bucket()
    conf = on_s3(server, f"s3://{bucket}/states")
    query, other = (Query(spark, tmp_path / name, conf=conf) for name in ("one", "other"))
    place, beside = query.run(4), other.run(2)
    saved = f"s3://{bucket}/saved"
    savepoint.create(str(place), saved)
    before = sorted_rows(whole_state(beside, committed(beside)))
    (done, _) = millpond.erase([str(place), saved], key={"k": "erase-me-0123"}).places
    assert done.rows == 1 and done.proof is not None
    assert sorted_rows(whole_state(beside, committed(beside))) == before
    storage = open_checkpoint(str(place))

    def left() -> list[str]:
        found = [(storage, "state/"), (open_storage(saved), "")]
        return [
            info.key
            for where, prefix in found
            for info in where.list(prefix)
            if b"my-secret-text" in where.read(info.key)
        ]

    wait_until(lambda: not left(), seconds=30, what="the executor to take back its snapshot")
    assert savepoint.verify(saved).problems == []
    _wait_until_whole(place)
    query.run(1)
    for state_, batches in ((str(place), 5), (saved, 4)):
        counts = {
            r["key"]["k"]: r["value"]["count"] for r in millpond.read_state(state_).to_pylist()
        }
        assert counts.pop("erase-me-0123", None) == (1 if batches == 5 else None)
        assert counts == {f"name-{n}": batches for n in range(40)}


@pytest.mark.deep
def test_versions_from_before_and_after_a_rescale(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    place = query.run(4)
    millpond.rescale(place, 8)
    query.run(3)
    millpond.rescale(place, 3)
    query.run(2)
    batches = committed(place)
    readable = [b for b in batches if _is_kept(place, b)]
    before = whole_state(place, readable)
    assert any("composed" in p.read_text() for p in place.rglob("*.manifest"))
    millpond.erase([place], key={"k": "erase-me-0123"})
    expected = without(before, 0, ["erase-me-0123"])
    assert sorted_rows(whole_state(place, readable)) == sorted_rows(expected)
    _wait_until_no_byte_is_left(place)
    _wait_until_whole(place)
    query.run(1)
    counts = {r["key"]["k"]: r["value"]["count"] for r in millpond.read_state(place).to_pylist()}
    assert counts == {**{f"name-{n}": 10 for n in range(40)}, "erase-me-0123": 1}


@pytest.mark.deep
def test_rows_of_a_variable_that_was_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """A new variable has the number of a deleted one, whose rows are still in sorted files."""
    state_store = "spark.sql.streaming.stateStore"
    conf = {
        **NO_EMPTY_BATCHES,
        f"{state_store}.providerClass": MILLPOND,
        f"{state_store}.minDeltasForSnapshot": "1",
        f"{state_store}.maintenanceInterval": "100ms",
        f"{state_store}.millpond.changelog.codec": "none",
        f"{state_store}.millpond.snapshot.compression": "none",
        "spark.sql.shuffle.partitions": "1",
    }
    source, run = Input(tmp_path / "input", EVENTS), Run(tmp_path / "query")
    place = run.checkpoint
    names = ["erase-me-0123", "someone"]
    it, old, new = ({name: Variable(name)} for name in ("value", "map", "list"))
    jobs = [*[(it | old, ())] * 2, *[(it, ("map",))] * 2, *[(it | new, ())] * 2]
    for number, (variables, gone) in enumerate(jobs):
        source.add(events(*[(name, 1, 1) for name in names]))
        frame = (
            source.stream(spark)
            .groupBy("k")
            .transformWithState(
                Deleting("row", variables, gone),
                "k string, what string, state string",
                "Update",
                "None",
            )
        )
        finish(start(spark, frame, run, output_mode="update", conf=conf), run)
        if number:  # a snapshot is of a version that another one follows
            wait_until(
                (place / f"state/0/0/{number}.manifest").is_file,
                seconds=60,
                what=f"the snapshot {number}",
            )
    numbers: dict[int, set[str]] = {}
    for manifest in place.rglob("*.manifest"):
        for family in decode_manifest(manifest.read_bytes()).column_families:
            numbers.setdefault(family.id, set()).add(family.name)
    assert any(len(found) > 1 for found in numbers.values()), numbers
    batches = committed(place)
    before = whole_state(place, batches)
    (done,) = millpond.erase([place], key={"k": "erase-me-0123"}).places
    assert done.files and done.proof is not None
    assert sorted_rows(whole_state(place, batches)) == sorted_rows(
        without(before, 0, ["erase-me-0123"])
    )
    wait_until(
        lambda: not bytes_left(place / "state", b"erase-me-0123"),
        seconds=30,
        what="the executor to take back its snapshot",
    )
    _wait_until_whole(place)
    (again,) = millpond.erase([place], key={"k": "erase-me-0123"}).places
    assert (again.entries, again.files) == (0, 0)
    (other,) = millpond.erase([place], key={"k": "nobody"}).places
    assert other.files == 0


def _is_kept(place: Path, batch: int) -> bool:
    try:
        millpond.read_state(place, batch=batch)
    except MillpondError as e:
        assert e.kind is ErrorKind.BATCH_NOT_COMMITTED, e
        return False
    return True


@pytest.fixture(scope="module")
def ready(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query with a rescale, and two savepoints of it."""
    work = tmp_path_factory.mktemp("ready")
    query = Query(spark, work)
    place = query.run(3)
    millpond.rescale(place, 8)
    query.run(3)
    savepoint.create(str(place), str(work / "native"))
    savepoint.create(str(place), str(work / "canonical"), format="canonical")
    return work


def test_what_no_batch_needs_goes_as_well(ready: Path, tmp_path: Path) -> None:
    """A partition that a rescale left behind, attempts that lost, files without a manifest."""
    place = tmp_path / "query"
    shutil.copytree(ready / "query", place)
    (holder,) = {
        path.parent.name
        for path in place.glob("state/0/*/*.changelog")
        if b"my-secret-text-0005" in path.read_bytes()
    }
    shutil.copytree(place / "state/0" / holder, place / "state/0/9")
    last = max((place / "state/0" / holder).glob("*.changelog"), key=lambda p: int(p.stem))
    shutil.copy(last, last.with_name(f"{int(last.stem) + 1}.changelog"))  # not committed
    shutil.copy(last, last.with_name(f".staging-{'0' * 32}"))
    batches = [b for b in committed(place) if _is_kept(place, b)]
    before = whole_state(place, batches)
    (done,) = millpond.erase([place], key={"k": "erase-me-0123"}).places
    assert (0, 9, "default") in done.stores
    assert not any(path.is_file() for path in (place / "state/0/9").rglob("*"))
    assert bytes_left(place, b"my-secret-text") == bytes_left(place, b"erase-me-0123") == []
    after = whole_state(place, batches)
    assert sorted_rows(after) == sorted_rows(without(before, 0, ["erase-me-0123"]))


@pytest.mark.parametrize("what", [deep("query"), "native", "canonical"])
def test_killed_at_every_step(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Until it is run again the state is as it was, or nobody gets at it."""
    key = {"k": "erase-me-0123"}
    batches: list[int | None] = [None]
    if what == "query":
        batches = [b for b in committed(ready / what) if _is_kept(ready / what, b)]
    before = sorted_rows(whole_state(ready / what, batches))
    expected = sorted_rows(without(whole_state(ready / what, batches), 0, ["erase-me-0123"]))
    unfinished = 0
    for steps in range(200):
        place = tmp_path / str(steps)
        shutil.copytree(ready / what, place)
        storage = FailingStorage(str(place), left=steps, kills=True)
        monkeypatch.setattr(places, "open_checkpoint", lambda root, s=storage: s)
        try:
            millpond.erase([place], key=key)
            ended = True
        except Killed:
            ended = False
        monkeypatch.undo()
        if not ended:
            try:
                assert sorted_rows(whole_state(place, batches)) in (before, expected)
            except MillpondError as e:
                assert e.kind is ErrorKind.ERASE_UNFINISHED
                unfinished += 1
                with pytest.raises(MillpondError) as refused:
                    millpond.erase([place], key={"k": "name-1"})
                assert refused.value.kind is ErrorKind.ERASE_UNFINISHED
            # killed again, one step on
            storage = FailingStorage(str(place), left=steps // 2 + 1, kills=True)
            monkeypatch.setattr(places, "open_checkpoint", lambda root, s=storage: s)
            with suppress(Killed):
                millpond.erase([place], key=key)
            monkeypatch.undo()
            millpond.erase([place], key=key)
        assert sorted_rows(whole_state(place, batches)) == expected, steps
        assert bytes_left(place, b"my-secret-text") == bytes_left(place, b"erase-me-0123") == []
        assert not (place / layout.ERASE_JOURNAL_KEY).exists()
        problems = checkpoint.verify(place) if what == "query" else savepoint.verify(str(place))
        assert problems.problems == []
        shutil.rmtree(place)
        if ended:
            break
    assert ended and unfinished >= 2, unfinished


def test_what_is_wrong_is_said(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ready / "query"
    files = sorted(p for p in place.rglob("*") if p.is_file())
    stamps = [p.stat().st_mtime_ns for p in files]
    given = ["state", "erase", str(place)]
    for arguments, code, text in (
        ([], 2, "a key is needed; there are: k"),
        (["--key", "name=x"], 2, "no key column 'name'; there are: k"),
        (["--key", "k=x", "--operator", "7"], 2, "no operator '7'"),
        ([str(tmp_path), "--key", "k=x"], 2, "NOT_A_CHECKPOINT"),
    ):
        assert main([*given, *arguments]) == code
        assert text in capsys.readouterr().err
    assert main([*given, "--key", "k=erase-me-0123", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "1 of the newest batch" in said.out and "nothing was erased" in said.err
    assert main([*given, "--key", "k=nobody"]) == 0
    assert "none has the key" in capsys.readouterr().out
    left = sorted(p for p in place.rglob("*") if p.is_file())
    assert [p.stat().st_mtime_ns for p in left if p in files] == stamps
    storage = LocalStorage(str(place))
    beat = next(iter(storage.list(layout.RUNNING_PREFIX)), None)
    assert beat is None, "the query has ended"


def test_a_running_query_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    source, run = (
        Input(tmp_path / "input", pa.schema([("k", pa.string())])),
        Run(tmp_path / "query"),
    )
    source.add([{"k": "a"}])
    frame = source.stream(spark).groupBy("k").count()
    conf = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}
    # The first heartbeat of a new query comes seconds after its start, that of another one at once.
    finish(start(spark, frame, run, output_mode="update", conf=conf), run)
    writer = (
        frame.writeStream.format("noop").outputMode("update").trigger(processingTime="1 second")
    )
    with settings(spark, conf):
        running = writer.option("checkpointLocation", str(run.checkpoint)).start()
    try:
        running.processAllAvailable()
        beats = run.checkpoint / "millpond/running"
        wait_until(lambda: bool(list(beats.glob("*.json"))), seconds=30, what="its heartbeat")
        with pytest.raises(MillpondError) as refused:
            millpond.erase([run.checkpoint], key={"k": "a"})
        assert refused.value.kind is ErrorKind.QUERY_RUNNING
    finally:
        running.stop()
