"""Programs from Go's module proxy, by go."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from integration.peers.maven import FetchError


def is_built(package: str, version: str, target: Path) -> bool:
    """Return whether `target` has the program of this version."""
    done = target / ".built"
    return done.is_file() and done.read_text() == f"{package}@{version}\n"


def build(package: str, version: str, target: Path) -> None:
    """Build a program into the folder `target`, unless it is there.

    Raises: FetchError: no go, or the program cannot be fetched or built.
    """
    if is_built(package, version, target):
        return
    if shutil.which("go") is None:
        raise FetchError("it needs go, which builds the server; on Debian: apt-get install golang")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    log = target.with_name(f"{target.name}.log")
    with log.open("wb") as said:
        done = subprocess.run(
            ["go", "install", "-trimpath", "-ldflags=-s -w", f"{package}@{version}"],
            env={**os.environ, "GOBIN": str(target), "GOFLAGS": "-mod=mod"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise FetchError(
            f"go cannot build {package}, perhaps because its module proxy is out of reach; {log}"
            " says more"
        )
    (target / ".built").write_text(f"{package}@{version}\n")
