"""Where Delta Lake's jars are. `pom.xml` has the version."""

from __future__ import annotations

from pathlib import Path

from integration.jvm import REPO
from integration.peers import maven

_POM = Path(__file__).with_name("pom.xml")
_ROOT = REPO / "build" / "peers" / "delta" / "jars"
# Spark brings the rest.
_NEEDED = ("delta-*.jar", "unitycatalog-*.jar")


def fetch() -> None:
    """Fetch the jars, unless they are there.

    Raises: FetchError: no mvn, or Maven Central is out of reach.
    """
    maven.fetch(_POM, "delta", _ROOT)


def fetched() -> bool:
    """Return whether the jars are there."""
    return maven.is_fetched(_POM, "delta", _ROOT)


def versions() -> dict[str, str]:
    """Return Delta Lake's version, as the pom names it."""
    return {"Delta Lake": maven.version(_POM, "delta.version")}


def jars() -> list[Path]:
    """Return the jars for the class path of a driver."""
    return sorted(jar for pattern in _NEEDED for jar in _ROOT.glob(pattern))
