"""When Millpond tries a request again."""

from __future__ import annotations

import pytest

from millpond.errors import UnavailableError
from millpond.storage.retry import LONGEST_PAUSE_S, Pace, Retry, TransientError


class Time:
    """A clock that moves only by pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_grow_until_the_deadline() -> None:
    time = Time()
    retry = Retry(20_000, lambda: time.now, time.sleep, lambda: 1.0)
    failure = UnavailableError("refused")

    def fail() -> None:
        raise TransientError(failure)

    with pytest.raises(UnavailableError) as caught:
        retry.run("x", fail)
    assert caught.value is failure
    assert time.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert time.now < 20


def test_other_errors_are_not_repeated() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise UnavailableError("denied")

    with pytest.raises(UnavailableError):
        Retry().run("x", fail)
    assert len(calls) == 1


def test_throttling_slows_every_request_down_and_wears_off() -> None:
    time = Time()
    retry = Retry(60_000, lambda: time.now, time.sleep, lambda: 1.0, Pace())
    answers = iter([True, True, False])

    def attempt() -> str:
        if next(answers, False):
            raise TransientError(UnavailableError("slow down"), throttled=True)
        return "done"

    assert retry.run("x", attempt) == "done"
    assert time.pauses == [0.4, 0.01, 0.8, 0.02], (
        "the pauses grow, and one comes before each request"
    )
    assert retry.pace.pause_s == pytest.approx(0.016)
    for _ in range(20):
        retry.run("y", lambda: None)
    assert retry.pace.pause_s == 0
    for _ in range(20):
        retry.pace.throttled()
    assert retry.pace.pause_s == Pace.LONGEST_S
