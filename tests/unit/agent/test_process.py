"""The agent as a process, with a real JVM at the other end of the link."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark
import pytest

from millpond._version import __version__
from millpond.agent.__main__ import EXIT_NO_LINK, EXIT_NO_PARAMETERS, _parameters

REPOSITORY = Path(__file__).parents[3]
JARS = Path(pyspark.__file__).parent / "jars"

# Starts an agent as the shim does. It obeys one command a line: `call <method> <request>`, `load
# <threads> <calls>`, `closestdin`.
TINY_JVM = """
package org.apache.spark.sql.millpond;

import java.io.*;
import java.net.InetAddress;
import java.util.*;
import java.util.concurrent.*;

public class TinyJvm {
  public interface AgentApi { String call(String method, String request); }

  public static class Registry {
    final CompletableFuture<AgentApi> agent = new CompletableFuture<>();
    public void register(AgentApi a) { agent.complete(a); }
  }

  public static void main(String[] args) throws Exception {
    Registry registry = new Registry();
    InetAddress loopback = InetAddress.getByName("127.0.0.1");
    String token = UUID.randomUUID().toString().replace("-", "");
    Thread.currentThread().setContextClassLoader(TinyJvm.class.getClassLoader());
    py4j.GatewayServer server = new py4j.GatewayServer.GatewayServerBuilder(registry)
        .javaPort(0).javaAddress(loopback).authToken(token).callbackClient(0, loopback, token).build();
    server.start();
    ProcessBuilder builder = new ProcessBuilder(args[0], "-c", args[1]);
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    long start = System.nanoTime();
    Process process = builder.start();
    String hello = String.format("{\\"port\\": %d, \\"token\\": \\"%s\\", \\"parent_pid\\": %d, \\"local_root\\": \\"%s\\"}",
        server.getListeningPort(), token, ProcessHandle.current().pid(), args[2]);
    process.getOutputStream().write((hello + "\\n").getBytes());
    process.getOutputStream().flush();
    AgentApi agent = registry.agent.get(60, TimeUnit.SECONDS);
    System.out.println("up " + process.pid() + " " + (System.nanoTime() - start) / 1000000);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ", 3);
      if (words[0].equals("call")) System.out.println(agent.call(words[1], words[2]));
      else if (words[0].equals("load")) {
        int threads = Integer.parseInt(words[1]), calls = Integer.parseInt(words[2]);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Integer>> results = new ArrayList<>();
        long t = System.nanoTime();
        for (int k = 0; k < threads; k++)
          results.add(pool.submit(() -> {
            int good = 0;
            for (int i = 0; i < calls; i++) if (agent.call("ping", "{}").contains("pid")) good++;
            return good;
          }));
        int good = 0;
        for (Future<Integer> f : results) good += f.get();
        pool.shutdown();
        System.out.println(good + " " + (System.nanoTime() - t) / 1000 / (threads * calls));
      } else if (words[0].equals("closestdin")) {
        process.getOutputStream().close();
        System.out.println(process.waitFor(20, TimeUnit.SECONDS) ? process.exitValue() : -1);
      }
    }
    System.exit(0);
  }
}
"""

# This is the agent itself with another name of the interface: the class above stands for the shim's
# trait.
AGENT = """
import sys
from millpond.agent import gateway
plain = gateway.connect
gateway.connect = lambda handler, **k: plain(handler, interface="org.apache.spark.sql.millpond.TinyJvm$AgentApi", **k)
from millpond.agent.__main__ import main
import os
os._exit(main())
"""

# An agent that holds each call, so that the next one needs one more connection. It has no file left
# for the second one.
WITHOUT_FILES = f"""
import errno, socket, threading
from millpond.agent.service import AgentService
AgentService.handle = lambda *_: threading.Event().wait()
accept, accepted = socket.socket.accept, []
def limited(server):
    accepted.append(server)
    if len(accepted) == 2:
        raise OSError(errno.EMFILE, "Too many open files")
    return accept(server)
