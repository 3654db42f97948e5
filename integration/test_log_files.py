"""Spark's own logs on a local disk: the files of Hadoop's client, without its programs."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from integration.harness import millponds_own
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, start
from integration.test_pressure_faults import leave_free, small_disk

pytestmark = [pytest.mark.spark, millponds_own]
_KEY = "spark.sql.streaming.checkpointFileManagerClass"
_OURS = "org.apache.spark.sql.millpond.MillpondLogFiles"
_SPARKS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
disk = small_disk


class Files:
    """A file manager of Spark's for one folder, and Hadoop's client beside it."""

    def __init__(self, spark: SparkSession, folder: Path, manager: str) -> None:
        assert spark._jvm is not None
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._conf.set(_KEY, manager)
        checkpointing = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._manager = checkpointing.CheckpointFileManager.create(
            self._path(folder.as_uri()), self._conf
        )
        self.folder = folder

    def begin(self, name: str, text: bytes, overwrite: bool = False) -> Any:
        """Return a stream that has this text, and that gives the file its name when closed."""
        out = self._manager.createAtomic(self._path((self.folder / name).as_uri()), overwrite)
        out.write(bytearray(text))
        return out

    def write(self, name: str, text: bytes, overwrite: bool = False) -> Path:
        self.begin(name, text, overwrite).close()
        return self.folder / name

    def read(self, file: Path) -> bytes:
        """Read with Hadoop's client, which checks the sums."""
        path = self._path(file.as_uri())
        stream = path.getFileSystem(self._conf).open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def names(self) -> set[str]:
        return {file.name for file in self.folder.iterdir()}


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path, _OURS)


def java_class(error: pytest.ExceptionInfo[Py4JJavaError]) -> str:
    return str(error.value.java_exception.getClass().getName())


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 100_000])
def test_a_file_is_what_hadoops_client_writes(
    spark: SparkSession, tmp_path: Path, size: int
) -> None:
    text = bytes(number * 7 % 251 for number in range(size))
    written = {}
    for manager in (_OURS, _SPARKS):
        folder = tmp_path / manager.rsplit(".", 1)[1]
        folder.mkdir()
        files = Files(spark, folder, manager)
        assert files.read(files.write("7", text)) == text
        written[manager] = {
            file.name: (file.read_bytes(), stat.S_IMODE(file.stat().st_mode))
            for file in folder.iterdir()
        }
    assert set(written[_OURS]) == {"7", ".7.crc"}
    assert written[_OURS] == written[_SPARKS]


def test_a_flipped_byte_is_seen_by_hadoops_client(files: Files) -> None:
    file = files.write("7", bytes(2000))
    file.write_bytes(bytes(1999) + b"x")
    with pytest.raises(Py4JJavaError) as error:
        files.read(file)
    assert java_class(error) == "org.apache.hadoop.fs.ChecksumException"


def test_of_two_writers_the_first_keeps_the_name(files: Files) -> None:
    first, second = files.begin("7", b"first"), files.begin("7", b"second")
    first.close()
    with pytest.raises(Py4JJavaError) as error:
        second.close()
    assert java_class(error) == "org.apache.hadoop.fs.FileAlreadyExistsException"
    assert files.read(files.folder / "7") == b"first"
    assert files.names() == {"7", ".7.crc"}


def test_a_file_that_may_be_written_anew_is_whole_each_time(files: Files) -> None:
    files.write("metadata", b"a" * 5000)
    assert files.read(files.write("metadata", b"b", overwrite=True)) == b"b"
    assert files.names() == {"metadata", ".metadata.crc"}


def test_a_cancelled_file_leaves_nothing(files: Files) -> None:
    files.begin("7", b"half").cancel()
    assert files.names() == set()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_keeps_nothing_of_a_file_that_failed(
    spark: SparkSession, disk: Path, overwrite: bool
) -> None:
    """A small text fails only when its file is closed. A cancel afterwards does nothing."""
    files, ballast = Files(spark, disk, _OURS), leave_free(disk, 0)
    for _ in range(3):
        out = files.begin("x", b"small", overwrite=overwrite)
        with pytest.raises(Py4JJavaError, match="No space"):
            out.close()
        out.cancel()
    assert files.names() == {ballast.name}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_cannot_get_its_name_leaves_nothing(files: Files, overwrite: bool) -> None:
    (files.folder / "7").mkdir()
    out = files.begin("7", b"text", overwrite=overwrite)
    with pytest.raises(Py4JJavaError):
        out.close()
    assert files.names() == {"7"}


