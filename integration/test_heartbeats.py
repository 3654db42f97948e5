# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: by them commands see that a query runs, on whatever host, and that it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import millpond
from integration.jvm import REPO
from integration.processes import agents_below, alive, wait_until
from integration.streams import count_numbers
from millpond.checkpoint import history
from millpond.config import PREFIX
from millpond.errors import ErrorKind, MillpondError


@pytest.mark.spark
def test_a_running_query_is_seen_by_its_heartbeat(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint"
    count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    _wait_for_no_heartbeat(
        checkpoint
    )  # Spark calls its listeners a moment after the end of the query
    query = count_numbers(spark, checkpoint, available_now=False)
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    try:
        with pytest.raises(MillpondError) as caught:
            millpond.rescale(checkpoint, 4)
        assert caught.value.kind is ErrorKind.QUERY_RUNNING and str(query.runId) in str(
            caught.value
        )
        beat = json.loads((checkpoint / f"millpond/running/{query.runId}.json").read_text())
        if sys.platform == "linux":
            assert beat["pid_namespace"] == os.readlink("/proc/self/ns/pid")
            assert beat["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    finally:
        query.stop()
    _wait_for_no_heartbeat(checkpoint)


@pytest.mark.spark
@pytest.mark.deep
def test_a_run_deletes_the_heartbeats_that_killed_drivers_left_long_ago(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They stayed for good, and every look took a request for each."""
    checkpoint = tmp_path / "checkpoint"
    count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    _wait_for_no_heartbeat(checkpoint)
    running = checkpoint / "millpond" / "running"

    def left(days: float, name: str) -> Path:
        running.mkdir(exist_ok=True)
        file = running / name
        file.write_text('{"host": "elsewhere", "pid": 1}')
        os.utime(file, (time.time() - days * 86_400,) * 2)
        return file

    old = [left(days, f"{uuid.uuid4()}.json") for days in (7.1, 30, 400)]
    others = [
        left(6.9, f"{uuid.uuid4()}.json"),
        left(-30, f"{uuid.uuid4()}.json"),
        left(30, f"command-{uuid.uuid4()}.json"),
    ]
    query = count_numbers(spark, checkpoint, available_now=False)
    try:
        wait_until(
            lambda: not any(file.exists() for file in old), seconds=60, what="the old ones to go"
        )
        own = running / f"{query.runId}.json"
        assert set(running.glob("*.json")) == {own, *others}
    finally:
        query.stop()


@pytest.mark.spark
@pytest.mark.deep
def test_a_heartbeat_ends_though_nobody_tells_of_the_querys_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A job may remove all listeners of its session, and Spark drops events of a full queue."""
    session = spark.newSession()
    checkpoint = tmp_path / "checkpoint"
    # The first heartbeat of a new query comes seconds after its start, that of another one at once.
    count_numbers(session, checkpoint, available_now=True).awaitTermination()
    _wait_for_no_heartbeat(checkpoint)
    query = count_numbers(session, checkpoint, available_now=False)
    try:
        _wait_for_a_heartbeat(checkpoint)
        streams = session._jsparkSession.streams()
        listeners = streams.listListeners()
        assert len(listeners) == 1
        for listener in listeners:
            streams.removeListener(listener)
        assert _is_remembered(session, query.runId)
    finally:
        query.stop()
    _wait_for_no_heartbeat(checkpoint, seconds=30)
    wait_until(
        lambda: not _is_remembered(session, query.runId), seconds=30, what="the driver to forget"
    )


@pytest.mark.spark
@pytest.mark.deep
@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_heartbeat_goes_on_beside_that_of_a_query_whose_storage_is_in_trouble(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """One thread wrote them all. Where it hung, every query of the driver looked dead."""
    places = [tmp_path / "well", tmp_path / "in trouble"]
    # Hadoop's client opens the very file, so a pipe without a reader holds it.
    conf = {f"{PREFIX}logs.direct": "false"}
    queries = [count_numbers(spark, place, available_now=False, conf=conf) for place in places]
    well, troubled = (
        place / "millpond" / "running" / f"{query.runId}.json"
        for place, query in zip(places, queries, strict=True)
    )
    reader = -1
    try:
        for beat in (well, troubled):
            wait_until(beat.is_file, seconds=30, what="the heartbeat")
        other = tmp_path / "other"
        if how == "hangs":
            os.mkfifo(other)
        else:
            other.symlink_to(tmp_path / "absent" / "file")
        os.replace(other, troubled)
        # A round that had begun before, and one until it comes to the other query, do not count.
        for _ in range(3):
            wait_until(_next_beat(well), seconds=15, what="the next beat")
    finally:
        if how == "hangs":
            reader = os.open(troubled, os.O_RDONLY | os.O_NONBLOCK)
        else:
            troubled.unlink()  # Hadoop's client takes a link that leads nowhere for no file
        for query in queries:
            query.stop()
        for place in places:
            _wait_for_no_heartbeat(place)
        if reader >= 0:
            os.close(reader)


@pytest.mark.spark
@pytest.mark.deep
def test_a_query_that_is_being_stopped_is_seen_until_its_batch_has_ended(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark says at once that it is not active, and waits for the batch: a `foreachBatch` that
    reads from a socket goes on for minutes. Commands took it for ended.
    """
    checkpoint = tmp_path / "checkpoint"
    count_numbers(spark, checkpoint, available_now=True).awaitTermination()
    _wait_for_no_heartbeat(checkpoint)
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    begun, over = threading.Event(), threading.Event()

    def sink(rows: DataFrame, batch: int) -> None:
        rows.count()
        begun.set()
        over.wait()

    query = count_numbers(spark, checkpoint, available_now=False, sink=sink)
    stopping = threading.Thread(target=query.stop)
    try:
        assert begun.wait(60)
        stopping.start()
        wait_until(lambda: not query.isActive, seconds=30, what="the query to be stopped")
        beat = checkpoint / f"millpond/running/{query.runId}.json"
        for _ in range(3):
            wait_until(_next_beat(beat), seconds=15, what="the next beat")
        with pytest.raises(MillpondError) as caught:
            millpond.rescale(checkpoint, 4, skip_uncommitted=True)
        assert caught.value.kind is ErrorKind.QUERY_RUNNING
    finally:
        over.set()
        query.stop()
    stopping.join()
    _wait_for_no_heartbeat(checkpoint)


@pytest.mark.spark
@pytest.mark.deep
def test_the_end_of_a_query_whose_storage_hangs_holds_up_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's listeners share one thread, which waited for the storage of each run that ended."""
    places = [tmp_path / "well", tmp_path / "in trouble"]
    conf = {f"{PREFIX}logs.direct": "false"}
    heard = Ends()
    spark.streams.addListener(heard)
    well, troubled = (count_numbers(spark, p, available_now=False, conf=conf) for p in places)
    again = None
    try:
        for place in places:
            _wait_for_a_heartbeat(place)
        with held_beat(spark, places[1], troubled.runId):
            troubled.stop()
            well.stop()
            wait_until(
                lambda: str(well.runId) in heard.runs, seconds=30, what="the news of its end"
            )
            again = count_numbers(spark, places[1], available_now=False, conf=conf)
            own = places[1] / f"millpond/running/{again.runId}.json"
            wait_until(own.is_file, seconds=30, what="the heartbeat of the next run")
        wait_until(
            lambda: list(own.parent.glob("*.json")) == [own],
            seconds=30,
            what="the run before to end, and to leave the next one alone",
        )
    finally:
        for query in (well, troubled, again):
            if query is not None:
                query.stop()
        spark.streams.removeListener(heard)
    _wait_for_no_heartbeat(places[1])


class Ends(StreamingQueryListener):
    """Notes the runs of whose end Spark has told."""

    def __init__(self) -> None:
        self.runs: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.runs.add(str(event.runId))


@contextmanager
def held_beat(spark: SparkSession, checkpoint: Path, run: str) -> Iterator[None]:
    """Hold the thread that writes the heartbeat of a run. The query must have `logs.direct` off:
    Hadoop's client opens the very file, so a pipe without a reader holds it.
    """
    beat = checkpoint / f"millpond/running/{run}.json"
    pipe = checkpoint / "pipe"
    os.mkfifo(pipe)
    os.replace(pipe, beat)
    try:
        writer = f"millpond-heartbeat-{run}"
        wait_until(lambda: _opens_a_file(spark, writer), seconds=30, what="a beat that waits")
        yield
    finally:
        os.close(os.open(beat, os.O_RDONLY | os.O_NONBLOCK))


def _opens_a_file(spark: SparkSession, thread: str) -> bool:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean()
    return any(
        info.getThreadName() == thread and "FileOutputStream.open" in info.toString()
        for info in threads.dumpAllThreads(False, False)
    )


def _is_remembered(session: SparkSession, run: str) -> bool:
    """Return whether parts of the driver keep something of a run."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    driver, run_id = jvm.org.apache.spark.sql.millpond.driver, jvm.java.util.UUID.fromString(run)
    return bool(driver.AskedProviders.of(run_id).isDefined() or driver.StartCheck.isDone(run_id))


@pytest.mark.spark
def test_a_query_is_seen_though_the_job_has_removed_all_listeners(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before it was started. Nobody heard of it: no heartbeat, no `ttl`, no store in `realTime`."""
    session = spark.newSession()
    count_numbers(session, tmp_path / "first", available_now=True).awaitTermination()
    streams = session._jsparkSession.streams()
    for listener in streams.listListeners():
        streams.removeListener(listener)
    second = tmp_path / "second"
    query = count_numbers(session, second, available_now=False)
    try:
        _wait_for_a_heartbeat(second)
    finally:
        query.stop()
    _wait_for_no_heartbeat(second)


def _wait_for_a_heartbeat(checkpoint: Path) -> None:
    running = checkpoint / "millpond" / "running"
    wait_until(lambda: len(list(running.glob("*.json"))) == 1, seconds=30, what="the heartbeat")


def _wait_for_no_heartbeat(checkpoint: Path, seconds: int = 10) -> None:
    running = checkpoint / "millpond" / "running"
    wait_until(
        lambda: not list(running.glob("*.json")), seconds=seconds, what="the heartbeat to end"
    )


_UNKNOWN_HOST = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import millpond
from integration.jvm import LIGHT_DRIVER
from integration.processes import wait_until

checkpoint, hosts = Path(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "1").config(
    "spark.driver.extraJavaOptions", f"{LIGHT_DRIVER} -Djdk.net.hosts.file={hosts}"
)
spark = millpond.configure(builder).getOrCreate()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
writer = rows.groupBy("value").count().writeStream.format("noop").outputMode("update")
query = writer.option("checkpointLocation", str(checkpoint)).start()
# a new query's heartbeat comes with the second beat: the first found no folder of Millpond's
beat = checkpoint / "millpond" / "running" / f"{query.runId}.json"
wait_until(beat.is_file, seconds=60, what="the heartbeat")
assert list(beat.parent.glob("*.json")) == [beat]
query.stop()
"""


@pytest.mark.deep
def test_a_query_has_a_heartbeat_where_nobody_knows_the_name_of_its_host(tmp_path: Path) -> None:
    """As in a container without DNS. The query had none, and a command saw nobody."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    done = subprocess.run(
        [sys.executable, "-c", _UNKNOWN_HOST, str(tmp_path / "checkpoint"), str(hosts)],
        cwd=REPO,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


_EXITS_AT_ONCE = """
import os
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import millpond
from integration.jvm import LIGHT_DRIVER
from integration.processes import wait_until
from integration.streams import count_numbers
from integration.test_heartbeats import held_beat
from millpond.config import PREFIX

checkpoint = Path(sys.argv[1])
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "1").config(
    "spark.driver.extraJavaOptions", LIGHT_DRIVER
)
spark = millpond.configure(builder).getOrCreate()
conf = {f"{PREFIX}logs.direct": "false"}
query = count_numbers(spark, checkpoint, available_now=False, conf=conf)
beat = checkpoint / "millpond" / "running" / f"{query.runId}.json"
wait_until(beat.is_file, seconds=60, what="the heartbeat")
with held_beat(spark, checkpoint, query.runId):
    wait_until((checkpoint / "commits" / "2").is_file, seconds=60, what="batch 2")
    query.stop()
    print(spark.sparkContext._gateway.proc.pid, flush=True)
    sys.stdin.read()
    os._exit(0)
"""


@pytest.mark.deep
@pytest.mark.parametrize("answers", [True, False])
def test_a_driver_that_exits_at_once_ends_its_runs_if_the_storage_answers(
    tmp_path: Path, answers: bool
) -> None:
    """It waits for that, but not for long: a driver whose storage hung never ended."""
    checkpoint = tmp_path / "checkpoint"
    with subprocess.Popen(
        [sys.executable, "-c", _EXITS_AT_ONCE, str(checkpoint)],
        cwd=REPO,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("wb"),
        text=True,
    ) as driver:
        assert driver.stdout is not None and driver.stdin is not None
        said = driver.stdout.readline()
        assert said, (tmp_path / "stderr").read_text()[-3000:]
        jvm = int(said)
        driver.stdin.close()
        wait_until(lambda: not agents_below(jvm), seconds=60, what="the JVM to begin to end")
        (beat,) = (checkpoint / "millpond/running").glob("*.json")
        if answers:
            os.close(os.open(beat, os.O_RDONLY | os.O_NONBLOCK))
        try:
            wait_until(lambda: not alive(jvm), seconds=60, what="the JVM to end")
        finally:
            if alive(jvm):
                os.kill(jvm, signal.SIGKILL)
    assert beat.exists() is not answers
    assert [batch.batch for batch in history(checkpoint).batches][:2] == [0, 1]


def _next_beat(path: Path) -> Callable[[], bool]:
    before = path.read_bytes()
    return lambda: path.read_bytes() not in (b"", before)
