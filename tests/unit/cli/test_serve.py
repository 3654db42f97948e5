"""The command `millpond serve` as a process: its token, its limits, its end, what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millpond.cli.main import main
from tests.row_checkpoints import HashedBuilder
from tests.s3_server import Request, s3_server

_DEADLINE_S = 20.0


class Running:
    """A process of the command, and what it announced."""

    def __init__(self, process: subprocess.Popen[str], announced: dict[str, str]) -> None:
        self.process = process
        self.address = announced["address"]
        self.token = announced["token"]

    def ask(self, path: str, body: Any = None, token: str | None = None) -> Any:
        request = urllib.request.Request(
            self.address + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token or self.token}"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


@contextmanager
def serving(path: Path | str, *arguments: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "millpond.cli.main", "serve", str(path), "--port", "0"]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline().split(maxsplit=1) for _ in range(3)]
            yield Running(process, {name: value.strip() for name, value in lines})
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_follows_commits_and_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    built = HashedBuilder(tmp_path / "query", spark_format=2)
    built.build(batches=6, snapshots=(3,))
    hidden = built.hide(4, 5)
    with serving(built.root, "--poll-ms", "50") as running:
        assert running.address.startswith("http://127.0.0.1:")
        assert len(running.token) > 30
        assert running.ask("/healthz")["batch"] == 3
        for batch in (4, 5):
            built.show(hidden[batch])
            end = time.monotonic() + _DEADLINE_S
            while running.ask("/v1/lookup", {"keys": [{"k": 1}]})["batch"] != batch:
                assert time.monotonic() < end
        with pytest.raises(urllib.error.HTTPError) as caught:
            running.ask("/v1/tables", token="wrong")
        assert caught.value.code == 401
        running.process.send_signal(number)
        out, err = running.process.communicate(timeout=_DEADLINE_S)
        assert (running.process.returncode, out, err) == (0, "", "")


def test_it_ends_while_it_reads_from_a_slow_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python waits for the threads of a pool. The server ended when the storage had answered. What
    it leaves on the disk the next one removes.
    """
    built = HashedBuilder(tmp_path / "query", spark_format=2)
    built.build(batches=6, snapshots=(3,))
    hidden = built.hide(4, 5)
    local = tmp_path / "tmp"
    local.mkdir()
    reading, go_on = threading.Event(), threading.Event()

    def held_up(request: Request) -> None:
        if request.operation == "GET" and list(local.glob("millpond-scratch-follow-*")):
            reading.set()
            go_on.wait(6 * _DEADLINE_S)

    with s3_server() as server:
        for name, value in (server.environment() | {"TMPDIR": str(local)}).items():
            monkeypatch.setenv(name, value)
        bucket = server.bucket()
        storage = server.storage(bucket, "query")
        for info in built.storage.list(""):
            storage.put_bytes(info.key, built.storage.read(info.key))
        keys = {"keys": [{"k": k} for k in range(20)]}
        with serving(f"s3://{bucket}/query", "--poll-ms", "50") as running, server.faults(held_up):
            assert running.ask("/v1/lookup", keys)["batch"] == 3
            for key, text in hidden[4].items():
                storage.put_bytes(key, text)
            try:
                assert reading.wait(_DEADLINE_S)
                running.process.terminate()
                out, err = running.process.communicate(timeout=_DEADLINE_S)
            finally:
                go_on.set()
            assert (running.process.returncode, out, err) == (0, "", "")
        assert list(local.glob("millpond-scratch-*"))
        with serving(f"s3://{bucket}/query") as running:
            assert running.ask("/v1/lookup", keys)["batch"] == 4
            running.process.terminate()
            assert running.process.wait(_DEADLINE_S) == 0
    assert list(local.iterdir()) == []


def test_the_token_of_a_file(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query").build()
    (tmp_path / "token").write_text("of-a-file\n")
    with serving(built.root, "--token-file", str(tmp_path / "token"), "--max-keys", "1") as running:
        assert running.token == f"in {tmp_path / 'token'}"
        running.token = "of-a-file"
        assert running.ask("/v1/lookup?key=k=1")["batch"] == 5
        with pytest.raises(urllib.error.HTTPError) as caught:
            running.ask("/v1/lookup", {"keys": [{"k": 1}, {"k": 2}]})
        assert (caught.value.code, json.load(caught.value)["error"]["code"]) == (
            413,
            "REQUEST_TOO_LARGE",
        )


def test_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = HashedBuilder(tmp_path / "query")
    built.build()
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "other").mkdir()
    for arguments, code, told in (
        ([str(tmp_path / "none")], 2, "NOT_A_CHECKPOINT"),
        ([str(tmp_path / "other")], 2, "NOT_A_CHECKPOINT"),
        ([str(built.root), "--token-file", str(tmp_path / "none")], 2, "cannot read the token"),
        ([str(built.root), "--token-file", str(tmp_path / "empty")], 2, "holds no token"),
        ([str(built.root), "--host", "192.0.2.1"], 2, "cannot listen at 192.0.2.1"),
        ([str(built.root), "--max-keys", "0"], 2, "at least 1"),
    ):
        assert main(["serve", *arguments]) == code
        assert told in capsys.readouterr().err
    built.hide(1, 5)
    built.storage.delete(["commits/0"])
    assert main(["serve", str(built.root)]) == 2
    assert "no batch is committed" in capsys.readouterr().err
