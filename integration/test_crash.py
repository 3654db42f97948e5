"""Many kills -9 of the driver's JVM and of the agent. They lose nothing, and leave nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.cases import EVENTS, events
from integration.depth import deep, quick_first
from integration.harness import Harness, Schema, millponds_own, providers_to_test, short_conf
from integration.jvm import MILLPOND, REPO, ROCKSDB
from integration.processes import agents_below, alive, below, is_agent, wait_until
from integration.store_model import as_state, canon, write_spark_metadata
from integration.streams import Input, Run, finish, start
from integration.ttl_model import replayed
from tests.s3_server import HADOOP, S3Server, s3_server

FILES, FEW_FILES = 10, 5
KEYS = ["a", "b", "ü€", "", "key-with-a-long-name", *(f"k{i}" for i in range(20))]


def _rows(rng: random.Random, batch: int) -> list[dict[str, Any]]:
    return events(
        *(
            (rng.choice(KEYS), batch * 5 + rng.randrange(50) / 10, rng.randrange(1000))
            for _ in range(40)
        )
    )


class Job:
    """One run of `crash_job.py`, or of `module`. A thread reads its output."""

    def __init__(
        self,
        work: Path,
        checkpoint_format: int,
        provider_class: str,
        conf: Mapping[str, str],
        module: str = "integration.crash_job",
    ) -> None:
        path = os.pathsep.join(
            [str(REPO), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])]
        )
        env = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
        env["MILLPOND_CRASH_JOB"] = json.dumps(conf)
        self.log = work / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    module,
                    str(work),
                    str(checkpoint_format),
                    provider_class,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
            )
        self.jvm = 0
        self.batches = 0
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("jvm "):
                self.jvm = int(line.split()[1])
            elif line.startswith("batch "):
                self.batches += 1

    def wait_for_batches(self, count: int) -> bool:
        """Wait until `count` batches are done. Return False if the job ended before."""
        wait_until(
            lambda: self.batches >= count or self.process.poll() is not None,
            seconds=120,
            what=f"batch {count}: {self.lines[-3:]}",
        )
        return self.process.poll() is None

    def report(self) -> str:
        """Return the job's output, for a failed test."""
        return "\n".join(self.lines) + "\n" + self.log.read_text()[-3000:]

    def end(self) -> int:
        """Wait for the end. Return the exit code."""
        code = self.process.wait(timeout=180)
        self._reader.join(timeout=10)
        return code


def results(work: Path, query: str) -> list[list[Any]]:
    """Return the rows that `crash_job.sink` wrote. Each batch must be there."""
    parts = sorted((work / f"out-{query}").glob("[0-9]*.json"), key=lambda p: int(p.stem))
    assert [int(p.stem) for p in parts] == list(range(len(parts))), "a batch is missing"
    return [row for part in parts for row in json.loads(part.read_text())]


@pytest.mark.parametrize(
    ("checkpoint_format", "kills", "on_s3", "files"),
    quick_first(
        [
            (1, 1, False, FEW_FILES),
            (1, 1, False, FILES),
            (2, 2, False, FILES),
            (2, 1, True, FILES),
        ]
    ),
)
def test_kill_9_of_the_driver_loses_nothing(
    tmp_path: Path, checkpoint_format: int, kills: int, on_s3: bool, files: int
) -> None:
    """Kills come at random points of two queries. The end equals the batch computation."""
    with contextlib.ExitStack() as stack:
        conf = _s3_conf(stack.enter_context(s3_server())) if on_s3 else {}
        kill_the_driver(tmp_path, checkpoint_format, kills, conf, files)


@pytest.mark.deep
@millponds_own
def test_kill_9_of_the_driver_while_rows_end(tmp_path: Path) -> None:
    """Each batch wrote what a model says by the times in Spark's offset log."""
    rng = random.Random(21)
    source = Input(tmp_path / "left", EVENTS)
    for batch in range(3 * FILES):
        source.add(_rows(rng, batch))
    for kill in (True, True, False):
        job = Job(tmp_path, 2, MILLPOND, {}, "integration.ttl_crash_job")
        # Rows end from then on: the time to live is a second.
        if kill and job.wait_for_batches(8):
            threading.Event().wait(rng.random() * 0.3)  # somewhere in a batch
            os.kill(job.jvm, signal.SIGKILL)
            job.end()
        else:
            assert not kill, f"the job ended before the kills\n{job.report()}"
            assert job.end() == 0, job.report()
    expected = replayed(tmp_path / "checkpoint-count", 1000)
    assert expected.ended > 10
    for batch, rows in expected.batches.items():
        assert json.loads((tmp_path / "out-count" / f"{batch}.json").read_text()) == rows, batch
    assert len(results(tmp_path, "count")) == sum(map(len, expected.batches.values()))


