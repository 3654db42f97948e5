"""The agents of the simulated executors: the real `AgentService`, on a storage that fails.

Only one thread works at a time. A call that may stand still in its middle runs in a thread of its
own. At a storage operation it can hand the turn back. A thread that wants a lock of such a call
first lets the call end.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from millpond.agent.context import Contexts, StoreContext
from millpond.agent.service import AgentService
from millpond.model.json_fields import JsonFields
from millpond.storage import LocalStorage, MemoryStorage, ObjectInfo, Storage
from millpond.storage.base import Copied
from millpond.testing.faults import Fault, FaultyStorage, Operation

T = TypeVar("T")
_TICKET = re.compile(r',"ticket":"(\d+)","wait_ms":\d+')
_PARTITION = re.compile(r'"partition":(\d+)')


class AgentDeath(BaseException):
    """Something killed the agent's process in the middle of a call.

    No handler of the agent catches this.
    """


class Chance(Protocol):
    """Decides what goes wrong."""

    now_ms: int

    def fault_of(self, operation: Operation) -> Fault | None:
        """Return the fault of a storage operation, or None."""

    def stands_still(self, what: str) -> bool:
        """Return whether a call stops here, so that others go first."""


class TimedStorage:
    """A storage that gives objects times of the simulated clock."""

    def __init__(self, inner: LocalStorage, now_ms: Callable[[], int]) -> None:
        self.inner = inner
        self._now_ms = now_ms
        self._written: dict[str, tuple[int, int]] = {}  # key -> inode, time

    def _touched(self, key: str) -> None:
        path = self.inner.local_path(key)
        if path is not None and os.path.exists(path):
            self._written[key] = (os.stat(path).st_ino, self._now_ms())

    def _timed(self, info: ObjectInfo) -> ObjectInfo:
        known = self._written.get(info.key)
        if known is None:
            known = self._notice(info.key)
        return ObjectInfo(info.key, info.size_bytes, known[1])

    def _notice(self, key: str) -> tuple[int, int]:
        inode = os.stat(self.inner.local_path(key) or "").st_ino
        known = self._written.get(key)
        if known is None or known[0] != inode:
            known = self._written[key] = (inode, self._now_ms())
        return known

    def look(self, prefix: str) -> None:
        """Give times to the files that somebody wrote without this storage."""
        for info in self.inner.list(prefix):
            self._notice(info.key)

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        self.inner.put_file(key, local_path, if_absent=if_absent, link=link)
        self._touched(key)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self.inner.put_bytes(key, data, if_absent=if_absent)
        self._touched(key)

    def read(self, key: str) -> bytes:
        return self.inner.read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.read_range(key, start, length)

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        self.inner.get_to_file(key, local_path, link=link)

    def stat(self, key: str) -> ObjectInfo:
        return self._timed(self.inner.stat(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter([self._timed(info) for info in self.inner.list(prefix)])

    def delete(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        self.inner.delete(gone)
        for key in gone:
            self._written.pop(key, None)

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        copied = self.inner.copy_from(source, source_key, key)
        self._touched(key)
        return copied

    def local_path(self, key: str) -> str | None:
        return self.inner.local_path(key)


def storage_of(kind: str, root: str, now_ms: Callable[[], int]) -> Storage:
    """Return the storage of one Spark checkpoint, without faults. `kind`: `local` or `object`."""
    return (
        TimedStorage(LocalStorage(root, fsync=False), now_ms)
        if kind == "local"
        else MemoryStorage(clock_ms=now_ms)
    )


class Call:
    """One call to an agent, in the name of an executor.

    `dies_at`: the agent dies before the storage operation of this number; None: it lives.
    """

    current: threading.local = threading.local()

    def __init__(self, agent: Agent, owner: str, method: str, request: str) -> None:
        self.agent, self.owner, self.method = agent, owner, method
        self.may_stand = False
        self.dies_at: int | None = None
        self.answer: str | None = None  # None: the agent died
        self.done = False
        # Without a ticket, the agent does the work in the calling thread. The simulation can make
        # that thread stand still.
        self._request = _TICKET.sub("", request)
        found = _TICKET.search(request)
        self.ticket = found[1] if found else ""
        found = _PARTITION.search(request)
        self.partition = int(found[1]) if found else 0
        self._operations = 0
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    @staticmethod
    def of_this_thread() -> Call | None:
        return getattr(Call.current, "call", None)

    def go(self) -> None:
        """Let the call go on until it is done or stands still."""
        if not self.may_stand and self._thread is None:
            self._work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._in_thread, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()

    def finish(self) -> None:
        """Let the call go on to its end, without a stop."""
        self.may_stand = False
        while not self.done:
            self.go()

    def _in_thread(self) -> None:
        try:
            self._work()
        finally:
            self._back.release()

    def _work(self) -> None:
        before = Call.of_this_thread()
        Call.current.call = self
        try:
            self.answer = self.agent.service.handle(self.method, self._request)
            if self.dies_at is not None:
                self.answer = None  # the agent died after the last operation
        except AgentDeath:
            self.answer = None
        finally:
            Call.current.call = before
            self.done = True

    def at_operation(self, what: str) -> None:
        """Stand still or die before a storage operation, if the choices say so."""
        if self.dies_at is not None and self._operations >= self.dies_at:
            raise AgentDeath
        self._check_alive()
        self._operations += 1
        if self.may_stand and self.agent.chance.stands_still(what):
            self._back.release()
            self._turn.acquire()
            self._check_alive()

    def _check_alive(self) -> None:
        if self.agent.dead:
            self.dies_at = self._operations
            raise AgentDeath


class Lock:
    """Replaces the lock of one store's calls. A call that waits first lets the holder end."""

    def __init__(self) -> None:
        self._holder: Call | None = None
        self._depth = 0

    def __enter__(self) -> Lock:
        me = Call.of_this_thread()
        while self._depth and self._holder is not me:
            assert self._holder is not None
            self._holder.finish()
        assert self._depth == 0
        self._holder, self._depth = me, 1
        return self

    def __exit__(self, *_: object) -> None:
        self._holder, self._depth = None, 0


