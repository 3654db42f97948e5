"""Calls that may take long. Each runs in a thread of its own; who asks is answered in time, if only
that it is not done yet.

A call is known by its ticket, which the shim chooses. To ask again with the ticket joins the call
that runs, or finds what it answered; an agent that never heard of the ticket begins. So an answer
that was lost, a time-out and the death of an agent are all mended by asking again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

# The task that asked was killed if it does not ask again for so long: its call ends at the next file.
_ABANDONED_S = 30.0
# An answer that was lost on its way is asked for again well within this.
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
    """Do nothing: the call is answered by the thread that was asked."""


def check_wanted() -> Callable[[], None]:
    """Return what raises AbandonedError once nobody asks any more for the call of this thread.

    Any thread may use what is returned.
    """
    return _current.get() or _always_wanted


class PendingCalls:
    """Thread-safe.

    Args: clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[str, _Call] = {}
        self._ended: deque[tuple[float, _Call]] = deque()

    def answer(self, ticket: str, wait_s: float, work: Callable[[], str]) -> str | None:
        """Return what `work` returns, or None if it is not done within `wait_s`.

        `work` runs once for a ticket, whoever asks, and raises nothing but AbandonedError.
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
                if call.answer is None:  # whoever asks next begins anew
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
        """Drop answers that were there long enough."""
        while self._ended and self._clock() - self._ended[0][0] > _KEPT_S:
            self._drop(self._ended.popleft()[1])
