"""How the programs of peers are fetched: by a tool of their registry, into a folder of `build/`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class FetchError(Exception):
    """A program is not there, and cannot be fetched. The message is one line."""


def need(tool: str, package: str, what: str) -> None:
    """Check that a tool is there.

    Args:
        package: Debian's, which has it.
        what: what the tool does, as in `builds the server`.
    Raises: FetchError: it is not there.
    """
    if shutil.which(tool) is None:
        raise FetchError(f"it needs {tool}, which {what}; on Debian: apt-get install {package}")


def has(target: Path, key: str) -> bool:
    """Return whether `target` has what `key` names. `keep` wrote so."""
    done = target / ".fetched"
    return done.is_file() and done.read_text() == f"{key}\n"


def keep(target: Path, key: str) -> None:
    """Note that `target` has all that `key` names."""
    (target / ".fetched").write_text(f"{key}\n")


def emptied(target: Path) -> Path:
    """Return the folder `target`, new and empty."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    return target


def run(
    command: Sequence[str | Path],
    log: Path,
    failed: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a tool, in the folder `cwd` if it is given. It writes what it says to the file `log`.

    Args:
        failed: what the error says if the tool fails.
    Raises: FetchError: it failed.
    """
    with log.open("wb") as said:
        done = subprocess.run(
            list(command),
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise FetchError(f"{failed}; {log} says more")
