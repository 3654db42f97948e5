"""The Spark session and the harness JVM of a test run. A check that the run leaves no process."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import millpond
from integration.depth import is_in_part
from integration.harness import Harness, providers_to_test
from integration.jvm import (
    LIGHT_DRIVER,
    MILLPOND,
    ROCKSDB,
    classes_after_spark,
    compile_harness,
    millpond_jar,
)
from integration.processes import agents_below, wait_until
from integration.shapes import from_reports


def pytest_configure() -> None:
    """Let the process open more files than most systems allow at first.

    pyspark keeps a socket open for each query that has called Python, and a run has hundreds.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def pytest_report_header() -> str:
    """Return a line with the providers and the shim that this run tests."""
    return (
        f"state store providers: {', '.join(c.rsplit('.', 1)[1] for c in providers_to_test())};"
        f" shim: {millpond_jar()}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of peers, unless the marks name them, and deep tests of other parts."""
    if "peer" not in str(config.option.markexpr):
        items[:] = [item for item in items if item.get_closest_marker("peer") is None]
    part = os.environ.get("MILLPOND_DEEP_PART", "")
    if part and config.option.markexpr == "deep":
        items[:] = [item for item in items if is_in_part(item.nodeid, part)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the query shapes that this run compared with Spark's RocksDB store."""
    lines = from_reports(r for reports in terminalreporter.stats.values() for r in reports)
    if lines:
        terminalreporter.section("query shapes, Millpond against Spark's RocksDB store")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def connectors() -> list[Path]:
    """Return more jars for the session. A folder below may override this fixture."""
    return []


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, connectors: list[Path]
) -> Iterator[SparkSession]:
    """One session for a test run: 2 cores, 2 state partitions, maintenance every 200 ms."""
    local = tmp_path_factory.mktemp("spark-local")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # times among the grouping columns go in bulk where the workers have the zone of the session
    os.environ["TZ"] = "UTC"
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
        # A query that cannot be stopped fails its test. By default `stop` waits forever.
        .config("spark.sql.streaming.stopTimeout", "120s")
        .config("spark.driver.memory", "1500m")
        .config("spark.driver.extraJavaOptions", LIGHT_DRIVER)
    )
    if MILLPOND in providers_to_test():
        # Queries choose their provider. If the session named Millpond here, Millpond would refuse
        # queries on Spark's own store.
        builder = millpond.configure(builder).config(
            "spark.sql.streaming.stateStore.providerClass", ROCKSDB
        )
    if connectors:
        builder = builder.config(
            "spark.driver.extraClassPath", os.pathsep.join(map(str, connectors))
        )
    with classes_after_spark(compile_harness()):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    gateway = session.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    agents = agents_below(java.pid)
    session.stop()
    gateway.shutdown()
    java.stdin.close()  # pyspark's JVM ends with its standard input
    java.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents),
        seconds=5,
        what=f"agents {agents} to end with the JVM",
    )


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One JVM for all tests that drive stores without a query."""
    started = Harness(tmp_path_factory.mktemp("harness"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def own_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A JVM for a module that looks at the files of the process.

    In the other one a store stays open behind its provider if a test does not end its session.
    """
    started = Harness(tmp_path_factory.mktemp("harness"))
    yield started
    started.stop()


@pytest.fixture(autouse=True, scope="session")
def _no_agent_survives() -> Iterator[None]:
    """Check that the agents of this run's JVMs are dead at the end."""
    mine = os.getpid()
    yield
    wait_until(
        lambda: not [p for p in agents_below(mine) if _orphan(p)],
        seconds=5,
        what="the last agents to end",
    )


def _orphan(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == "1"
    except FileNotFoundError:
        return False
