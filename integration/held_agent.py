"""The agent, with one addition: a test can hold it in the middle of a commit.

The script of `Gate.interpreter` runs it, in place of `python -m millpond.agent`. It holds a commit
after the shim wrote the whole changelog, and before the changelog gets its final name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from millpond.agent import __main__ as agent
from millpond.agent import changelogs

HOLD_S = 150


def caught(gate: Path, name: str, version: int, id_: str) -> bool:
    """Return whether the test waits for this commit. True for one commit only."""
    try:
        os.rename(gate / f"{name}.hold", gate / f"{name}.taken")
    except FileNotFoundError:
        return False
    hidden = gate / f".{name}.caught"
    hidden.write_text(
        json.dumps({"agent": os.getpid(), "jvm": os.getppid(), "version": version, "id": id_})
    )
    hidden.rename(gate / f"{name}.caught")
    return True


def main(gate: Path) -> int:
    publish = changelogs.publish_changelog

    def held(context: Any, version: Any, staged: str, local_dir: str) -> dict[str, object]:
        store = context.store
        name = (
            f"{Path(context.checkpoint.uri).name}-{store.operator}-{store.partition}-{store.name}"
        )
        if caught(gate, name, version.version, version.id):
            deadline = time.monotonic() + HOLD_S
            while not (gate / f"{name}.release").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the test did not release {name}")
                time.sleep(0.02)
        return publish(context, version, staged, local_dir)

    changelogs.publish_changelog = held
    return agent.main()


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)
