"""Hosts as network namespaces, and networks between them whose cables a test can pull out.

Nothing of the machine's own network is touched. Packets to a host whose cable is out get lost, and
nobody is told: as with a switch or a firewall that fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager


def missing() -> str | None:
    """Return why this machine cannot run hosts, in one sentence; None if it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip: apt-get install iproute2"
    name = f"millpond-{uuid.uuid4().hex[:6]}"
    made = _ip("netns", "add", name)
    if made is None:
        made = _ip("-n", name, "link", "add", "probe", "type", "bridge")
        _ip("netns", "del", name)
    return None if made is None else f"the kernel refuses network namespaces: {made}"


class Lan:
    """Hosts on networks. `started` makes one.

    Args:
        networks: the names of the hosts on each network.
    """

    def __init__(self, networks: Mapping[str, Collection[str]]) -> None:
        self._prefix = f"millpond-{uuid.uuid4().hex[:6]}"
        self._networks = {name: list(hosts) for name, hosts in networks.items()}
        self._hosts = list(dict.fromkeys(h for hosts in self._networks.values() for h in hosts))

    def address(self, network: str, host: str) -> str:
        """Return a host's address on a network."""
        return f"10.77.{self._index(network)}.{self._networks[network].index(host) + 1}"

    def on(self, host: str) -> list[str]:
        """Return what precedes a command that runs on a host. The process keeps its id."""
        return ["ip", "netns", "exec", self._space(host)]

    def cut(self, network: str, host: str) -> None:
        """Pull out the cable of a host: from now on its packets on the network get lost."""
        _must("-n", self._space("hub"), "link", "set", self._port(network, host), "nomaster")

    def mend(self, network: str, host: str) -> None:
        """Put the cable back in."""
        port = self._port(network, host)
        _must("-n", self._space("hub"), "link", "set", port, "master", network)

    def make(self) -> None:
        """Make hosts and networks."""
        hub = self._space("hub")
        for name in ("hub", *self._hosts):
            _must("netns", "add", self._space(name))
            _must("-n", self._space(name), "link", "set", "lo", "up")
        for network, hosts in self._networks.items():
            _must("-n", hub, "link", "add", network, "type", "bridge")
            _must("-n", hub, "link", "set", network, "up")
            for host in hosts:
                space, port = self._space(host), self._port(network, host)
                peer = ("peer", "name", network, "netns", space)
                mac = ("address", self._mac(network, host))
                _must("-n", hub, "link", "add", port, "type", "veth", *peer, *mac)
                _must("-n", hub, "link", "set", port, "master", network, "up")
                own = f"{self.address(network, host)}/24"
                _must("-n", space, "addr", "add", own, "dev", network)
                _must("-n", space, "link", "set", network, "up")
                for other in hosts:
                    # Otherwise a host would notice within seconds that nobody answers.
                    to = (self.address(network, other), "lladdr", self._mac(network, other))
                    if other != host:
                        how = ("nud", "permanent", "dev", network)
                        _must("-n", space, "neigh", "replace", *to, *how)

    def remove(self) -> None:
        """Remove hosts and networks. Their processes must have ended."""
        for name in ("hub", *self._hosts):
            _ip("netns", "del", self._space(name))

    def _space(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _port(self, network: str, host: str) -> str:
        return f"{network[:8]}-{self._networks[network].index(host)}"

    def _mac(self, network: str, host: str) -> str:
        return f"02:00:00:00:{self._index(network):02x}:{self._networks[network].index(host):02x}"

    def _index(self, network: str) -> int:
        return list(self._networks).index(network) + 1


@contextmanager
def started(networks: Mapping[str, Collection[str]]) -> Iterator[Lan]:
    """Make hosts on networks, and remove them at the end of the block."""
    lan = Lan(networks)
    try:
        lan.make()
        yield lan
    finally:
        lan.remove()


def _ip(*arguments: str) -> str | None:
    """Return what `ip` complains about; None if it succeeds."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    return (done.stderr.strip() or "no reason given") if done.returncode else None


def _must(*arguments: str) -> None:
    said = _ip(*arguments)
    assert said is None, f"ip {' '.join(arguments)}: {said}"
