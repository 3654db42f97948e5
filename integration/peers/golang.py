"""Programs from Go's module proxy, by go."""

from __future__ import annotations

import os
from pathlib import Path

from integration.peers.fetching import emptied, has, keep, need, run


def is_built(module: str, version: str, target: Path) -> bool:
    """Return whether `target` has the program of this version."""
    return has(target, f"{module}@{version}")


def build(module: str, version: str, target: Path, *, package: str = "") -> None:
    """Build a program into the folder `target`, unless it is there.

    `go install` asks for all versions of a module first. The proxy refuses that for some, so a
    module of the folder's own names the version.

    Args:
        package: the program's folder in the module.
    Raises: FetchError: no go, or the program cannot be fetched or built.
    """
    if is_built(module, version, target):
        return
    need("go", "golang", "builds the server")
    own = emptied(target.with_name(f"{target.name}.module"))
    (own / "go.mod").write_text(f"module fetched\n\ngo 1.21\n\nrequire {module} {version}\n")
    wanted = f"{module}/{package}".rstrip("/")
    run(
        ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", f"{emptied(target)}{os.sep}", wanted],
        target.with_name(f"{target.name}.log"),
        f"go cannot build {wanted}, perhaps because its module proxy is out of reach",
        env={**os.environ, "GOFLAGS": "-mod=mod"},
        cwd=own,
    )
    keep(target, f"{module}@{version}")
