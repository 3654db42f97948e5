"""Results on their way from the user's code to the JVM."""

from __future__ import annotations

import io
from collections.abc import Iterator

from millpond.transport.forms import Pending
from millpond.transport.session import Session
from millpond.transport.wire import Wire


class _Output:
    """Takes results as a form does."""

    def __init__(self) -> None:
        self.pending = Pending()
        self.sent: list[int] = []

    def take(self) -> bytes:
        self.sent += self.pending.entries
        self.pending.sent(8)
        return b""


def test_all_results_go_though_frames_end_between_them() -> None:
    session, output = Session(Wire(io.BytesIO(), io.BytesIO())), _Output()
    session.output = output

    def results() -> Iterator[int]:
        for i in range(1000):
            if i % 30 == 29:  # the key's rows go on in another frame
                session.flush(consumed=True, with_rows=True)
            yield i

    output.pending.add(results(), session)
    session.flush(with_rows=True)
    assert output.sent == list(range(1000))


def test_a_sending_without_results_says_nothing_of_their_size() -> None:
    pending = Pending()
    pending.entries.append("large")
    pending.sent(1 << 21)
    assert pending.most == 2
    pending.sent(0)
    assert pending.most == 2