def _s3_conf(server: S3Server) -> dict[str, str]:
    millpond = {
        "storage.uri": f"s3a://{server.bucket()}/state",
        "storage.s3.endpoint": server.endpoint,
    }
    return {
        **{
            f"spark.sql.streaming.stateStore.millpond.{name}": value
            for name, value in millpond.items()
        },
        **{f"spark.hadoop.{name}": value for name, value in HADOOP.items()},
    }


def kill_the_driver(
    tmp_path: Path, checkpoint_format: int, kills: int, conf: Mapping[str, str], files: int = FILES
) -> None:
    """Kill the job of two queries `kills` times at random points, then let it end. The rows that
    it wrote must equal the batch computation.

    Args:
        conf: settings of the job, by their full names.
        files: of each input: that many batches.
    """
    provider_class = MILLPOND if MILLPOND in providers_to_test() else ROCKSDB
    seed = 20240100 + checkpoint_format
    print(f"seed {seed}")
    rng = random.Random(seed)
    left, right = Input(tmp_path / "left", EVENTS), Input(tmp_path / "right", EVENTS)
    data = [(_rows(rng, b), _rows(rng, b)) for b in range(files)]
    for rows, other in data:
        left.add(rows)
        right.add(other)
    killed = 0
    for _ in range(kills):
        job = Job(tmp_path, checkpoint_format, provider_class, conf)
        if not job.wait_for_batches(rng.randrange(1, 4)):
            assert job.end() == 0, job.report()
            break
        agents = agents_below(job.jvm)
        assert agents or provider_class != MILLPOND
        timer = threading.Event()
        timer.wait(rng.random() * 0.6)  # the fault must come somewhere in a batch
        if job.process.poll() is None:
            os.kill(job.jvm, signal.SIGKILL)
            killed += 1
        job.end()
        wait_until(
            lambda: not any(alive(a) for a in agents),  # noqa: B023
            seconds=5,
            what=f"agents {agents} to end after their JVM",
        )
    assert killed >= kills - 1, "the job ended before the kills"
    last = Job(tmp_path, checkpoint_format, provider_class, conf)
    assert last.end() == 0, last.report()

    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for rows, _ in data:
        for row in rows:
            counts[row["k"]][0] += 1
            counts[row["k"]][1] += row["v"]
    assert {k: [n, s] for k, n, s in results(tmp_path, "count")} == dict(counts)
    lefts, rights = ([row for pair in data for row in pair[side]] for side in (0, 1))
    expected = [
        [a["k"], a["v"], b["v"]]
        for a in lefts
        for b in rights
        if a["k"] == b["k"] and abs((a["ts"] - b["ts"]).total_seconds()) <= 2
    ]
    assert sorted(results(tmp_path, "join")) == sorted(expected)


