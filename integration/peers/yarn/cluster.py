"""A resource manager and a node manager on loopback, each a process, above an HDFS."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.cluster import END_S, SPARK_HOME
from integration.demo import processes as tagged
from integration.jvm import LIGHT
from integration.peers.hdfs import jars
from integration.peers.hdfs.cluster import Hdfs
from integration.peers.hdfs.cluster import started as started_hdfs
from integration.peers.loopback import free_port, write_site
from integration.processes import Process, processes, wait_until
from millpond._jvm import java

_TAG = "MILLPOND_TEST_YARN"
# What containers inherit from the node manager's environment.
_KEPT = ("JAVA_HOME", "HADOOP_CONF_DIR", "SPARK_LOCAL_IP", _TAG)
_START_S = 120
_SERVER = "org.apache.hadoop.yarn.server"
_MAINS = {
    "resourcemanager": f"{_SERVER}.resourcemanager.ResourceManager",
    "nodemanager": f"{_SERVER}.nodemanager.NodeManager",
}


class Yarn:
    """A cluster below `work`. `started` makes one.

    Every process has a tag in its environment, the containers too.
    """

    def __init__(self, work: Path, hdfs: Hdfs) -> None:
        self.work = work
        self.hdfs = hdfs
        self.tag = uuid.uuid4().hex
        self._nodes: list[subprocess.Popen[bytes]] = []
        work.mkdir(parents=True, exist_ok=True)
        ports = {
            name: f"127.0.0.1:{free_port()}"
            for name in ("address", "scheduler.address", "resource-tracker.address")
        }
        write_site(
            hdfs.conf / "yarn-site.xml",
            {
                **{f"yarn.resourcemanager.{name}": where for name, where in ports.items()},
                "yarn.resourcemanager.hostname": "127.0.0.1",
                "yarn.resourcemanager.admin.address": "127.0.0.1:0",
                "yarn.resourcemanager.webapp.address": "127.0.0.1:0",
                "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo"
                ".FifoScheduler",
                "yarn.nodemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.address": "127.0.0.1:0",
                "yarn.nodemanager.localizer.address": "127.0.0.1:0",
                "yarn.nodemanager.webapp.address": "127.0.0.1:0",
                "yarn.nodemanager.local-dirs": str(work / "local"),
                "yarn.nodemanager.log-dirs": str(work / "logs"),
                "yarn.nodemanager.resource.memory-mb": "6144",
                "yarn.nodemanager.resource.cpu-vcores": "8",
                "yarn.nodemanager.env-whitelist": ",".join(_KEPT),
                "yarn.nodemanager.vmem-check-enabled": "false",
                # a test's disk may be nearly full
                "yarn.nodemanager.disk-health-checker.enable": "false",
                "yarn.scheduler.minimum-allocation-mb": "128",
            },
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of the cluster, and of spark-submit."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        return kept | {
            _TAG: self.tag,
            "HADOOP_CONF_DIR": str(self.hdfs.conf),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def start(self) -> None:
        """Start both nodes, and wait until the node manager is registered."""
        for node, main in _MAINS.items():
            path = os.pathsep.join([str(self.hdfs.conf), f"{jars.YARN}/*"])
            light = [java(), "-Xmx256m", *LIGHT.split(), "-XX:-UsePerfData"]
            opens = ["--add-opens", "java.base/java.lang=ALL-UNNAMED"]
            with self.log(node).open("ab") as said:
                self._nodes.append(
                    subprocess.Popen(
                        [*light, *opens, "-cp", path, main],
                        env=self.environment(),
                        cwd=self.work,
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=subprocess.STDOUT,
                    )
                )
        wait_until(
            lambda: (
                any(node.poll() is not None for node in self._nodes)
                or "NodeManager from node" in self.log("resourcemanager").read_text()
            ),
            seconds=_START_S,
            what=f"the node manager to register; {self.work} has the logs",
        )
        assert all(node.poll() is None for node in self._nodes), self.said()

    def log(self, node: str) -> Path:
        """Return the file with a node's output."""
        return self.work / f"{node}.log"

    def said(self) -> str:
        """Return the ends of both nodes' output."""
        return "\n".join(self.log(node).read_text()[-2000:] for node in _MAINS)

    def executors(self) -> list[Process]:
        """Return the JVMs of the executors, not the shells that start them."""
        return [
            p
            for p in self.processes()
            if "YarnCoarseGrainedExecutorBackend" in p.command
            and re.match(r"\S*java ", p.command)
            and p.state != "Z"
        ]

    def kill_executors(self) -> int:
        """Kill the JVMs of all executors with -9. Return their number."""
        killed = 0
        for executor in self.executors():
            try:
                os.kill(executor.pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass  # it ended by itself meanwhile
        return killed

    def processes(self) -> list[Process]:
        """Return all live processes of the cluster and of its applications."""
        mine = {p.pid for p in tagged.find(self.tag, _TAG)}
        return [p for p in processes() if p.pid in mine]

    def container_logs(self) -> str:
        """Return the ends of what the containers wrote to stderr."""
        paths = sorted((self.work / "logs").rglob("stderr"))
        return "\n".join(f"== {p}\n{p.read_text(errors='replace')[-3000:]}" for p in paths)

    def stop(self) -> None:
        """Kill all processes. Raises: TimeoutError: one survived."""
        for node in self._nodes:
            node.kill()
            node.wait()

        def none_left() -> bool:
            left = tagged.find(self.tag, _TAG)
            tagged.kill(left)
            return not left

        if not tagged.wait_until(none_left, timeout_s=END_S):
            raise TimeoutError(f"still alive: {tagged.find(self.tag, _TAG)}")


@contextmanager
def started(work: Path) -> Iterator[Yarn]:
    """Run an HDFS and a YARN. Kill both at the end."""
    with started_hdfs(work / "hdfs") as hdfs:
        cluster = Yarn(work / "yarn", hdfs)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
