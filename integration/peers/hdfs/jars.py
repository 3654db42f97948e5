"""Where the jars of Hadoop's servers are. `pom.xml` has their version."""

from __future__ import annotations

from pathlib import Path

from integration.jvm import REPO
from integration.peers import maven

_POM = Path(__file__).with_name("pom.xml")
_ROOT = REPO / "build" / "peers" / "hdfs"
HDFS = _ROOT / "hdfs"
YARN = _ROOT / "yarn"
"""HDFS's jars too."""


def fetch(target: Path) -> None:
    """Fetch `HDFS` or `YARN`, unless they are there.

    Raises: FetchError: no mvn, or Maven Central is out of reach.
    """
    maven.fetch(_POM, target.name, target)


def fetched(target: Path) -> bool:
    """Return whether `HDFS` or `YARN` are there."""
    return maven.is_fetched(_POM, target.name, target)


def version() -> str:
    """Return Hadoop's version, as the pom names it."""
    return maven.version(_POM, "hadoop.version")