socket.socket.accept = limited
{AGENT}"""


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-jvm")
    source = directory / "TinyJvm.java"
    source.write_text(TINY_JVM)
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac on this machine")
    py4j = next(JARS.glob("py4j-*.jar"))
    subprocess.run([javac, "-cp", str(py4j), "-d", str(directory), str(source)], check=True)
    return directory


class TinyJvm:
    """A JVM that runs one agent."""

    def __init__(
        self, classes: Path, local_root: Path, stderr: IO[bytes], agent: str = AGENT
    ) -> None:
        py4j = next(JARS.glob("py4j-*.jar"))
        command = [
            "java",
            "-Xmx128m",
            "-cp",
            f"{classes}:{py4j}",
            "org.apache.spark.sql.millpond.TinyJvm",
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "python/src"),
            "MILLPOND_LOG": "INFO",
        }
        self.process = subprocess.Popen(
            [*command, sys.executable, agent, str(local_root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        )
        word, pid, ms = self.read().split()
        assert word == "up"
        self.agent_pid, self.start_ms = int(pid), int(ms)

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def tell(self, line: str) -> str:
        self.say(line)
        return self.read()


@contextmanager
def tiny_jvm(classes: Path, tmp_path: Path, agent: str = AGENT) -> Iterator[TinyJvm]:
    with (tmp_path / "stderr").open("wb") as stderr:
        tiny = TinyJvm(classes, tmp_path / "none" / "millpond-x", stderr, agent)
        try:
            yield tiny
        finally:
            tiny.process.kill()
            tiny.process.wait()
        assert wait_until(lambda: not is_alive(tiny.agent_pid), 10)


@pytest.fixture
def jvm(classes: Path, tmp_path: Path) -> Iterator[TinyJvm]:
    with tiny_jvm(classes, tmp_path) as tiny:
        yield tiny


@pytest.mark.spark
def test_the_agent_answers_and_survives_errors(jvm: TinyJvm, tmp_path: Path) -> None:
    answer = json.loads(jvm.tell("call ping {}"))
    assert answer == {"ok": {"pid": jvm.agent_pid, "version": __version__}}
    error = json.loads(jvm.tell("call nonsense {}"))["error"]
    assert error["kind"] == "INVALID_ARGUMENT" and set(error) == {"kind", "message", "hint"}
    assert json.loads(jvm.tell("call ping {}"))["ok"]["pid"] == jvm.agent_pid


@pytest.mark.spark
def test_text_crosses_unharmed(jvm: TinyJvm, tmp_path: Path) -> None:
    (tmp_path / "lo cal").mkdir()
    store = {
        "root": f"file:{tmp_path}/k\u00f6nig \U0001f600/state",
        "operator": 0,
        "partition": 0,
        "name": "default",
        "run_id": "r",
        "local_dir": str(tmp_path / "lo cal"),
        "checkpoint_format": 1,
        "partitions_hint": 2,
        "options": {},
        "retain_versions": 2,
        "min_deltas_for_snapshot": 2,
        "maintenance_interval_ms": 0,
    }
    request = json.dumps(
        {"store": store, "version": 0, "generation": 0, "load_empty": False, "excluded": []}
    )
    plan = json.loads(jvm.tell(f"call open {request}"))["ok"]
    assert plan["staging_dir"] == f"{tmp_path}/k\u00f6nig \U0001f600/state/0/0"
    assert Path(plan["staging_dir"]).is_dir()


@pytest.mark.spark
def test_many_threads_are_served_at_once(jvm: TinyJvm) -> None:
    good, us = jvm.tell("load 32 50").split()
    assert int(good) == 32 * 50
    # An idle machine needs tens of us. A connection that waits for the backlog needs a second.
    assert int(us) < 20_000


@pytest.mark.spark
def test_the_agent_dies_with_the_jvm(jvm: TinyJvm) -> None:
    assert is_alive(jvm.agent_pid)
    jvm.process.send_signal(signal.SIGKILL)
    jvm.process.wait()
    assert wait_until(lambda: not is_alive(jvm.agent_pid), 5), "the agent ends with its JVM"


@pytest.mark.spark
def test_the_end_of_stdin_is_the_order_to_exit(jvm: TinyJvm) -> None:
    assert jvm.tell("closestdin") == "0"


@pytest.mark.spark
def test_an_agent_that_takes_no_more_connections_ends(classes: Path, tmp_path: Path) -> None:
    """It lived on, and each call that needed one more connection waited in vain."""
    with tiny_jvm(classes, tmp_path, WITHOUT_FILES) as jvm:
        jvm.say("load 2 1")
        assert wait_until(lambda: not is_alive(jvm.agent_pid), 20), "the agent hears nobody"
    assert "Too many open files" in (tmp_path / "stderr").read_text()


def start_agent(
    line: str | bytes, *, close: bool = False, **environment: str
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond.agent"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python/src"), **environment},
    )
    assert process.stdin is not None
    process.stdin.write(line if isinstance(line, bytes) else line.encode())
    process.stdin.flush()
    if close:
        process.stdin.close()
    return process


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    assert process.stderr is not None
    code = process.wait(30)
    text = process.stderr.read().decode()
    process.stderr.close()
    if process.stdin is not None:
        process.stdin.close()
    return code, text


def test_no_jvm_there_is_one_clear_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = "0123456789abcdef" * 2
    code, text = end_of(
        start_agent(json.dumps({"port": port, "token": token, "parent_pid": 1}) + "\n")
    )
    assert code == EXIT_NO_LINK
    assert f"millpond agent: cannot link to the JVM at 127.0.0.1:{port}" in text.splitlines()[-1]
    assert token not in text and "Traceback" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_start_parameters_are_utf_8_in_every_locale(encoding: str) -> None:
    """The agent of a JVM with letters in its local folder did not start, or looked elsewhere."""
    hello = {"port": 1, "token": "t", "parent_pid": 1, "local_root": "/größe \U0001f600"}
    line = json.dumps(hello, ensure_ascii=False).encode() + b"\n"
    assert _parameters(line) == hello
    code, text = end_of(start_agent(line, PYTHONIOENCODING=encoding))
    assert (code, "cannot link to the JVM" in text) == (EXIT_NO_LINK, True), text


@pytest.mark.parametrize(
    ("line", "close"),
    [
        ("", True),
        ("\n", False),
        ("not json\n", False),
        ("[]\n", False),
        ('{"port": 0, "token": "x"}\n', False),
        (b'{"port": 1, "token": "\xe9"}\n', False),
    ],
)
def test_bad_start_parameters_are_one_clear_line(line: str | bytes, close: bool) -> None:
    code, text = end_of(start_agent(line, close=close))
    assert code == EXIT_NO_PARAMETERS
    assert text.startswith("millpond agent: ") and len(text.splitlines()) == 1


def test_start_imports_nothing_heavy() -> None:
    script = (
        "import sys, millpond.agent.__main__, millpond.agent.gateway,"
        " millpond.agent.service\nprint([m for m in ('pyarrow', 'boto3', 'rocksdict', 'pyspark',"
        " 'numpy', 'pandas', 'hashlib') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python/src")}
    output = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert output.stdout.strip() == "[]"
