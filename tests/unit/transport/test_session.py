"""Changes and results on their way to the JVM, byte by byte."""

from __future__ import annotations

import io
import pickle
import struct

from millpond.transport.forms import Offsets, Pending
from millpond.transport.session import DELETE_TIMER, FIRED, REGISTER_TIMER, Session
from millpond.transport.wire import ANSWER, DATA, RESULT, Wire


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">iB", 1 + len(payload), kind) + payload


def _results(out: io.BytesIO) -> list[tuple[bool, bool, int, list[object]]]:
    """Return of each result: consumed, phase over, keys done, changes."""
    stream, found = io.BytesIO(out.getvalue()), []
    while head := stream.read(4):
        payload = stream.read(struct.unpack(">i", head)[0])
        kind, consumed, over, keys, length = struct.unpack_from(">B??ii", payload)
        if kind == RESULT:
            changes = payload[11 : 11 + length]
            found.append((consumed, over, keys, _flat(changes) if changes else []))
    return found


def _flat(changes: bytes) -> list[object]:
    """Return the key's number, the code and the value of each change, one after the other."""
    (count,) = struct.unpack_from("=i", changes)
    numbers = struct.unpack_from(f"={2 * count}i", changes, 4)
    values = pickle.loads(changes[4 + 8 * count :])
    assert len(values) == count
    found = zip(numbers[:count], numbers[count:], values, strict=True)
    return [part for change in found for part in change]


def test_changes_go_in_their_order_and_once() -> None:
    out = io.BytesIO()
    session = Session(Wire(io.BytesIO(), out))
    session.key = 4
    session.note(0, (1,))
    session.note(16, None)
    session.keys_done += 1
    session.flush(consumed=True)
    session.flush()
    assert _results(out) == [(True, False, 1, [4, 0, (1,), 4, 16, None])]


def test_timers_that_fired_are_one_change_until_another_one_comes() -> None:
    out = io.BytesIO()
    session = Session(Wire(io.BytesIO(), out))
    session.key = 4
    session.timer_fired()
    session.key = 5
    session.timer_fired()
    session.note(REGISTER_TIMER, 9)
    session.timer_fired()
    session.key = 4
    session.note(DELETE_TIMER, 9)
    session.flush()
    session.timer_fired()  # what is sent does not grow
    session.flush(consumed=True)
    first = [4, FIRED, 2, 5, REGISTER_TIMER, 9, 5, FIRED, 1, 4, DELETE_TIMER, 9]
    assert _results(out) == [(False, False, 0, first), (True, False, 0, [4, FIRED, 1])]


def test_a_call_sends_the_changes_first_and_keeps_frames_that_come_before_its_answer() -> None:
    out = io.BytesIO()
    wire = Wire(io.BytesIO(_frame(DATA, b"rows") + _frame(ANSWER, b"yes")), out)
    session = Session(wire)
    session.key = 0
    session.note(0, (1,))
    assert session.call(b"question") == b"yes"
    assert _results(out) == [(False, False, 0, [0, 0, (1,)])]
    assert out.getvalue().endswith(struct.pack(">i", 0) + b"question")
    assert wire.next() == bytes([DATA]) + b"rows"


def test_many_changes_go_before_the_end_of_a_frame() -> None:
    out = io.BytesIO()
    session = Session(Wire(io.BytesIO(), out))
    session.key = 0
    for i in range(70_000):
        session.note(0, (i,))
    session.flush()
    results = _results(out)
    assert len(results) > 1
    assert [v for *_, changes in results for v in changes[2::3]] == [(i,) for i in range(70_000)]


def test_large_changes_after_small_ones_go_before_they_are_many() -> None:
    out = io.BytesIO()
    session = Session(Wire(io.BytesIO(), out))
    session.key = 0
    for i in range(1000):
        session.note_sized(0, (i,))
    session.flush()
    sent = out.tell()
    for i in range(20):
        session.note_sized(0, [("x" * (1 << 20), i)])
    assert out.tell() - sent >= 18 << 20
    session.flush()
    assert len([v for *_, changes in _results(out) for v in changes[2::3]]) == 1020


def test_results_are_cut_by_their_size() -> None:
    pending, sent = Pending(), []

    class Sender(Session):
        def flush(
            self, *, consumed: bool = False, phase_over: bool = False, with_rows: bool = False
        ) -> None:
            sent.append(len(pending.entries))
            pending.sent(1_000_000 * len(pending.entries))  # a megabyte each

    session = Sender(Wire(io.BytesIO(), io.BytesIO()))
    pending.add(iter(range(250)), session, lambda _: 8)
    assert sent[0] == 100 and max(sent[1:]) <= 4
    assert sum(sent) + len(pending.entries) == 250


def test_offsets_are_read_from_sparks_form() -> None:
    assert Offsets.of([5, 2, 0, 3, 1, 2]) == Offsets([0, 3], [1, 2])
