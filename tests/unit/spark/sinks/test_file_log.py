"""The entries that a file sink's log needs, compared with what Spark does with a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, FormatError
from millpond.spark.sinks.file_log import (
    EMPTY,
    MissingEntries,
    beginning,
    continued,
    interval_of,
    numbers_in,
)


class Log:
    """A log as Spark keeps it.

    `default` is the interval of its session. It counts as long as no compact entries tell another
    one.
    """

    def __init__(self, default: int, files: dict[str, bytes] | None = None) -> None:
        self.default = default
        self.files = dict(files or {})

    @property
    def interval(self) -> int:
        return interval_of(self.files, self.default)

    def name(self, number: int) -> str:
        return f"{number}.compact" if (number + 1) % self.interval == 0 else str(number)

    def add(self, number: int, *rows: str) -> None:
        """Add an entry as `CompactibleFileStreamLog.add` does.

        Raises: KeyError: an entry is missing.
        """
        name, lines = self.name(number), ["v1"]
        if name.endswith(".compact"):
            for before in range(max(0, number - self.interval), number):
                lines += self.files[self.name(before)].decode().split("\n")[1:]
        self.files[name] = "\n".join([*lines, *rows]).encode()

    def read(self) -> list[str]:
        """Read as `CompactibleFileStreamLog.allFiles` does.

        Raises: KeyError: an entry is missing.
        """
        newest = max(numbers_in(self.files))
        first = max(0, (newest + 1) // self.interval * self.interval - 1)
        return [
            row
            for n in range(first, newest + 1)
            for row in self.files[self.name(n)].decode().split("\n")[1:]
        ]

    def drop_covered(self) -> None:
        """Delete what a compact entry covers.

        Spark does so later, and keeps several compact entries.
        """
        compacts = sorted(
            n for n, name in numbers_in(self.files).items() if name.endswith(".compact")
        )
        for name in list(self.files):
            if len(compacts) > 1 and int(name.partition(".")[0]) < compacts[-2]:
                del self.files[name]


def test_the_interval_is_told_as_spark_tells_it() -> None:
    for names, default, interval in (
        ([], 10, 10),
        (["3"], 7, 7),
        (["2.compact"], 10, 3),
        (["19.compact"], 10, 20),
        (["29.compact"], 10, 10),
        (["29.compact"], 4, 5),
        (["4.compact", "9.compact", "10"], 3, 5),
        ([".5.crc", ".staging-0", "x.compact"], 10, 10),
    ):
        assert interval_of(names, default) == interval, (names, default)


@given(
    last=st.integers(0, 70),
    known=st.integers(1, 12),
    default=st.integers(1, 40),
    more=st.integers(1, 45),
)
def test_a_log_that_begins_in_the_middle_is_read_and_compacted(
    last: int, known: int, default: int, more: int
) -> None:
    """Spark reads and compacts such a log with the interval of the session.

    Once the log has room for two compact entries, any other interval works too.
    """
    log = Log(known if last + 1 < known else default, beginning(last, known))
    assert all(content == EMPTY for content in log.files.values()) and len(log.files) <= known + 2
    rows: list[str] = []
    assert log.read() == rows
    for number in range(last + 1, last + 1 + more):
        log.add(number, f"row {number}")
        rows.append(f"row {number}")
        assert log.read() == rows


@given(
    interval=st.integers(1, 6),
    steps=st.lists(
        st.sampled_from(["batch", "rescale", "forgotten", "drop"]), min_size=1, max_size=60
    ),
)
def test_numbers_that_are_used_up_leave_no_gap(interval: int, steps: list[str]) -> None:
    """`forgotten` is a rescale by a version that did not know of sinks.

    The next rescale mends the log.
    """
    log, number = Log(interval), 0
    rows: list[str] = []
    empty: set[int] = set()
    log.add(0, "row 0")
    rows.append("row 0")
    for step in steps:
        if step == "drop":
            log.drop_covered()
            continue
        number += 1
        if step == "batch" and not [n for n in empty if n not in numbers_in(log.files)]:
            log.add(number, f"row {number}")
            rows.append(f"row {number}")
            continue
        empty.add(number)
        if step == "rescale":
            log.files |= continued(log.files, empty, number, log.files.__getitem__, interval)
            assert log.read() == rows
    log.files |= continued(log.files, empty, number, log.files.__getitem__, interval)
    assert log.read() == rows
    for more in range(number + 1, number + 2 * interval + 1):
        log.add(more, f"row {more}")
        rows.append(f"row {more}")
        assert log.read() == rows


def test_a_log_that_lost_entries_is_not_mended() -> None:
    log = Log(10)
    for number in range(14):
        log.add(number, f"row {number}")
    del log.files["11"], log.files["12"]
    with pytest.raises(MissingEntries) as caught:
        continued(log.files, {12, 14}, 14, log.files.__getitem__)
    assert caught.value.numbers == [11]
    del log.files["9.compact"]
    log.files["11"] = b"v1"
    with pytest.raises(MissingEntries):
        continued(log.files, {12, 14}, 14, log.files.__getitem__)


def test_an_entry_that_is_none() -> None:
    for content in (b"", b"v2\n{}", b"\xff\xfe", b"PAR1"):
        files = {"0": b"v1", "1": content}
        with pytest.raises(FormatError) as caught:
            continued(files, {2}, 2, files.__getitem__, 3)
        assert caught.value.kind is ErrorKind.FORMAT_DAMAGED and "_spark_metadata/1" in str(
            caught.value
        )
