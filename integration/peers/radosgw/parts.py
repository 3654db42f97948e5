"""Where the programs of Ceph are: Debian's packages, unpacked in a folder."""

from __future__ import annotations

from integration.jvm import REPO
from integration.peers.fetching import emptied, has, keep, need, run

ROOT = REPO / "build" / "peers" / "radosgw"
_KEY = "radosgw ceph-osd ceph-mon"


def fetch() -> None:
    """Fetch the packages and unpack them, unless they are there. It needs no root.

    Raises: FetchError: no apt-get or no dpkg, or Debian's packages are out of reach.
    """
    if fetched():
        return
    need("apt-get", "apt", "fetches Ceph's packages, on Debian and Ubuntu alone")
    need("dpkg", "dpkg", "unpacks Ceph's packages")
    emptied(ROOT)
    (ROOT / "debs" / "partial").mkdir(parents=True)
    download = ["apt-get", "install", "-y", "--no-install-recommends", "--download-only"]
    places = ["-o", f"Dir::Cache::archives={ROOT / 'debs'}", "-o", "Debug::NoLocking=1"]
    log = ROOT / "fetch.log"
    run(
        [*download, *places, *_KEY.split()],
        log,
        "it needs Debian's packages of Ceph, which are out of reach, or apt-get update did not run",
    )
    for package in sorted((ROOT / "debs").glob("*.deb")):
        run(["dpkg", "-x", package, ROOT / "root"], log, f"dpkg cannot unpack {package.name}")
    keep(ROOT, _KEY)


def fetched() -> bool:
    """Return whether the programs are there, with the packages that they come from."""
    return has(ROOT, _KEY)


def versions() -> dict[str, str]:
    """Return the version of the gateway."""
    (package,) = (ROOT / "debs").glob("radosgw_*.deb")
    return {"Ceph": package.name.split("_")[1].partition("+")[0].partition("-")[0]}
