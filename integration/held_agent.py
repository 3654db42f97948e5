"""The agent, with one addition: a test can hold it in the middle of a commit or of a snapshot.

The script of `Gate.interpreter` runs it, in place of `python -m millpond.agent`. It holds a commit
after the shim wrote the whole changelog, and before the changelog gets its final name. It holds a
snapshot after the SSTs are on storage, and before the manifest is.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from millpond.agent import __main__ as agent
from millpond.agent import changelogs, service
from millpond.errors import MillpondError
from millpond.store.snapshot import publishing, upload

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


def wait(gate: Path, name: str, version: Any) -> bool:
    """Wait for the test, if it holds what has this name. Return whether it did."""
    if not caught(gate, name, version.version, version.id):
        return False
    deadline = time.monotonic() + HOLD_S
    while not (gate / f"{name}.release").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the test did not release {name}")
        time.sleep(0.02)
    return True


@contextmanager
def told(gate: Path, name: str) -> Iterator[None]:
    """Tell the test how the block ended: `published`, or the error's kind."""
    outcome = "failed"
    try:
        yield
        outcome = "published"
    except MillpondError as error:
        outcome = error.kind.value
        raise
    finally:
        hidden = gate / f".{name}.ended"
        hidden.write_text(outcome)
        hidden.rename(gate / f"{name}.ended")


def name_of(context: Any) -> str:
    """Return how a test names a store."""
    store = context.store
    return f"{Path(context.checkpoint.uri).name}-{store.operator}-{store.partition}-{store.name}"


def main(gate: Path) -> int:
    publish = changelogs.publish_changelog
    publish_manifest = publishing.publish_manifest
    publish_snapshot = service.AgentService._publish_snapshot
    snapshot = threading.local()

    def held(context: Any, version: Any, staged: str, local_dir: str, begun: Any = None) -> str:
        name = name_of(context)
        with told(gate, name) if wait(gate, name, version) else nullcontext():
            return publish(context, version, staged, local_dir, begun)

    def named(self: Any, request: dict[str, Any]) -> dict[str, Any]:
        snapshot.name = f"{name_of(self._context(request))}-snapshot"
        return publish_snapshot(self, request)

    def held_manifest(files: Any, manifest: Any, distrusted: Any = ()) -> Any:
        wait(gate, snapshot.name, manifest)
        return publish_manifest(files, manifest, distrusted)

    changelogs.publish_changelog = held
    upload.publish_manifest = held_manifest  # type: ignore[attr-defined]
    service.AgentService._publish_snapshot = named  # type: ignore[method-assign]
    return agent.main()


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)
