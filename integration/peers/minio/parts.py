"""Where the server and the jars of Hadoop's s3a are. `pom.xml` has the version of s3a."""

from __future__ import annotations

from pathlib import Path

from integration.jvm import REPO
from integration.peers import golang, maven

_POM = Path(__file__).with_name("pom.xml")
_ROOT = REPO / "build" / "peers" / "minio"
_S3A = _ROOT / "s3a"
_PROGRAM = "github.com/minio/minio"
# MinIO's releases have no version that Go knows. This is a commit, by its time.
_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
SERVER = _ROOT / "bin" / "minio"


def fetch() -> None:
    """Build the server, and fetch the jars, unless they are there.

    Raises: FetchError: no go or no mvn, or a registry is out of reach.
    """
    maven.fetch(_POM, "s3a", _S3A)
    golang.build(_PROGRAM, _VERSION, SERVER.parent)


def fetched() -> bool:
    """Return whether the server and the jars are there."""
    return maven.is_fetched(_POM, "s3a", _S3A) and golang.is_built(
        _PROGRAM, _VERSION, SERVER.parent
    )


def versions() -> dict[str, str]:
    """Return the versions of the server and of s3a."""
    date = _VERSION.split("-")[1]
    return {
        "MinIO": f"{date[:4]}-{date[4:6]}-{date[6:8]}",
        "hadoop-aws": maven.version(_POM, "hadoop.version"),
    }


def s3a() -> list[Path]:
    """Return the jars that Spark needs for `s3a:`."""
    return sorted(_S3A.glob("*.jar"))
