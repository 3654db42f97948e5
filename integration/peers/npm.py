"""Programs from npm's registry, by npm."""

from __future__ import annotations

from pathlib import Path

from integration.peers.fetching import emptied, has, keep, need, run


def is_installed(package: str, version: str, target: Path) -> bool:
    """Return whether `target` has the package of this version."""
    return has(target, f"{package}@{version}")


def install(package: str, version: str, target: Path) -> None:
    """Install a package below the folder `target`, unless it is there.

    Raises: FetchError: no npm or no node, or npm's registry is out of reach.
    """
    if is_installed(package, version, target):
        return
    for tool in ("npm", "node"):
        need(tool, "npm", "fetches and runs the server")
    wanted = f"{package}@{version}"
    run(
        ["npm", "install", "--no-audit", "--no-fund", "--prefix", emptied(target), wanted],
        target.with_name(f"{target.name}.log"),
        f"npm cannot install {package}, perhaps because its registry is out of reach",
    )
    keep(target, wanted)
