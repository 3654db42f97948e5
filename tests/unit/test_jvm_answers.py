"""The answers of a JVM are told from what the JVM itself prints beside them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from millpond._jvm import command
from millpond.operations.migrate import jvm
from millpond.storage import hadoop_jvm

# With JAVA_TOOL_OPTIONS=-Xlog:gc the JVM writes such lines to its standard output; with SIGQUIT, a
# list of its threads.
_NOISE = """
print('[0.012s][info][gc] Using Parallel\\n')
print('17')
print('2026-11-29 06:30:00\\nFull thread dump OpenJDK 64-Bit Server VM', flush=True)
"""


def test_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that receives answers ended, and the command waited for ever."""
    script = f"""
import json, sys
for line in sys.stdin:
    {_NOISE.strip().replace(chr(10), chr(10) + "    ")}
    asked = json.loads(line)
    print(json.dumps({{"id": asked["id"], "answer": asked["method"]}}), flush=True)
"""
    monkeypatch.setattr(hadoop_jvm, "command", lambda *_: [sys.executable, "-c", script])
    running = hadoop_jvm._Jvm()
    answers: list[str] = []
    asking = threading.Thread(
        target=lambda: answers.extend(running.ask(method, "{}") for method in ("stat", "list")),
        daemon=True,
    )
    asking.start()
    asking.join(30)
    running._end()
    assert answers == ["stat", "list"]


def test_of_stores() -> None:
    """It was an INTERNAL error of adopt and release."""
    script = f"""
import json
{_NOISE}
print(json.dumps({{"rows": 3}}))
{_NOISE}
print(json.dumps({{"done": True}}), flush=True)
"""
    assert list(jvm.answers([sys.executable, "-c", script], {})) == [{"rows": 3}]


def test_the_jvm_prints_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a line in the middle of a long answer spoiled it, and the command waited for ever."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xlog:gc*")
    line = command("org.apache.spark.sql.millpond.agent.FilesMain", {"spark.driver.memory": "256m"})
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b""
