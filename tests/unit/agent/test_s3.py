"""The agent with its state on S3 over HTTP, and with Spark's logs in a directory.

The server fails now and then.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from millpond.cli.main import main
from millpond.format.layout import STAGING_PREFIX
from millpond.storage import open_checkpoint, open_storage
from millpond.store.sst_cache import cache_directory
from tests.agent_driver import Driver, Provider
from tests.s3_server import HADOOP, Chooser, Fault, Request, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def faults(seed: int, rate: float) -> Chooser:
    """Return a chooser that lets a share of the requests go wrong.

    The connection breaks before, after or in the body, or the server is busy or slow.
    """
    chance = random.Random(seed)

    def choose(request: Request) -> Fault | None:
        if chance.random() >= rate:
            return None
        kinds = [Fault(), Fault(applied=True), Fault(500, "InternalError"), Fault(503, "SlowDown")]
        kinds.append(Fault(200, late_s=0.02))
        if request.operation == "GET":
            kinds += [Fault(cut=5), Fault(flip=True)]
        return chance.choice(kinds)

    return choose


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_query_s_life(
    server: S3Server,
    tmp_path: Path,
    spark_format: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = server.bucket()
    driver = Driver(tmp_path / "ckpt", spark_format)
    (tmp_path / "ckpt/metadata").write_text('{"id":"the-query"}')
    options = {
        "storage.uri": f"s3a://{bucket}/a b%20/",
        "storage.s3.endpoint": server.endpoint,
        "gc.graceMs": "0",
        "gc.intervalMs": "0",
    }
    state = open_storage(f"s3://{bucket}/a b%20/the-query", server.settings())
    now_ms = [0]

    def provider(number: int) -> Provider:
        # The server's clock counts whole seconds. The clock of collections must not be ahead of it.
        service = AgentService(clock_ms=lambda: 10**13 + now_ms[0])
        made = Provider(
            service, tmp_path / "ckpt", tmp_path / f"local-{number}", spark_format=spark_format
        )
        made.options, made.storage, made.hadoop = options, state, HADOOP
        return made

    def opened(at: Provider, version: int, id: str) -> tuple[str, ...]:
        return at.open(version, id if spark_format == 2 and version else None)

    writer = provider(0)
    expected: tuple[str, ...] = ()
    with server.faults(faults(spark_format, 1 / 15)):
        opened(writer, 0, "")
        for i in range(8):
            done = writer.commit()
            driver.record(done)
            expected = (*expected, done.id)
            if i % 3 == 2:
                writer.snapshot()
            now_ms[0] += 60_000
            writer.collect(done)
        reader = provider(1)
        assert opened(reader, 8, writer.id) == expected == writer.state
        assert reader.snapshot_version == 6
        again = reader.commit()
    assert opened(provider(2), 9, again.id) == (*expected, again.id)
    assert (tmp_path / "ckpt/millpond/storage.json").exists()
    assert sorted(p.name for p in (tmp_path / "ckpt").iterdir()) == [
        "commits",
        "metadata",
        "millpond",
    ]
    assert [
        info.key
        for info in open_checkpoint(str(tmp_path / "ckpt"), server.settings()).list("metadata")
    ]
    versions = sorted(int(name.split(".")[0].split("_")[0]) for name in writer.stored(".changelog"))
    assert versions[-1] == 9 and versions[0] > 3, (
        "collections deleted what no retained version needs"
    )

    # Without Spark's other logs, `verify` would call it damaged.
    shutil.rmtree(tmp_path / "ckpt/commits")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert (
        main(
            [
                "checkpoint",
                "show",
                str(tmp_path / "ckpt"),
                "-o",
                f"storage.s3.endpoint={server.endpoint}",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "versions" in shown and "$ a month" in shown
    given = [
        "-o",
        f"storage.s3.endpoint={server.endpoint}",
        "-o",
        "storage.prices=put=1000,list=0,get=0,delete=0,month=0",
    ]
    assert main(["checkpoint", "show", str(tmp_path / "ckpt"), "--json", *given]) == 0
    (store,) = json.loads(capsys.readouterr().out)["operators"][0]["stores"]
    files = store["changelogs"] + len(store["snapshots"]) + store["sst_files"]
    assert store["cost"]["put_requests"] == files == store["cost"]["put_dollars"], (
        "each request costs a dollar"
    )
    assert store["cost"]["restore_requests"] >= 2 and store["cost"]["month_dollars"] == 0


def test_restores_fetch_side_by_side(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow server, a restore takes the time of a few answers, not of one answer a file."""
    bucket = server.bucket()
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/metadata").write_text('{"id":"the-query"}')
    more: dict[str, Any] = {
        "options": {"storage.uri": f"s3://{bucket}", "storage.s3.endpoint": server.endpoint},
        "hadoop": HADOOP,
        "spark_format": 2,
    }
    writer = Provider(AgentService(), tmp_path / "ckpt", tmp_path / "local", **more)
    writer.open(0)
    for _ in range(3):
        writer.commit()
        writer.flush()
    writer.snapshot()
    for _ in range(6):
        writer.commit()
    monkeypatch.setattr(server, "latency_s", 0.05)
    reader = Provider(AgentService(), tmp_path / "ckpt", tmp_path / "other", **more)
    assert reader.open(writer.version, writer.id) == writer.state
    assert server.most_in_flight >= 3


