"""The cluster with two networks, its S3 server, and one driver for all tests of a module."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.cluster import STATE, Application, Cluster
from integration.gate import Gate
from integration.jvm import REPO
from integration.peers.network import lan as lans
from integration.peers.network.lan import Lan
from tests.s3_server import HADOOP

HOSTS = ("driver", "worker1", "worker2")
NETWORKS = {"cluster": HOSTS, "storage": (*HOSTS, "store")}


@dataclass(frozen=True)
class Store:
    """The S3 server: its URL, and a bucket."""

    endpoint: str
    bucket: str


class OnHosts(Cluster):
    """The cluster with each process on its host."""

    def __init__(self, work: Path, lan: Lan) -> None:
        self.lan = lan
        super().__init__(work)

    def address(self, host: int) -> str:
        """Return the address on the network of the cluster."""
        return self.lan.address("cluster", HOSTS[host])

    def on(self, host: int) -> list[str]:
        """Return what lets a command run on a host."""
        return self.lan.on(HOSTS[host])

    def host_of(self, jvm: int) -> str:
        """Return the host of an executor's JVM."""
        (command,) = [p.command for p in self.processes() if p.pid == jvm]
        (host,) = [h for h in HOSTS if f"--hostname {self.lan.address('cluster', h)} " in command]
        return host


@pytest.fixture(scope="session")
def lan(versions: dict[str, str]) -> Iterator[Lan]:
    """Make the hosts and networks."""
    why = lans.missing()
    if why is not None:
        pytest.skip(why)
    versions["Linux"] = ".".join(platform.release().split(".")[:2])
    with lans.started(NETWORKS) as made:
        yield made


@pytest.fixture(scope="session")
def store(lan: Lan) -> Iterator[Store]:
    """Run the S3 server on its host."""
    command = [*lan.on("store"), sys.executable, "-m", "integration.peers.network.store"]
    with subprocess.Popen(
        [*command, lan.address("storage", "store")],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        yield Store(*json.loads(process.stdout.readline()))
        process.stdin.close()


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """Return the gate that can hold the agents."""
    return Gate(tmp_path_factory.mktemp("gate") / "gate")


@pytest.fixture(scope="session")
def cluster(lan: Lan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHosts]:
    """Run the master on the driver's host, and a worker on each other host."""
    with OnHosts(tmp_path_factory.mktemp("network") / "cluster", lan) as running:
        yield running
    assert running.processes() == []


@pytest.fixture(scope="session")
def app(
    cluster: OnHosts, store: Store, gate: Gate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """Run a driver whose queries have their state on the server."""
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.locality.wait": "0",
        # A minute is longer than that: Spark gives up an executor that is cut off.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "2s",
        "spark.shuffle.io.maxRetries": "0",
        STATE + "maintenanceInterval": "300ms",
        STATE + "minDeltasForSnapshot": "2",
        STATE + "millpond.agent.python": str(gate.interpreter),
        STATE + "millpond.storage.uri": f"s3a://{store.bucket}/states",
        STATE + "millpond.storage.s3.endpoint": store.endpoint,
        **{f"spark.hadoop.{name}": value for name, value in HADOOP.items()},
    }
    work = tmp_path_factory.mktemp("driver")
    with Application(cluster, work / "app", settings) as running:
        yield running
