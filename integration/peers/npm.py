"""Programs from npm's registry, by npm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from integration.peers.maven import FetchError


def is_installed(package: str, version: str, target: Path) -> bool:
    """Return whether `target` has the package of this version."""
    done = target / ".installed"
    return done.is_file() and done.read_text() == f"{package}@{version}\n"


def install(package: str, version: str, target: Path) -> None:
    """Install a package below the folder `target`, unless it is there.

    Raises: FetchError: no npm or no node, or npm's registry is out of reach.
    """
    if is_installed(package, version, target):
        return
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise FetchError(
            "it needs npm and node, which fetch and run the server; on Debian: apt-get install npm"
        )
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    log = target.with_name(f"{target.name}.log")
    with log.open("wb") as said:
        done = subprocess.run(
            [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                target,
                f"{package}@{version}",
            ],
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise FetchError(
            f"npm cannot install {package}, perhaps because its registry is out of reach; {log}"
            " says more"
        )
    (target / ".installed").write_text(f"{package}@{version}\n")
