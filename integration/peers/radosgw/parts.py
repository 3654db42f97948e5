"""Where the programs of Ceph are: Debian's packages, unpacked in a folder."""

from __future__ import annotations

from integration.jvm import REPO
from integration.peers import debian
from integration.peers.fetching import has

ROOT = REPO / "build" / "peers" / "radosgw"
_PACKAGES = "radosgw ceph-osd ceph-mon"


def fetch() -> None:
    """Fetch the packages and unpack them, unless they are there. Raises: FetchError."""
    debian.fetch(_PACKAGES, ROOT)


def fetched() -> bool:
    """Return whether the programs are there, with the packages that they come from."""
    return has(ROOT, _PACKAGES)


def versions() -> dict[str, str]:
    """Return the version of the gateway."""
    return {"Ceph": debian.version("radosgw", ROOT)}
