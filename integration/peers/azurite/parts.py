"""Where the emulator and the jars of ABFS are. `pom.xml` has the version of ABFS."""

from __future__ import annotations

from pathlib import Path

from integration.jvm import REPO
from integration.peers import maven, npm

_POM = Path(__file__).with_name("pom.xml")
_ROOT = REPO / "build" / "peers" / "azurite"
_ABFS = _ROOT / "abfs"
_NPM = _ROOT / "npm"
# The last version for a node older than 21, such as Debian's.
_VERSION = "3.35.0"
SERVER = _NPM / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def fetch() -> None:
    """Install the emulator, and fetch the jars, unless they are there.

    Raises: FetchError: no npm or no mvn, or a registry is out of reach.
    """
    maven.fetch(_POM, "abfs", _ABFS)
    npm.install("azurite", _VERSION, _NPM)


def fetched() -> bool:
    """Return whether the emulator and the jars are there."""
    return maven.is_fetched(_POM, "abfs", _ABFS) and npm.is_installed("azurite", _VERSION, _NPM)


def versions() -> dict[str, str]:
    """Return the versions of the emulator and of ABFS."""
    return {"Azurite": _VERSION, "hadoop-azure": maven.version(_POM, "hadoop.version")}


def abfs() -> list[Path]:
    """Return the jars that Spark needs for `abfs:`."""
    return sorted(_ABFS.glob("*.jar"))
