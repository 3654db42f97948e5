"""Calls that may take long. Each runs in a thread of its own. Its caller gets an answer in time,
even if the answer only says that the call is not done yet.

The shim chooses a ticket for each call. Asking again with the ticket joins the running call, or
fetches its answer. An agent that does not know the ticket begins the call. So asking again mends a
lost answer, a time-out and the death of an agent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

# A task that does not ask again for this long was killed. Its call then ends at the next file.
_ABANDONED_S = 30.0
# The shim asks again for a lost answer well within this time.
_KEPT_S = 60.0


class AbandonedError(Exception):
    """Nobody asks for this call any more."""


@dataclass(slots=True, eq=False)
class _Call:
    ticket: str
    asked_s: float
    done: threading.Event = field(default_factory=threading.Event)
    answer: str | None = None


_current: ContextVar[Callable[[], None] | None] = ContextVar("millpond_check_wanted", default=None)


def _always_wanted() -> None:
    """Do nothing: the thread that was asked runs the call itself, so its caller waits."""


def check_wanted() -> Callable[[], None]:
    """Return a function that raises AbandonedError once nobody asks for this thread's call, or what
    `wanted_while` was given.

    Any thread may call that function.
    """
    return _current.get() or _always_wanted


@contextmanager
def wanted_while(check: Callable[[], None]) -> Iterator[None]:
    """Have `check`, too, say whether the work of this thread is wanted: it raises if not.

    Raises: what `check` raises, at once.
    """
    before = check_wanted()

    def both() -> None:
        before()
        check()

    both()
    token = _current.set(both)
    try:
        yield
    finally:
        _current.reset(token)


class PendingCalls:
    """The calls that run, and the answers that were not forgotten yet. Thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[str, _Call] = {}
        self._ended: deque[tuple[float, _Call]] = deque()

    def answer(self, ticket: str, wait_s: float, work: Callable[[], str]) -> str | None:
        """Return what `work` returns, or None if it is not done within `wait_s`.

        `work` runs once for each ticket, however many ask. It raises nothing but AbandonedError.
        """
        with self._lock:
            self._forget()
            call = self._calls.get(ticket)
            if call is None:
                call = _Call(ticket, self._clock())
                name = f"millpond-call-{ticket}"
                threading.Thread(
                    target=self._run, args=(call, work), name=name, daemon=True
                ).start()
                self._calls[ticket] = call
            call.asked_s = self._clock()
        call.done.wait(wait_s)
        with self._lock:
            call.asked_s = self._clock()
            return call.answer

    def _run(self, call: _Call, work: Callable[[], str]) -> None:
        _current.set(lambda: self._check(call))
        try:
            call.answer = work()
        except AbandonedError:
            return
        finally:
            with self._lock:
                if call.answer is None:  # the next one who asks begins the call again
                    self._drop(call)
                else:
                    self._ended.append((self._clock(), call))
            call.done.set()

    def _check(self, call: _Call) -> None:
        with self._lock:
            if self._clock() - call.asked_s > _ABANDONED_S:
                self._drop(call)
                raise AbandonedError

    def _drop(self, call: _Call) -> None:
        if self._calls.get(call.ticket) is call:
            del self._calls[call.ticket]

    def _forget(self) -> None:
        """Drop answers that were kept long enough."""
        while self._ended and self._clock() - self._ended[0][0] > _KEPT_S:
            self._drop(self._ended.popleft()[1])
