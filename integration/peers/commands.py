"""Every command of `millpond`, on a query at a place: `every_command(place, ...)`.

`python -m integration.peers.commands` is a process without a session. It runs the commands of its
standard input, a JSON list of arguments each line, and prints the exit code and the output of each.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from integration.cases import EVENTS, events
from integration.jvm import MILLPOND, REPO
from integration.peers.loopback import without_obstore
from integration.peers.matrix import Place
from integration.processes import wait_until
from integration.streams import Input, settings
from millpond.cli.main import main, parser
from millpond.format import layout

_STATE = "spark.sql.streaming.stateStore."
# They know nothing of storages.
_ELSEWHERE = {"conf", "options", "errors"}
_BY_A_JVM = ("savepoint plan", "savepoint bootstrap", "adopt", "release")
_JOB = """\
from pyspark.sql import SparkSession

def job():
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.schema("k string, ts timestamp, v bigint").parquet({input!r})
    return rows.groupBy("k").count().writeStream.outputMode("update").format("noop")
"""


def every_command(
    place: Place,
    spark: SparkSession,
    work: Path,
    *,
    by_a_jvm: bool = True,
    options: Sequence[str] = (),
) -> None:
    """Run each command once, on a query that counts by key. The query goes on afterwards.

    Args:
        by_a_jvm: also those that need Spark's classes, some seconds each.
        options: what follows each command: `--option`, and how to reach the place.
    """
    query = _Query(place, spark, work)
    query.add(3)
    query.run()
    at = place.root
    # Spark itself reads and writes there
    by_spark = str(work) if place.state_only else at
    run, first = query.checkpoint, f"{at}/saved/first"
    env = place.environment(work / "conf")
    key = ["--key", "k=a"]
    plain = [
        ["storage", "check", "--quick", f"{at}/check"],
        ["checkpoint", "show", run],
        ["checkpoint", "verify", run],
        ["checkpoint", "skew", run],
        ["checkpoint", "history", run],
        ["savepoint", "create", run, first],
        ["savepoint", "create", run, f"{at}/saved/rows", "--format", "canonical"],
        ["savepoint", "show", first],
        ["savepoint", "verify", first],
        ["savepoint", "list", f"{at}/saved"],
        ["savepoint", "diff", first, f"{at}/saved/rows"],
        ["savepoint", "edit", first, f"{at}/saved/edited", "--add-column", "more:long=0"],
        ["savepoint", "restore", first, f"{at}/restored"],
        ["fork", run, f"{at}/forked"],
        ["state", "list", run],
        ["state", "read", run],
        ["state", "get", run, *key],
        ["state", "history", run, *key],
        ["state", "blame", run, *key],
        ["rescale", run, "4"],
        ["state", "erase", f"{at}/forked", *key],
        ["savepoint", "delete", f"{at}/saved/rows"],
        ["storage", "take-over", query.moved],
    ]
    for arguments, code, said in in_a_process([[*a, *options] for a in plain], env):
        assert code == 0, (arguments, said)
        assert arguments[:2] != ["state", "get"] or "4" in said, said
    for arguments in (["serve", "--port", "0", run], ["ui", run, first]):
        serves([*arguments, *options], env)
    ran = {" ".join(a[: 1 if a[0] in ("fork", "rescale") else 2]) for a in plain} | {"serve", "ui"}
    if by_a_jvm:
        job, rows = work / "job.py", work / "rows.parquet"
        job.write_text(_JOB.format(input=str(query.input.directory)))
        pq.write_table(pa.Table.from_pylist(events(("z", 1.0, 1)), schema=EVENTS), rows)
        named = ["--job", f"{job}:job"]
        for arguments in (
            ["savepoint", "plan", first, *named],
            ["savepoint", "bootstrap", f"{by_spark}/warm", *named, "--rows", str(rows)],
            ["release", f"{at}/restored", f"{by_spark}/released", "--provider", "rocksdb"],
            ["adopt", f"{by_spark}/released", f"{by_spark}/adopted"],
        ):
            ((_, code, said),) = in_a_process([[*arguments, *options]], env)
            assert code == 0, (arguments, said)
    assert ran | {*_BY_A_JVM} == {*leaves(parser())} - _ELSEWHERE, "a command is not tried here"
    query.add(1)
    query.run()
    assert query.rows[-1] == "Row(k='a', count=5)"


class _Query:
    def __init__(self, place: Place, spark: SparkSession, work: Path) -> None:
        self._place, self._spark = place, spark
        self.input = Input(work / "input", EVENTS)
        self.checkpoint = place.checkpoint(work, "run")
        # its logs are here, its state at the place
        self.moved = str(work / "moved")
        self.rows: list[str] = []
        before = work / "before"
        self._run(str(before), f"{place.root}/moved")
        running = before / layout.RUNNING_PREFIX
        wait_until(
            lambda: not running.is_dir() or not list(running.iterdir()),
            seconds=60,
            what="the driver to say that the query ended",
        )
        os.rename(before, self.moved)

    def add(self, files: int) -> None:
        for number in range(files):
            self.input.add(events(("a", float(number), 1)))

    def run(self) -> None:
        self._run(self.checkpoint, None)

    def _run(self, checkpoint: str, state: str | None) -> None:
        conf = {
            f"{_STATE}providerClass": MILLPOND,
            f"{_STATE}minDeltasForSnapshot": "2",
            **self._place.hadoop,
            **self._place.conf,
        }
        if state is not None:
            conf[f"{_STATE}millpond.storage.uri"] = state
            self.input.add(events(("a", 0.0, 1)))
        frame = self.input.stream(self._spark).groupBy("k").count()
        with settings(self._spark, conf):
            writer = frame.writeStream.outputMode("update").foreachBatch(
                lambda batch, _: self.rows.extend(repr(row) for row in batch.collect())
            )
            query = (
                writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )
            # Spark makes the source of files after `start`, with the settings of this session.
            assert query.awaitTermination(120), query.lastProgress


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """Yield the names of all commands."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield name
    for group in groups:
        for word, command in group.choices.items():
            yield from leaves(command, f"{name} {word}".strip())


def in_a_process(
    commands: Sequence[Sequence[str]], env: Mapping[str, str]
) -> list[tuple[Sequence[str], int, str]]:
    """Run commands one after the other in one process without a session.

    Returns: of each: its arguments, its exit code, what it printed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "integration.peers.commands"],
        input="".join(json.dumps(arguments) + "\n" for arguments in commands),
        env=dict(env),
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["done"')]
    assert len(answers) == len(commands), (done.stdout[-2000:], done.stderr[-4000:])
    return [
        (arguments, code, said)
        for arguments, (_, code, said) in zip(commands, answers, strict=True)
    ]


def serves(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Start a command that is a server, ask it for its first page, and end it."""
    command = [sys.executable, "-u", "-m", "millpond.cli.main", *arguments]
    with subprocess.Popen(
        command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        said: list[str] = []
        try:
            for line in server.stdout:
                said.append(line)
                url = next((word for word in line.split() if word.startswith("http://")), None)
                if url is not None:
                    break
            else:
                raise AssertionError(said)
            with contextlib.suppress(urllib.error.HTTPError):  # it wants its token
                urllib.request.urlopen(url, timeout=60).close()
        finally:
            server.terminate()
        assert server.wait(60) == 0, said


if __name__ == "__main__":
    without_obstore()
    for line in sys.stdin:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = main(json.loads(line))
            except SystemExit as e:
                code = int(e.code or 0)
        print(json.dumps(["done", code, said.getvalue()]), flush=True)
