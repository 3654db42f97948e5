"""The log of a file sink: which entries it needs so that batch numbers that no row was written under do not break it (pure).

    <sink>/_spark_metadata/<batch>             `v1`, then a JSON line for each file of the batch
    <sink>/_spark_metadata/<batch>.compact     the same for all batches up to this one

Every `interval`th entry is a compact one. A reader begins with the newest compact entry and wants every number above it; Spark
wants the same numbers when it writes the next compact entry, and deletes what it covers later. A number up to the newest one that
is there is taken for written, and Spark leaves its rows out. Source: `CompactibleFileStreamLog` of Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from millpond import layout
from millpond.errors import ErrorKind, FormatError

EMPTY = b"v1"  # an entry of a batch that wrote nothing
DEFAULT_INTERVAL = 10  # of spark.sql.streaming.fileSink.log.compactInterval

Read = Callable[[str], bytes]


class MissingEntries(Exception):
    """Entries that a reader wants are not there, and rows may have been written under their numbers."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


def numbers_in(names: Iterable[str]) -> dict[int, str]:
    """Return the entries among `names` of files: number to name, the compact one where there are two."""
    found: dict[int, str] = {}
    for name in sorted(names):  # `9` before `9.compact`
        number = layout.parse_sink_entry(name)
        if number is not None:
            found[number] = name
    return found


def interval_of(names: Iterable[str], default: int) -> int:
    """Return the interval with which Spark goes on, as it tells it from the compact entries that are there."""
    compacts = sorted(
        n for n, name in numbers_in(names).items() if layout.is_compact_sink_entry(name)
    )
    if len(compacts) >= 2:
        return compacts[-1] - compacts[-2]
    if not compacts:
        return default
    count = compacts[0] + 1
    if count <= default:
        return count
    if default < count // 2:
        return next((n for n in range(default, count // 2 + 1) if count % n == 0), count)
    return count


def beginning(last: int, default: int = DEFAULT_INTERVAL) -> dict[str, bytes]:
    """Return the entries of a new log that says of all batches up to `last` that they wrote nothing: name to content.

    Where there is room for two compact entries they are made: from two Spark tells the interval, whatever its session says.
    """
    count = last + 1
    interval = default if count < default else max(1, min(default, count // 2))
    numbers: list[int] = []
    if count >= interval:
        newest = count // interval * interval - 1
        numbers = [n for n in (newest - interval, newest) if n >= 0]
    return {
        _name(n, interval): EMPTY
        for n in [*numbers, *range((numbers[-1] if numbers else -1) + 1, count)]
    }


def continued(
    names: Collection[str],
    empty: Collection[int],
    last: int,
    read: Read,
    default: int = DEFAULT_INTERVAL,
) -> dict[str, bytes]:
    """Return the entries that are missing in a log for a reader of batch `last`: name to content, in ascending order of numbers.

    Args:
        names: of the files that are there.
        empty: numbers under which no row was ever written.
        read: returns the content of a file.
    Raises: MissingEntries: others are missing. FormatError: FORMAT_DAMAGED: an entry that must be read cannot be.
    """
    present, interval = numbers_in(names), interval_of(names, default)
    # The compact entry that a reader of `last` begins with, and that `last` is made of, if it is to be one itself.
    first = max(0, (last + (last in present)) // interval * interval - 1)
    while first > 0 and first not in present and first in empty:
        first = max(0, first // interval * interval - 1)  # it is to be made of the ones before
    missing = [n for n in range(first, last + 1) if n not in present]
    lost = [n for n in missing if n not in empty]
    if lost:
        raise MissingEntries(lost)
    made: dict[str, bytes] = {}
    for number in missing:
        lines = [EMPTY.decode()]
        if (number + 1) % interval == 0:
            for before in range(max(0, number - interval), number):
                name = present.get(before) or _name(before, interval)
                lines += _lines(name, made[name] if name in made else read(name))
        made[_name(number, interval)] = "\n".join(lines).encode()
    return made


def writes_nothing(contents: Mapping[str, bytes]) -> bool:
    """Return whether no file is named in these entries: name to content."""
    return not any(_lines(name, content) for name, content in contents.items())


def _name(number: int, interval: int) -> str:
    return layout.sink_entry(number, compact=(number + 1) % interval == 0)


def _lines(name: str, content: bytes) -> list[str]:
    try:
        version, *lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        version, lines = "", []
    if version.strip() != "v1":
        raise FormatError(
            f"{layout.sink_entry_key(name)}: no entry of a file sink's log",
            kind=ErrorKind.FORMAT_DAMAGED,
        )
    return [line for line in lines if line]
