"""A name node and a data node on loopback. Each is a process that a test may kill and start again.

The user `hdfs` may do everything. Clients are the user that `HADOOP_USER_NAME` names.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.jvm import LIGHT
from integration.peers.hdfs import jars
from integration.peers.loopback import free_port, write_site
from integration.processes import wait_until
from millpond._jvm import java

SUPERUSER = "hdfs"
_START_S = 120
_LOG4J = """\
log4j.rootLogger=INFO,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n
"""
# A test's cluster is small: one copy of each block, and every second a heartbeat. A name node that
# starts again leaves safe mode as soon as it knows where the blocks are.
_SETTINGS = {
    "dfs.replication": "1",
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.datanode.hostname": "127.0.0.1",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "1000",
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.safemode.min.datanodes": "1",
    "dfs.namenode.redundancy.interval.seconds": "1s",
    "dfs.namenode.edits.noeditlogchannelflush": "false",
}


class Hdfs:
    """A cluster below `work`. `started` makes one."""

    def __init__(self, work: Path, classpath: Path = jars.HDFS) -> None:
        self._work = work
        self._classpath = classpath
        self.conf = work / "conf"
        """The folder with core-site.xml and hdfs-site.xml, as `HADOOP_CONF_DIR` names it."""
        self.uri = f"hdfs://127.0.0.1:{free_port()}"
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.conf.mkdir(parents=True)
        for pages in ("hdfs", "datanode"):  # what they serve to browsers is in no Maven artefact
            (self.conf / "webapps" / pages).mkdir(parents=True)
        (self.conf / "log4j.properties").write_text(_LOG4J)
        write_site(self.conf / "core-site.xml", {"fs.defaultFS": self.uri})
        folders = {
            "dfs.namenode.name.dir": f"file://{work}/name",
            "dfs.datanode.data.dir": f"file://{work}/data",
        }
        write_site(self.conf / "hdfs-site.xml", {**_SETTINGS, **folders})

    def _command(self, main: str, *arguments: str) -> list[str]:
        path = os.pathsep.join([str(self.conf), f"{self._classpath}/*"])
        # The JVM keeps its statistics in /tmp otherwise.
        light = [java(), "-Xmx256m", *LIGHT.split(), "-XX:-UsePerfData"]
        return [*light, "-cp", path, main, *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HADOOP_USER_NAME": SUPERUSER, "HADOOP_CONF_DIR": str(self.conf)}

    def run(self, main: str, *arguments: str) -> str:
        """Run one of Hadoop's tools as the superuser. Return what it prints."""
        done = subprocess.run(
            self._command(main, *arguments),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_S,
        )
        assert done.returncode == 0, f"{main} {arguments}: {done.stdout}{done.stderr[-3000:]}"
        return done.stdout

    def admin(self, *arguments: str) -> str:
        """Run `hdfs dfsadmin`."""
        return self.run("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)

    def shell(self, *arguments: str) -> str:
        """Run `hdfs dfs`."""
        return self.run("org.apache.hadoop.fs.FsShell", *arguments)

    def format(self) -> None:
        """Make the file system, empty."""
        main = "org.apache.hadoop.hdfs.server.namenode.NameNode"
        self.run(main, "-format", "-force", "-nonInteractive")

    def start(self, node: str) -> None:
        """Start the `namenode` or the `datanode`, without waiting for it."""
        name = {"namenode": "namenode.NameNode", "datanode": "datanode.DataNode"}[node]
        with self.log(node).open("ab") as said:
            self._nodes[node] = subprocess.Popen(
                self._command(f"org.apache.hadoop.hdfs.server.{name}"),
                env=self._environment(),
                cwd=self._work,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def kill(self, node: str) -> None:
        """Kill a node with -9."""
        process = self._nodes.pop(node)
        process.kill()
        process.wait()

    def log(self, node: str) -> Path:
        """Return the file with a node's output."""
        return self._work / f"{node}.log"

    def runs(self, node: str) -> bool:
        """Return whether a node was started and not killed."""
        return node in self._nodes

    def wait(self, *, leave_safe_mode: bool = False) -> None:
        """Wait until files can be written: a data node is there, and safe mode is off.

        Args:
            leave_safe_mode: end a safe mode that a test began.
        """
        host, port = self.uri.removeprefix("hdfs://").split(":")
        wait_until(
            lambda: self._ended() or _listens(host, int(port)),
            seconds=_START_S,
            what=f"the name node to listen; {self.log('namenode')} says more",
        )
        assert not self._ended(), self._said()
        if leave_safe_mode:
            self.admin("-safemode", "leave")
        self.admin("-safemode", "wait")
        wait_until(self._writes, seconds=_START_S, what="a file to be written")

    def _writes(self) -> bool:
        """Return whether a file can be written and read. A data node may still be on its way."""
        probe = self._work / "probe"
        probe.write_text("a file")
        try:
            self.shell("-put", "-f", str(probe), "/probe")
        except AssertionError:
            return False
        return self.shell("-cat", "/probe") == "a file"

    def _ended(self) -> bool:
        return any(node.poll() is not None for node in self._nodes.values())

    def _said(self) -> str:
        return "\n".join(
            path.read_text()[-2000:] for path in map(self.log, ("namenode", "datanode"))
        )

    def stop(self) -> None:
        """End both nodes. Nobody needs their data any more."""
        for node in list(self._nodes):
            self.kill(node)


@contextmanager
def started(work: Path, classpath: Path = jars.HDFS) -> Iterator[Hdfs]:
    """Run an empty cluster. Kill it at the end."""
    cluster = Hdfs(work, classpath)
    try:
        cluster.format()
        cluster.start("namenode")
        cluster.start("datanode")
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError:
        return False
    return True
