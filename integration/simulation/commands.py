"""The commands that people run beside the query: each in a thread of its own, one operation at a
time.

A command stands still before each operation of the storage, until the simulation lets it go on. It
may be killed there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any
from unittest import mock

from integration.simulation.agents import AgentDeath
from millpond import storage as storages
from millpond.errors import MillpondError
from millpond.format import layout
from millpond.storage import LocalStorage, ObjectInfo, Storage
from millpond.storage.base import Copied

_UNIQUE = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# They import `LocalStorage`, when somebody first calls them. That must be before `opening` replaces
# it.
for _name in (
    "api",
    "operations.erase.run",
    "operations.migrate.migrate",
    "operations.rescale.rehash",
    "operations.savepoint.bootstrap",
    "operations.savepoint.manage",
    "operations.savepoint.restore",
    "operations.spread",
    "spark.sinks.keeping",
    "state.glancing",
    "state.key_history",
    "state.tables",
    "state.touches",
):
    import_module(f"millpond.{_name}")


class Command:
    """A command that a user runs.

    Args:
        name: for the log.
        places: root -> storage of the places that it stands still at.
        work: calls Millpond's API.
        mortal: it may be killed.
    """

    _current = threading.local()

    def __init__(
        self,
        name: str,
        places: Mapping[str, Storage],
        work: Callable[[], Any],
        *,
        mortal: bool = False,
    ) -> None:
        self.name, self.mortal = name, mortal
        # Checks what became of it; called once it has ended.
        self.judge: Callable[[], None] = lambda: None
        self.result: Any = None
        self.error: MillpondError | None = None
        self.failure: BaseException | None = None  # neither Millpond's error nor the kill
        self.done = self.killed = False
        self.at = ""  # the operation before which it stands
        self._places, self._do = places, work
        self._left = 0
        self._dying = False
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def go(self, operations: int) -> None:
        """Let it go on for so many operations, or to its end."""
        if not self.done:
            self._left = operations
            self._hand_over()

    def kill(self) -> None:
        """Kill its process. From now on no operation succeeds."""
        if not self.done:
            self._dying = True
            self._hand_over()

    def _hand_over(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        if self.done:
            self._thread.join()

    def _work(self) -> None:
        Command._current.command = self
        try:
            self._stand("its start")
            self.result = self._do()
        except AgentDeath:
            self.killed = True
        except MillpondError as error:
            self.error = error
        except BaseException as error:
            self.failure = error
        finally:
            self.done = True
            self._back.release()

    def stand(self, operation: str, key: str) -> None:
        """Stand still before an operation, unless there are some to go.

        Operations on heartbeats do not count: the clock of this machine decides how many there are.
        """
        if threading.current_thread() is not self._thread:
            return  # one that renews a heartbeat, or that fetches in parallel
        if key.startswith(layout.RUNNING_PREFIX):
            if self._dying:
                raise AgentDeath
        else:
            self._stand(f"{operation} {_UNIQUE.sub('ID', key)}")

    def _stand(self, at: str) -> None:
        self.at = at
        while self._left == 0 and not self._dying:
            self._back.release()
            self._turn.acquire()
        if self._dying:
            raise AgentDeath
        self._left -= 1

    @staticmethod
    def storage_of(root: str, *, fsync: bool = True) -> Storage:
        """Return the storage at a local path, for whoever opens it."""
        command: Command | None = getattr(Command._current, "command", None)
        if command is None:
            return LocalStorage(root, fsync=fsync)
        known = command._places.get(root)
        return _Standing(known, command) if known is not None else LocalStorage(root, fsync=False)


def opening() -> AbstractContextManager[Any]:
    """Let commands open the storages of the simulation by the paths of Spark checkpoints."""
    return mock.patch.object(storages, "LocalStorage", Command.storage_of)


class _Standing:
    """Passes operations on, each once its command may go on."""

    def __init__(self, inner: Storage, command: Command) -> None:
        self._inner, self._command = inner, command

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        self._command.stand("put", key)
        self._inner.put_file(key, local_path, if_absent=if_absent, link=link)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self._command.stand("put", key)
        self._inner.put_bytes(key, data, if_absent=if_absent)

    def read(self, key: str) -> bytes:
        self._command.stand("read", key)
        return self._inner.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._command.stand("read", key)
        return self._inner.read_range(key, start, length)

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int | None:
        self._command.stand("get", key)
        return self._inner.get_to_file(key, local_path, link=link)

    def stat(self, key: str) -> ObjectInfo:
        self._command.stand("stat", key)
        return self._inner.stat(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._command.stand("list", prefix)
        return iter([*self._inner.list(prefix)])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._command.stand("delete", key)
            self._inner.delete([key])

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        self._command.stand("copy", key)
        return self._inner.copy_from(source, source_key, key)

    def local_path(self, key: str) -> str | None:
        path = self._inner.local_path(key)
        if path is not None:
            self._command.stand("open", key)  # whoever asks for the path opens the file next
        return path