_EXECUTOR = """
import json, sys
from pathlib import Path
from millpond.agent.service import AgentService
from millpond.storage import s3_downloads
from tests.agent_driver import Driver, Provider

s3_downloads._CHUNK_BYTES = 1
checkpoint, local, version, id, more = sys.argv[1:]
store = Provider(AgentService(local_root=local), Path(checkpoint), Path(local, "killed"), **json.loads(more))
store.open(int(version), id)
"""


def test_kill_9_in_mid_fetch(server: S3Server, tmp_path: Path, repository: Path) -> None:
    """Nobody uses half a file: the next executor of the host fetches it anew.

    A file in the shared cache is whole.
    """
    local, checkpoint = tmp_path / "local", tmp_path / "ckpt"
    for directory in (local, checkpoint):
        directory.mkdir()
    (checkpoint / "metadata").write_text('{"id":"the-query"}')
    more: dict[str, Any] = {
        "options": {
            "storage.uri": f"s3://{server.bucket()}",
            "storage.s3.endpoint": server.endpoint,
        },
        "hadoop": HADOOP,
        "spark_format": 2,
    }
    writer = Provider(AgentService(), checkpoint, tmp_path / "writer", **more)
    writer.open(0)
    writer.commit()
    writer.commit()
    writer.snapshot()
    writer.commit()
    command = [
        sys.executable,
        "-c",
        _EXECUTOR,
        str(checkpoint),
        str(local),
        str(writer.version),
        writer.id,
    ]
    with server.faults(
        lambda request: Fault(cut=5, late_s=60) if request.path.endswith(".sst") else None
    ):
        path = os.pathsep.join((str(repository), str(repository / "python/src")))
        executor = subprocess.Popen(
            [*command, json.dumps(more)], env={**os.environ, "PYTHONPATH": path}
        )
        try:
            deadline = time.monotonic() + 30
            while not any(
                path.stat().st_size for path in local.rglob(f"*.unfinished/{STAGING_PREFIX}*")
            ):
                assert executor.poll() is None and time.monotonic() < deadline, (
                    "the executor never began to fetch"
                )
                time.sleep(0.01)
        finally:
            executor.kill()
            executor.wait()
    kept = Path(cache_directory(str(tmp_path)))
    assert list(kept.iterdir()) == []
    successor = Provider(AgentService(local_root=str(local)), checkpoint, local / "next", **more)
    assert successor.open(writer.version, writer.id) == writer.state
    (sst,) = kept.iterdir()
    (fetched,) = local.glob("next/**/*.sst")
    assert sst.samefile(fetched)