class OneByOne:
    """Replaces the threads that fetch in parallel. It runs one fetch after the other."""

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]


class _Tickets:
    """Replaces the threads for calls that may take long.

    The first caller does the work. A caller that asks again finds the answer.
    """

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}

    def answer(self, ticket: str, wait_s: float, work: Callable[[], str]) -> str:
        if ticket not in self._answers:
            self._answers[ticket] = work()
        return self._answers[ticket]


class _Contexts(Contexts):
    def _make(
        self, described: dict[str, Any], hadoop: Any, key: Any, fields: JsonFields
    ) -> StoreContext:
        context = super()._make(described, hadoop, key, fields)
        locks: Any = context
        locks.commit_lock, locks.snapshot_lock, locks.collect_lock, locks.ssts_lock = (
            Lock() for _ in range(4)
        )
        checkpoint: Any = context.checkpoint
        checkpoint.parallel = OneByOne()
        if not isinstance(checkpoint.claiming, Lock):
            checkpoint.claiming = Lock()
        return context


class Agent:
    """The agent of one executor; a new one after each death."""

    def __init__(self, chance: Chance, storage: Storage, local_root: str) -> None:
        self.chance = chance
        self.dead = False

        def choose(operation: Operation) -> Fault | None:
            call = Call.of_this_thread()
            if call is None:
                return None
            call.at_operation(operation.name)
            return chance.fault_of(operation)

        self.storage = FaultyStorage(storage, choose, clock_ms=lambda: chance.now_ms)
        opener = lambda uri, settings: self.storage  # noqa: E731
        self.service = AgentService(
            opener=opener, clock_ms=lambda: chance.now_ms, local_root=local_root
        )
        self.service._contexts = _Contexts(opener, local_root)
        self.service._pending = _Tickets()  # type: ignore[assignment]
