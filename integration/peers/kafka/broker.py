"""A Kafka broker that is its own controller: one process, on loopback. Its data is in a directory
of the test.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.jvm import LIGHT
from integration.peers.kafka import jars
from integration.processes import wait_until
from millpond._jvm import java

_CLUSTER = "bWlsbHBvbmQtcGVlci1rYQ"  # sixteen bytes in base64, as Kafka names clusters
_API_VERSIONS = 18
_ESTABLISHED = "01"  # in /proc/net/tcp
# A topic comes into being with its first record. It has two partitions, as the queries' state.
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=true
num.partitions=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True)
class Broker:
    """A broker that answers.

    servers: the address for clients. pid: 0 if another process runs it.
    """

    servers: str
    pid: int = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside this block the broker stands still, and its clients wait."""
        assert self.pid
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def awaiting(self) -> set[str]:
        """Return the addresses of live clients that have sent something which the broker has not
        read.
        """
        port = f":{int(self.servers.rpartition(':')[2]):04X}"
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, remote, state, queues = line.split()[:5]
                unread_bytes = int(queues.partition(":")[2], 16)
                if local.endswith(port) and state == _ESTABLISHED and unread_bytes:
                    found.add(remote)
        return found


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    """Run a broker without data on free ports. Kill it at the end."""
    port, controller = _free_ports(2)
    settings, log = directory / "server.properties", directory / "log"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, data=directory / "data"))
    command = [java(), "-Xmx512m", *LIGHT.split(), "-Dorg.apache.logging.log4j.level=INFO"]
    command += ["-cp", f"{jars.BROKER}/*"]
    with log.open("ab") as said:
        format = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        formatted = subprocess.run(
            [*command, *format],
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )
        assert formatted.returncode == 0, log.read_text()
        process = subprocess.Popen(
            [*command, "kafka.Kafka", str(settings)], stdout=said, stderr=subprocess.STDOUT
        )
    try:
        wait_until(
            lambda: process.poll() is not None or _answers(port),
            seconds=120,
            what=f"the broker to answer; {log} says more",
        )
        assert process.poll() is None, log.read_text()[-3000:]
        yield Broker(f"127.0.0.1:{port}", process.pid)
    finally:
        process.kill()  # nobody needs its data any more
        process.wait()


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _answers(port: int) -> bool:
    """Return whether the broker names the requests that it knows: then it serves clients."""
    number = 1
    request = struct.pack(">hhih", _API_VERSIONS, 0, number, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(10)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">ih", answer[4:]) == (number, 0)
