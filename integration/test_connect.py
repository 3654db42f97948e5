"""Spark Connect: a server with the settings that `millpond conf` prints, and a plain client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from integration.connect_client import KEYS, ROWS
from integration.jvm import LIGHT, MILLPOND, REPO
from integration.processes import agents_below, alive, below, wait_until
from integration.transports import BULK, transport_conf
from millpond.operations.inspect.overview import overview
from millpond.spark.session import conf_lines
from millpond.storage import open_storage

_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(r"Spark Connect server started at: \S*?:(\d+)\s*$", re.MULTILINE)
_SETTINGS = [
    "spark.master local[2]",
    "spark.ui.enabled false",
    "spark.driver.memory 1g",
    "spark.sql.shuffle.partitions 2",
    "spark.connect.grpc.binding.address 127.0.0.1",
    "spark.connect.grpc.binding.port 0",
    *(f"{name} {value}" for name, value in transport_conf(BULK).items()),
]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server. At the end the server and its agents must end."""
    directory = tmp_path_factory.mktemp("connect")
    properties, log = directory / "spark.conf", directory / "server.log"
    logging = directory / "log4j2.properties"
    logging.write_text(
        "rootLogger.level=info\nrootLogger.appenderRef.stderr.ref=stderr\nappender.console.type=Console\n"
        "appender.console.name=stderr\nappender.console.target=SYSTEM_ERR\nappender.console.layout.type=PatternLayout\n"
        "appender.console.layout.pattern=%p %c{1}: %m%n%ex\n"
    )
    java_options = (
        f"spark.driver.extraJavaOptions {LIGHT} -Dlog4j2.configurationFile={logging.as_uri()}"
    )
    local = f"spark.local.dir {directory}"
    properties.write_text(
        "\n".join([*conf_lines("local[2]"), *_SETTINGS, java_options, local]) + "\n"
    )
    command = [
        str(_SUBMIT),
        "--properties-file",
        str(properties),
        "--class",
        _SERVER,
        "spark-internal",
    ]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPO)}
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=directory
        )

        def port() -> str | None:
            assert server.poll() is None, log.read_text()[-4000:]
            found = _STARTED.search(log.read_text())
            return found[1] if found else None

        try:
            wait_until(
                lambda: port() is not None, seconds=120, what="the Connect server's port in its log"
            )
            yield f"sc://127.0.0.1:{port()}"
        finally:
            children = [p.pid for p in below(server.pid)] + agents_below(server.pid)
            server.terminate()
            server.wait(timeout=60)
            wait_until(
                lambda: not any(map(alive, children)),
                seconds=20,
                what="the server's processes to end",
            )


@pytest.fixture(scope="module")
def results(remote: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return what the client printed, and the directory of its Spark checkpoints."""
    directory = tmp_path_factory.mktemp("checkpoints")
    command = [sys.executable, "-m", "integration.connect_client", remote, str(directory)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("at ")]
    assert done.returncode == 0, "\n".join(errors[-30:])
    return json.loads(done.stdout), directory


def _expected(until: int) -> list[list[int]]:
    totals: dict[int, list[int]] = {}
    for value in range(until):
        totals.setdefault(value % KEYS, []).append(value)
    return [[key, sum(values), len(values)] for key, values in sorted(totals.items())]


@pytest.mark.deep
@pytest.mark.parametrize("query", ["aggregation", "transformWithState"])
def test_a_connect_session_keeps_its_state_in_millpond(
    results: tuple[dict[str, Any], Path], query: str
) -> None:
    found, directory = results
    assert [run["rows"] for run in found[query]] == [_expected(ROWS), _expected(2 * ROWS)]
    assert all("millpondChangelogMs" in run["metrics"] for run in found[query])
    if query == "transformWithState":  # its state travels in bulk, as without Connect
        assert all(run["metrics"]["millpondPythonSentBytes"] > 0 for run in found[query])
        assert all(run["metrics"]["millpondPythonCallsSaved"] > 0 for run in found[query])
    view = overview(open_storage(str(directory / query)), query)
    assert view.provider == MILLPOND
    assert [store.scalable for operator in view.operators for store in operator.stores] == [
        True,
        True,
    ]
