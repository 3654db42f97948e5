"""A process that writes the rows of some old partitions anew: one line of JSON in, one out. Started by `rescaling.rehash`."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from millpond.errors import ErrorKind, InternalError, MillpondError
from millpond.rescaling.rehash import Rehash, error_json, parts_json, write_parts
from millpond.savepoint.from_checkpoint import checkpoint_image
from millpond.savepoint.rewrite import plan_layout
from millpond.storage import LocalStorage


def main() -> int:
    """Answer the one request on stdin. Return 0; what went wrong is in the answer."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = _write(request)
    except MillpondError as e:
        answer = error_json(e)
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
        answer = error_json(InternalError(f"writing rows anew: {text}", kind=ErrorKind.INTERNAL))
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def _write(request: dict[str, Any]) -> dict[str, Any]:
    storage = LocalStorage(request["root"])
    image = checkpoint_image(storage, request["root"], request["batch"])
    plan = Rehash(
        image=image,
        layout=plan_layout(image, request["partitions"], request["max_parallelism"]),
        processes=1,
        state_bytes=0,
    )
    work = [(operator, partition) for operator, partition in request["work"]]
    return parts_json(write_parts(storage, plan, work, request["directory"]))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
