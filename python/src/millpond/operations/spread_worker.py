"""A worker process. `millpond.operations.spread` starts it.

It first reads a function and what all jobs share. Then it reads one job after the other, and writes
an answer for each.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import sys
import threading
from typing import Any, BinaryIO

from millpond.errors import ErrorKind, InternalError
from millpond.storage.given import reached_by


def main() -> int:
    """Answer until stdin ends."""
    # Millions of small rows come and go, none in a cycle. Looking for cycles took a third of the
    # time.
    gc.set_threshold(1_000_000)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print: that is no answer
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, requests), daemon=True).start()
    work, shared, told = requests.get()
    with reached_by(told):
        while True:
            answer = _answer(work, shared, requests.get())
            answers.write(answer)
            answers.flush()


def _receive(stdin: BinaryIO, requests: queue.SimpleQueue[Any]) -> None:
    """Pass on what comes. When the starting process is gone, end this one, even within a job."""
    try:
        while True:
            requests.put(pickle.load(stdin))
    except EOFError:
        os._exit(0)
    except BaseException as e:
        sys.stderr.write(f"millpond: a worker cannot read its job: {type(e).__name__}: {e}\n")
        os._exit(1)


def _answer(work: Any, shared: Any, job: Any) -> bytes:
    try:
        return pickle.dumps((True, work(shared, job)), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as e:
        try:
            answer = pickle.dumps((False, e))
            pickle.loads(answer)  # some exceptions can be pickled, and not unpickled
            return answer
        except Exception:
            return pickle.dumps(
                (False, InternalError(f"{type(e).__name__}: {e}", kind=ErrorKind.INTERNAL))
            )


if __name__ == "__main__":
    sys.exit(main())
