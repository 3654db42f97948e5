"""Prometheus and promtool: those of the machine, else of Debian's package, unpacked in build/."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from integration.jvm import REPO
from integration.peers.fetching import FetchError, emptied, need, run
from integration.peers.loopback import Server

_TARGET = REPO / "build" / "peers" / "prometheus"
_NAMES = ("prometheus", "promtool")


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Raises: FetchError: it is not there."""
    unpacked = _TARGET / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    if found is None:
        raise FetchError(f"there is no {name}; run make peer-prometheus")
    return found


def fetch() -> None:
    """Unpack Debian's package, unless both programs are there. Raises: FetchError."""
    try:
        for name in _NAMES:
            program(name)
        return
    except FetchError:
        pass
    need("apt-get", "apt", "fetches the package")
    need("dpkg-deb", "dpkg", "unpacks the package")
    emptied(_TARGET)
    failed = "apt-get cannot download Debian's package prometheus"
    run(["apt-get", "download", "prometheus"], _TARGET / "log", failed, cwd=_TARGET)
    (package,) = _TARGET.glob("prometheus_*.deb")
    run(["dpkg-deb", "-x", package, _TARGET], _TARGET / "log", "dpkg-deb cannot unpack it")


def version() -> str:
    """Return Prometheus' version."""
    said = subprocess.run(
        [program("prometheus"), "--version"], check=True, capture_output=True, text=True
    )
    found = re.search(r"version (\d+\.\d+\.\d+)", said.stdout + said.stderr)
    assert found is not None, said
    return found[1]


class Prometheus(Server):
    """Prometheus on a free port of loopback.

    Args:
        config: its configuration.
        work: a folder for its data and its log.
    """

    def __init__(self, config: Path, work: Path) -> None:
        work.mkdir(parents=True)
        options = [f"--config.file={config}", f"--storage.tsdb.path={work / 'data'}"]
        super().__init__([program("prometheus"), *options], work / "prometheus.log")

    def arguments(self) -> list[str]:
        return [f"--web.listen-address=127.0.0.1:{self.port}"]

    def _get(self, path: str, **arguments: str) -> Any:
        url = f"{self.endpoint}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def ready(self) -> bool:
        """Return whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that a PromQL expression gives now."""
        result = self._get("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of the alerts that fire, by the alert's name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found
