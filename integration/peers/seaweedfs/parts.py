"""Where the server is."""

from __future__ import annotations

from integration.jvm import REPO
from integration.peers import golang

_MODULE = "github.com/seaweedfs/seaweedfs"
# Go's module proxy refuses the list of versions, and newer ones. It has this commit, of 3.39.
_VERSION = "v0.0.0-20230109022022-51d4a4b28d0e"
SERVER = REPO / "build" / "peers" / "seaweedfs" / "bin" / "weed"


def fetch() -> None:
    """Build the server, unless it is there.

    Raises: FetchError: no go, or the module proxy is out of reach.
    """
    golang.build(_MODULE, _VERSION, SERVER.parent, package="weed")


def fetched() -> bool:
    """Return whether the server is there."""
    return golang.is_built(_MODULE, _VERSION, SERVER.parent)


def versions() -> dict[str, str]:
    """Return the version of the server."""
    date = _VERSION.split("-")[1]
    return {"SeaweedFS": f"3.39 of {date[:4]}-{date[4:6]}-{date[6:8]}"}
