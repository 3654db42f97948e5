"""Programs of Debian's packages, unpacked in a folder of `build/`. It needs no root."""

from __future__ import annotations

import os
from pathlib import Path

from integration.peers.fetching import emptied, has, keep, need, run


def fetch(packages: str, target: Path) -> None:
    """Fetch packages with what they need that the machine lacks, and unpack them in `target/root`,
    unless they are there.

    Args:
        packages: names with spaces in between.
    Raises: FetchError: no apt-get or no dpkg, or Debian's packages are out of reach.
    """
    if has(target, packages):
        return
    need("apt-get", "apt", "fetches packages, on Debian and Ubuntu alone")
    need("dpkg", "dpkg", "unpacks packages")
    emptied(target)
    debs, log = target / "debs", target / "fetch.log"
    (debs / "partial").mkdir(parents=True)
    download = ["apt-get", "install", "-y", "--no-install-recommends", "--download-only"]
    places = ["-o", f"Dir::Cache::archives={debs}", "-o", "Debug::NoLocking=1"]
    run(
        [*download, *places, *packages.split()],
        log,
        f"it needs Debian's packages {packages}, which are out of reach, or apt-get update did not"
        " run",
    )
    for package in sorted(debs.glob("*.deb")):
        run(["dpkg", "-x", package, target / "root"], log, f"dpkg cannot unpack {package.name}")
    keep(target, packages)


def libraries(target: Path) -> dict[str, str]:
    """Return the variables by which programs in `target/root` find their libraries."""
    found = (target / "root" / "usr" / "lib").glob("*-linux-gnu")
    folders = [str(folder) for base in found for folder in (base, base / "pulseaudio")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders)}


def version(package: str, target: Path) -> str:
    """Return the version of a package that was fetched, without Debian's part of it."""
    (deb,) = (target / "debs").glob(f"{package}_*.deb")
    return deb.name.split("_")[1].partition("+")[0].partition("-")[0]