def test_sums_of_another_file_are_not_taken_for_its_own(files: Files) -> None:
    """A file deleted without Hadoop's client leaves its sums behind."""
    files.write("7", b"old").unlink()
    assert files.read(files.write("7", b"new")) == b"new"


def test_a_name_in_a_file_system_of_the_jobs_own_goes_to_sparks_manager(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark._jvm is not None
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    conf.set("fs.viewfs.mounttable.mine.link./here", tmp_path.as_uri())
    conf.set(_KEY, _OURS)
    path = spark._jvm.org.apache.hadoop.fs.Path("viewfs://mine/here/7")
    checkpointing = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    out = checkpointing.CheckpointFileManager.create(path, conf).createAtomic(path, False)
    out.write(bytearray(b"text"))
    out.close()
    assert (tmp_path / "7").read_bytes() == b"text"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the test's own: the extension sets what it needs with its first stream."""
    session = spark.newSession()
    session.conf.set(_PROVIDER, MILLPOND)
    yield session
    for query in session.streams.active:
        query.stop()


def run(session: SparkSession, work: Path, batches: int) -> Path:
    case = named("agg-update-odd-keys")
    ((schema, rows),) = case.inputs
    source, done = Input(work / "input", schema), Run(work / "run")
    for number in range(batches):
        source.add(rows[number])
    frame = case.build([source.stream(session)])
    finish(start(session, frame, done, output_mode=case.mode, conf={}), done)
    return done.checkpoint


def test_a_query_starts_no_program(session: SparkSession, tmp_path: Path) -> None:
    """The JVM itself records each process that it starts."""
    assert session._jvm is not None
    recording = session._jvm.jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart")
    recording.start()
    place = run(session, tmp_path, batches=3)
    recording.stop()
    dump = tmp_path / "processes.jfr"
    recording.dump(session._jvm.java.io.File(str(dump)).toPath())
    recording.close()
    events = session._jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(
        session._jvm.java.io.File(str(dump)).toPath()
    )
    commands = [event.getString("command") for event in events]
    logs = [c for c in commands if f"{place}/offsets/" in c or f"{place}/commits/" in c]
    own = [c for c in commands if f"{place}/millpond/" in c]
    assert (logs, own) == ([], [])
    assert session.conf.get(_KEY) == _OURS
    files = Files(session, place, _OURS)
    for log in ("offsets", "commits"):
        for batch in range(3):
            assert (place / log / f".{batch}.crc").exists()
            assert files.read(place / log / str(batch)).startswith(b"v1\n")


def test_a_log_that_a_kill_left_unfinished_stops_no_start(
    session: SparkSession, tmp_path: Path
) -> None:
    """Spark refuses a first batch where the folder of the commit log has any file."""
    commits = tmp_path / "run" / "commits"
    commits.mkdir(parents=True)
    left = commits / ".0.94ca4b9d-aea1-4c61-9db0-0112d852c575.tmp"
    left.touch()
    (commits / "..0.94ca4b9d-aea1-4c61-9db0-0112d852c575.tmp.crc").touch()
    place = run(session, tmp_path, batches=2)
    assert place == commits.parent and (commits / "1").exists() and left.exists()


def test_what_the_user_set_stays(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set(_KEY, _SPARKS)
    run(session, tmp_path, batches=1)
    assert session.conf.get(_KEY) == _SPARKS


def test_the_option_switches_it_off(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set("spark.sql.streaming.stateStore.millpond.logs.direct", "false")
    run(session, tmp_path, batches=1)
    assert session.conf.get(_KEY, None) is None


def test_the_option_switches_it_off_between_two_queries(
    session: SparkSession, tmp_path: Path
) -> None:
    """What the extension set for the first query is not taken for a setting of the user's."""
    run(session, tmp_path / "first", batches=1)
    assert session.conf.get(_KEY) == _OURS
    session.conf.set("spark.sql.streaming.stateStore.millpond.logs.direct", "false")
    run(session, tmp_path / "second", batches=1)
    assert session.conf.get(_KEY, None) is None