@millponds_own
def test_kill_9_of_the_agent_costs_a_retry(spark: SparkSession, tmp_path: Path) -> None:
    """The agent dies before and during every batch.

    The query goes on. Its result is right. One agent runs afterwards.
    """
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid
    source = Input(tmp_path / "input", EVENTS)
    rng = random.Random(7)
    data = [_rows(rng, b) for b in range(10)]
    for rows in data:
        source.add(rows)
    stop, killed = threading.Event(), set[int]()
    run = Run(tmp_path / "checkpoint")

    def kill_now_and_then() -> None:
        # An agent that served a whole batch has surely started. It dies in the next batch.
        while not stop.is_set():
            agents, batches = agents_below(jvm), len(run.rows)
            while not stop.wait(0.02) and len(run.rows) < batches + 1:
                pass
            stop.wait(rng.random() * 0.3)
            for agent in agents:
                if alive(agent):
                    os.kill(agent, signal.SIGKILL)
                    killed.add(agent)

    frame = source.stream(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        query = start(
            spark,
            frame,
            run,
            output_mode="complete",
            conf={"spark.sql.streaming.stateStore.providerClass": MILLPOND},
        )
        finish(query, run)
    finally:
        stop.set()
        killer.join()
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for rows in data:
        for row in rows:
            counts[row["k"]][0] += 1
            counts[row["k"]][1] += row["v"]
    assert run.rows[len(data) - 1] == sorted(
        f"Row(k={k!r}, n={n}, s={s})" for k, (n, s) in counts.items()
    )
    assert len(killed) >= 2, "the test killed fewer than two agents"
    wait_until(
        lambda: not [p for p in below(jvm) if is_agent(p) and p.state == "Z"],
        seconds=5,
        what="no zombie agent",
    )
    assert len(agents_below(jvm)) <= 1


# Once on Spark's own store. A failure there is a fault of the test.
@pytest.mark.parametrize(
    ("provider_class", "checkpoint_format"),
    quick_first([(MILLPOND, 1), (ROCKSDB, 1), (MILLPOND, 2)], 0),
)
def test_kill_9_between_commits(
    tmp_path: Path, provider_class: str, checkpoint_format: int
) -> None:
    """The next JVM finds every version that was committed before the kill, and no other."""
    root = write_spark_metadata(
        tmp_path / "checkpoint",
        operator_name="stateStoreSave",
        partitions=1,
        provider_class=provider_class,
    )
    conf = {
        **short_conf(
            {
                "checkpointFormatVersion": checkpoint_format,
                "minDeltasForSnapshot": 2,
                "rocksdb.changelogCheckpointing.enabled": True,
            }
        ),
        "spark.sql.shuffle.partitions": "1",
    }
    rng = random.Random(3)
    state: dict[str, tuple[list[Any], list[Any]]] = {}
    version, commit_id = 0, None
    for _ in range(3):
        harness = Harness(tmp_path)
        provider = harness.open(root, provider_class=provider_class, schema=Schema(), conf=conf)
        for _ in range(4):
            store = provider.store(version, commit_id)
            assert as_state(store.scan()) == state
            for _ in range(15):
                key, value = (
                    [rng.choice(KEYS), rng.randrange(4)],
                    ["v" * rng.randrange(300), rng.randrange(10**12)],
                )
                if rng.random() < 0.3:
                    store.remove(key)
                    state.pop(canon(key), None)
                else:
                    store.put(key, value)
                    state[canon(key)] = (key, value)
            done = store.commit()
            version, commit_id = done.version, done.id
            assert store.keys() == len(state)
            provider.snapshot()
        lost = provider.store(version, commit_id)
        lost.put(["never", 1], ["committed", 1])
        agents = [p.pid for p in below(harness.pid) if is_agent(p)]
        harness.kill()
        wait_until(lambda: not any(alive(a) for a in agents), seconds=5, what="the agent to end")  # noqa: B023
    survivor = Harness(tmp_path)
    try:
        provider = survivor.open(root, provider_class=provider_class, schema=Schema(), conf=conf)
        assert as_state(provider.read_store(version, commit_id).scan()) == state
    finally:
        survivor.stop()


@pytest.mark.parametrize(
    "provider_class", [p if p == MILLPOND else deep(p) for p in providers_to_test()]
)
def test_jvm_ends_by_itself(tmp_path: Path, provider_class: str) -> None:
    """A JVM that used the store ends after its `main`. Its agent ends too.

    It leaves no zombie and no file lock.
    """
    root = write_spark_metadata(
        tmp_path / "checkpoint",
        operator_name="stateStoreSave",
        partitions=1,
        provider_class=provider_class,
    )
    harness = Harness(tmp_path, conf={"spark.millpond.harness.exit": "false"})
    provider = harness.open(
        root,
        provider_class=provider_class,
        schema=Schema(),
        conf={"spark.sql.shuffle.partitions": "1"},
    )
    store = provider.store(0)
    store.put(["a", 1], ["b", 2])
    store.commit()
    agents = agents_below(harness.pid)
    assert len(agents) == (1 if provider_class == MILLPOND else 0)
    harness.stop()
    wait_until(
        lambda: not any(Path(f"/proc/{a}").exists() for a in agents),
        seconds=5,
        what="the agent to end",
    )
