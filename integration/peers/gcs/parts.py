"""Where the emulator and Google's connector are. `pom.xml` has the version of the connector."""

from __future__ import annotations

from pathlib import Path

from integration.jvm import REPO
from integration.peers import golang, maven

_POM = Path(__file__).with_name("pom.xml")
_ROOT = REPO / "build" / "peers" / "gcs"
_CONNECTOR = _ROOT / "connector"
_PROGRAM = "github.com/fsouza/fake-gcs-server"
_VERSION = "v1.56.1"
SERVER = _ROOT / "bin" / "fake-gcs-server"


def fetch() -> None:
    """Build the emulator, and fetch the connector, unless they are there.

    Raises: FetchError: no go or no mvn, or a registry is out of reach.
    """
    maven.fetch(_POM, "connector", _CONNECTOR)
    golang.build(_PROGRAM, _VERSION, SERVER.parent)


def fetched() -> bool:
    """Return whether the emulator and the connector are there."""
    return maven.is_fetched(_POM, "connector", _CONNECTOR) and golang.is_built(
        _PROGRAM, _VERSION, SERVER.parent
    )


def versions() -> dict[str, str]:
    """Return the versions of the emulator and of the connector."""
    return {
        "fake-gcs-server": _VERSION.removeprefix("v"),
        "gcs-connector": maven.version(_POM, "connector.version"),
    }


def connector() -> list[Path]:
    """Return the jar that Spark needs for `gs:`."""
    return sorted(_CONNECTOR.glob("*.jar"))
