"""A storage that fails as real ones do. It wraps any other storage; a seed or a predicate chooses
the faults.

    storage = FaultyStorage(MemoryStorage(), seeded(7, rate=0.1))
    second_put = fail_when(lambda op: op.is_put and op.nth == 2, Fault.LOST_ANSWER)
    storage = FaultyStorage(inner, second_put)

`storage.injected` lists the faults as texts for a report. Nothing sleeps.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from millpond.errors import ErrorKind, UnavailableError
from millpond.storage.base import Copied, ObjectInfo, Storage


class Fault(Enum):
    """What goes wrong.

    Each is an error that the contract of `Storage` allows, or bytes that a disk may return.
    """

    UNAVAILABLE = "unavailable"  # the storage did nothing
    LOST_ANSWER = "lost answer"  # the storage did it, but the caller is told that it failed
    DENIED = "denied"  # permission lost, token expired
    FULL = "full"  # puts only
    SHORT_BODY = "short body"  # reads only
    WRONG_BODY = "wrong body"  # reads only
    STALE_LIST = "stale list"  # lists only: objects younger than `_STALE_MS` are missing


@dataclass(frozen=True, slots=True)
class Operation:
    """One call.

    nth: how many calls of this name there were, this one included.
    """

    name: str
    key: str  # the prefix of a list; the first key of a deletion
    nth: int

    @property
    def is_put(self) -> bool:
        return self.name in ("put_file", "put_bytes")

    @property
    def is_read(self) -> bool:
        return self.name in ("read", "read_range", "get_to_file")


Chooser = Callable[[Operation], Fault | None]

_STALE_MS = 1_000

_FITTING = {
    "put_file": (Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.DENIED, Fault.FULL),
    "put_bytes": (Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.DENIED, Fault.FULL),
    "delete": (Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.DENIED),
    "read": (Fault.UNAVAILABLE, Fault.DENIED, Fault.SHORT_BODY, Fault.WRONG_BODY),
    "read_range": (Fault.UNAVAILABLE, Fault.DENIED, Fault.SHORT_BODY, Fault.WRONG_BODY),
    "get_to_file": (Fault.UNAVAILABLE, Fault.DENIED, Fault.SHORT_BODY, Fault.WRONG_BODY),
    "stat": (Fault.UNAVAILABLE, Fault.DENIED),
    "list": (Fault.UNAVAILABLE, Fault.DENIED, Fault.STALE_LIST),
}


def seeded(seed: int, *, rate: float) -> Chooser:
    """Return a chooser that makes the share `rate` of all calls fail, with faults that fit the
    call.
    """
    chance = random.Random(seed)
    lock = threading.Lock()

    def choose(operation: Operation) -> Fault | None:
        with lock:
            if chance.random() >= rate:
                return None
            return chance.choice(_FITTING[operation.name])

    return choose


def fail_when(predicate: Callable[[Operation], bool], fault: Fault) -> Chooser:
    """Return a chooser that injects `fault` into the calls that `predicate` picks."""
    return lambda operation: fault if predicate(operation) else None


class FaultyStorage:
    """Passes calls on to `inner`, with the faults that `chooser` picks. Thread-safe if the chooser
    is.

    Args:
        clock_ms: time in ms since the epoch.
    """

    def __init__(
        self,
        inner: Storage,
        chooser: Chooser,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()
        self.injected: list[str] = []
        self._chooser = chooser
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._paused = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inject no faults while the block runs: a test looks at what is there."""
        with self._lock:
            self._paused += 1
        try:
            yield
        finally:
            with self._lock:
                self._paused -= 1

    def _begin(self, name: str, key: str) -> Fault | None:
        with self._lock:
            if self._paused:
                return None
            self.counts[name] += 1
            operation = Operation(name, key, self.counts[name])
        fault = self._chooser(operation)
        if fault is not None:
            self.injected.append(f"{fault.value}: {operation}")
        if fault is Fault.UNAVAILABLE:
            raise _error(ErrorKind.STORAGE_UNAVAILABLE, operation)
        if fault is Fault.DENIED:
            raise _error(ErrorKind.STORAGE_DENIED, operation)
        if fault is Fault.FULL:
            raise _error(ErrorKind.STORAGE_FULL, operation)
        return fault

    def _end(self, fault: Fault | None, name: str, key: str) -> None:
        if fault is Fault.LOST_ANSWER:
            raise _error(ErrorKind.STORAGE_UNAVAILABLE, Operation(name, key, self.counts[name]))

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        fault = self._begin("put_file", key)
        self.inner.put_file(key, local_path, if_absent=if_absent, link=link)
        self._end(fault, "put_file", key)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        fault = self._begin("put_bytes", key)
        self.inner.put_bytes(key, data, if_absent=if_absent)
        self._end(fault, "put_bytes", key)

    def read(self, key: str) -> bytes:
        fault = self._begin("read", key)
        return _damaged(self.inner.read(key), fault)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        fault = self._begin("read_range", key)
        return _damaged(self.inner.read_range(key, start, length), fault)

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int | None:
        fault = self._begin("get_to_file", key)
        if fault is None:
            return self.inner.get_to_file(key, local_path, link=link)
        data = _damaged(self.inner.read(key), fault)
        if os.path.lexists(local_path):
            os.unlink(local_path)  # it may be a link to the object itself
        with open(local_path, "xb") as file:
            file.write(data)
        return None

    def stat(self, key: str) -> ObjectInfo:
        self._begin("stat", key)
        return self.inner.stat(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        fault = self._begin("list", prefix)
        found = [*self.inner.list(prefix)]
        if fault is Fault.STALE_LIST:
            found = [info for info in found if self._clock_ms() - info.modified_ms > _STALE_MS]
        return iter(found)

    def delete(self, keys: Iterable[str]) -> None:
        keys = [*keys]
        first = keys[0] if keys else ""
        fault = self._begin("delete", first)
        self.inner.delete(keys)
        self._end(fault, "delete", first)

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        fault = self._begin("copy_from", key)
        copied = self.inner.copy_from(source, source_key, key)
        self._end(fault, "copy_from", key)
        return copied

    def local_path(self, key: str) -> str | None:
        return self.inner.local_path(key)


def _damaged(data: bytes, fault: Fault | None) -> bytes:
    if not data:
        return data
    if fault is Fault.SHORT_BODY:
        return data[: len(data) // 2]
    if fault is Fault.WRONG_BODY:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data


def _error(kind: ErrorKind, operation: Operation) -> UnavailableError:
    return UnavailableError(f"injected into {operation}", kind=kind)
