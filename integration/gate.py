"""Holds commits and snapshots in a test's agents. `held_agent.py` is the agent's side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from integration.jvm import REPO
from integration.processes import wait_until

WAIT_S = 120


class Gate:
    """Holds a commit or a snapshot in the agent. It is complete then, and not yet published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.interpreter = folder / "python"
        self.interpreter.write_text(
            f'#!/bin/sh\nPYTHONPATH="{REPO}:$PYTHONPATH" exec "{sys.executable}" -m'
            f' integration.held_agent "{folder}" "$@"\n'
        )
        self.interpreter.chmod(0o755)

    def hold(
        self, query: str, partition: int, store: str = "default", *, snapshot: bool = False
    ) -> Held:
        """Hold the next commit of a store, or its next snapshot, in any executor."""
        name = f"{query}-0-{partition}-{store}" + ("-snapshot" if snapshot else "")
        (self.folder / f"{name}.release").unlink(missing_ok=True)
        (self.folder / f"{name}.caught").unlink(missing_ok=True)
        (self.folder / f"{name}.ended").unlink(missing_ok=True)
        (self.folder / f"{name}.hold").touch()
        return Held(self.folder / name)


class Held:
    """A commit or snapshot that the gate holds, or will hold."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wait(self) -> dict[str, Any]:
        """Wait until the gate holds it.

        Return the pids `agent` and `jvm`, and its `version` and `id`.
        """
        caught = Path(f"{self._path}.caught")
        wait_until(caught.exists, seconds=WAIT_S, what=f"the gate to hold {self._path.name}")
        return dict(json.loads(caught.read_text()))

    def release(self) -> None:
        """Let it go on."""
        Path(f"{self._path}.release").touch()

    def outcome(self) -> str:
        """Wait until the commit has ended. Return `published`, or the kind of its error."""
        ended = Path(f"{self._path}.ended")
        wait_until(ended.exists, seconds=WAIT_S, what=f"the end of {self._path.name}")
        return ended.read_text()
