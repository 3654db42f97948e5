"""One Spark session for the operator tests, and the check that a test run leaves no process behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millpond
from integration.harness import providers_to_test
from integration.jvm import MILLPOND, millpond_jar
from integration.processes import agents_below, wait_until


def pytest_report_header() -> str:
    """What is tested against what."""
    return f"state store providers: {', '.join(c.rsplit('.', 1)[1] for c in providers_to_test())}; shim: {millpond_jar()}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this test run: 2 cores, 2 state partitions, maintenance five times a second."""
    local = tmp_path_factory.mktemp("spark-local")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("millpond integration")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(local))
        .config("spark.sql.warehouse.dir", str(local / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "200ms")
        .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.driver.memory", "1500m")
    )
    if MILLPOND in providers_to_test():
        builder = millpond.configure(builder)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    java = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    agents = agents_below(java)
    session.stop()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents), seconds=5, what=f"agents {agents} to end after session.stop()")


@pytest.fixture(autouse=True, scope="session")
def _no_agent_survives() -> Iterator[None]:
    """No agent whose JVM this run started is alive at the end."""
    mine = os.getpid()
    yield
    wait_until(lambda: not [p for p in agents_below(mine) if _orphan(p)], seconds=5, what="the last agents to end")


def _orphan(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == "1"
    except FileNotFoundError:
        return False
