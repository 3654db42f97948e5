"""Repeats an attempt that may succeed later: growing pauses with full jitter, until a deadline.

The caller may inject time and chance.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class TransientError(Exception):
    """An attempt failed, and a later one may succeed.

    Args:
        cause: the error for the user, if no attempt succeeds.
        throttled: the server refused because there are too many requests.
    """

    def __init__(self, cause: Exception, *, throttled: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.throttled = throttled


class Pace:
    """Slows all threads of a storage down while the server throttles them.

    Each request pauses before it is sent. Every throttled answer doubles the pause, every good one
    shortens it.
    """

    LONGEST_S = 1.0
    _FIRST_S = 0.01
    _GONE_S = 0.001

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause_s = 0.0

    @property
    def pause_s(self) -> float:
        """The longest pause before a request now, in seconds."""
        return self._pause_s

    def throttled(self) -> None:
        """Note that the server refused a request because there are too many."""
        with self._lock:
            self._pause_s = min(self.LONGEST_S, max(self._FIRST_S, 2 * self._pause_s))

    def served(self) -> None:
        """Note that the server answered."""
        if self._pause_s:
            with self._lock:
                self._pause_s = self._pause_s * 0.8 if self._pause_s > self._GONE_S else 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again.

    Args:
        deadline_ms: no attempt begins later than this after the first one.
        clock: returns monotonic seconds.
        sleep: pauses for a number of seconds.
        chance: returns a number in [0, 1).
        pace: all requests to one server share it.
    """

    deadline_ms: int = 60_000
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    pace: Pace = field(default_factory=Pace)

    def run(self, what: str, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns. Repeat it on a TransientError.

        After the deadline, raise the `cause` of the last one.

        Args:
            what: a name for the log, without secrets or signed URLs.
        """
        end = self.clock() + self.deadline_ms / 1000
        number = 1
        while True:
            if self.pace.pause_s:
                self.sleep(self.pace.pause_s * self.chance())
            try:
                result = attempt()
            except TransientError as e:
                if e.throttled:
                    self.pace.throttled()
                # Full jitter: many tasks that failed together must not come back together.
                longest = min(
                    LONGEST_PAUSE_S,
                    FIRST_PAUSE_S * 2 ** min(number - 1, 10) * (4 if e.throttled else 1),
                )
                pause = longest * self.chance()
                if self.clock() + pause >= end:
                    raise e.cause from e
                log.info(
                    "trying again what=%s attempt=%d pause_ms=%d: %s", what, number, pause * 1000, e
                )
                self.sleep(pause)
                number += 1
            else:
                self.pace.served()
                return result
