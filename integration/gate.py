"""Holds commits in a test's agents. `held_agent.py` is the agent's side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from integration.jvm import REPO
from integration.processes import wait_until

WAIT_S = 120


class Gate:
    """Holds a commit in the agent. The changelog is complete then, and not yet published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.interpreter = folder / "python"
        self.interpreter.write_text(
            f'#!/bin/sh\nPYTHONPATH="{REPO}:$PYTHONPATH" exec "{sys.executable}" -m'
            f' integration.held_agent "{folder}" "$@"\n'
        )
        self.interpreter.chmod(0o755)

    def hold(self, query: str, partition: int, store: str = "default") -> Held:
        """Hold the next commit of a store, in any executor."""
        name = f"{query}-0-{partition}-{store}"
        (self.folder / f"{name}.release").unlink(missing_ok=True)
        (self.folder / f"{name}.caught").unlink(missing_ok=True)
        (self.folder / f"{name}.hold").touch()
        return Held(self.folder / name)


class Held:
    """A commit that the gate holds, or will hold."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wait(self) -> dict[str, Any]:
        """Wait until the gate holds the commit.

        Return the pids `agent` and `jvm`, and the commit's `version` and `id`.
        """
        caught = Path(f"{self._path}.caught")
        wait_until(caught.exists, seconds=WAIT_S, what=f"the commit {self._path.name}")
        return dict(json.loads(caught.read_text()))

    def release(self) -> None:
        """Let the commit go on."""
        Path(f"{self._path}.release").touch()
