"""Writers that create the same files at once: threads, here or in a process of their own.

`python -m integration.peers.racer ROOT WRITERS FIRST` is such a process. It prints `[]` when it
reaches the storage. For each key that it reads it prints the numbers of the writers who were told
that they created the file. Its Millpond reaches Hadoop's file systems through a JVM of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from integration.jvm import REPO
from integration.peers.loopback import without_obstore
from millpond.errors import ConflictError
from millpond.storage import Storage, open_checkpoint


class Racer:
    """Some of the writers.

    Args:
        opens: opens `root`, for writers in this process.
        root: where the files are.
        writers: how many they are, numbered from `first` on.
        env: the variables of a process of their own; None: they are threads of this one.
    """

    def __init__(
        self,
        opens: Callable[[str], Storage],
        root: str,
        writers: int,
        first: int,
        env: Mapping[str, str] | None,
    ) -> None:
        self._storage, self._writers, self._first = opens(root), writers, first
        self._process: subprocess.Popen[str] | None = None
        self._threads = ThreadPoolExecutor(1)
        self._said: Future[list[int]] | None = None
        if env is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.peers.racer", root, str(writers), str(first)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=dict(env),
                cwd=REPO,
            )

    def __enter__(self) -> Self:
        if self._process is not None:
            assert self._answer() == []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._threads.shutdown()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            code = self._process.wait(60)
            assert error is not None or code == 0, code

    def go(self, key: str) -> None:
        """Let the writers create a file."""
        if self._process is None:
            self._said = self._threads.submit(
                create, self._storage, key, self._writers, self._first
            )
            return
        assert self._process.stdin is not None
        self._process.stdin.write(key + "\n")
        self._process.stdin.flush()

    def winners(self) -> list[int]:
        """Return the numbers of the writers who were told that they created it."""
        return self._answer() if self._said is None else self._said.result()

    def _answer(self) -> list[int]:
        assert self._process is not None and self._process.stdout is not None
        found: list[int] = json.loads(self._process.stdout.readline())
        return found


def create(storage: Storage, key: str, writers: int, first: int) -> list[int]:
    """Let threads create a file at once. Return the numbers of those who were told that they did.

    Raises: MillpondError: a writer failed in another way.
    """
    barrier = threading.Barrier(writers)

    def write(number: int) -> bool:
        barrier.wait()
        try:
            storage.put_bytes(key, b"%d" % number, if_absent=True)
        except ConflictError:
            return False
        return True

    numbers = range(first, first + writers)
    with ThreadPoolExecutor(writers) as threads:
        return [
            number for number, won in zip(numbers, threads.map(write, numbers), strict=True) if won
        ]


def main(root: str, writers: str, first: str) -> None:
    """Answer each key that comes by standard input."""
    storage = open_checkpoint(root)
    assert list(storage.list("once/")) == []
    print("[]", flush=True)
    for line in sys.stdin:
        print(json.dumps(create(storage, line.strip(), int(writers), int(first))), flush=True)


if __name__ == "__main__":
    without_obstore()
    main(*sys.argv[1:])
