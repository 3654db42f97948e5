"""Programs from Go's module proxy, by go."""

from __future__ import annotations

import os
from pathlib import Path

from integration.peers.fetching import emptied, has, keep, need, run


def is_built(package: str, version: str, target: Path) -> bool:
    """Return whether `target` has the program of this version."""
    return has(target, f"{package}@{version}")


def build(package: str, version: str, target: Path) -> None:
    """Build a program into the folder `target`, unless it is there.

    Raises: FetchError: no go, or the program cannot be fetched or built.
    """
    if is_built(package, version, target):
        return
    need("go", "golang", "builds the server")
    wanted = f"{package}@{version}"
    run(
        ["go", "install", "-trimpath", "-ldflags=-s -w", wanted],
        target.with_name(f"{target.name}.log"),
        f"go cannot build {package}, perhaps because its module proxy is out of reach",
        env={**os.environ, "GOBIN": str(emptied(target)), "GOFLAGS": "-mod=mod"},
    )
    keep(target, wanted)
