"""Which entries the log of a file sink needs, if batches without rows use up numbers (pure).

    <sink>/_spark_metadata/<batch>             `v1`, then a JSON line for each file of the batch
    <sink>/_spark_metadata/<batch>.compact     the same for all batches up to this one

Every `interval`th entry is compact. A reader begins with the newest compact entry and needs every
number above it. Spark needs the same numbers to write the next compact entry. It deletes the
entries that a compact one covers. Spark believes that every batch up to the newest entry is
written: it drops their rows. Source: `CompactibleFileStreamLog` of Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from millpond.errors import ErrorKind, FormatError
from millpond.format import spark_names

EMPTY = b"v1"  # the entry of a batch that wrote nothing
DEFAULT_INTERVAL = 10  # of spark.sql.streaming.fileSink.log.compactInterval

Read = Callable[[str], bytes]


class MissingEntries(Exception):
    """The log lacks entries that a reader needs, and their batches may have written rows."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


def numbers_in(names: Iterable[str]) -> dict[int, str]:
    """Return the names of entries among the files `names`, by number.

    If a number has two files, the compact one wins.
    """
    found: dict[int, str] = {}
    for name in sorted(names):  # `9` before `9.compact`
        number = spark_names.parse_file_log_entry(name)
        if number is not None:
            found[number] = name
    return found


def interval_of(names: Iterable[str], default: int) -> int:
    """Return the interval with which Spark goes on.

    Like Spark, derives it from the compact entries that exist. `default`: the session's interval.
    """
    compacts = sorted(n for n, name in numbers_in(names).items() if spark_names.is_compact(name))
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
    """Return the entries of a new log in which all batches up to `last` wrote nothing.

    Name to content. If there is room for two compact entries, the log has two: from two Spark
    derives the interval, whatever its session says.
    """
    count = last + 1
    interval = default if count < default else max(1, min(default, count // 2))
    numbers: list[int] = []
    if count >= interval:
        newest = count // interval * interval - 1
        numbers = [n for n in (newest - interval, newest) if n >= 0]
    return {
        spark_names.file_log_entry(n, interval): EMPTY
        for n in [*numbers, *range((numbers[-1] if numbers else -1) + 1, count)]
    }


def continued(
    names: Collection[str],
    empty: Collection[int],
    last: int,
    read: Read,
    default: int = DEFAULT_INTERVAL,
) -> dict[str, bytes]:
    """Return the entries that the log lacks for a reader of batch `last`.

    Name to content, in ascending order of numbers.

    Args:
        names: the names of the files that exist.
        empty: numbers of batches that never wrote a row.
        last: the batch up to which the log must be whole.
        read: returns the content of a file.
        default: the interval of the session.
    Raises:
        MissingEntries: the log lacks entries of batches that are not in `empty`.
        FormatError: FORMAT_DAMAGED: an entry is unreadable.
    """
    present, interval = numbers_in(names), interval_of(names, default)
    # The compact entry with which a reader of `last` begins. If `last` is to be compact itself, it
    # is made from that one.
    first = max(0, (last + (last in present)) // interval * interval - 1)
    while first > 0 and first not in present and first in empty:
        first = max(0, first // interval * interval - 1)  # `first` is missing: make it from those
    missing = [n for n in range(first, last + 1) if n not in present]
    lost = [n for n in missing if n not in empty]
    if lost:
        raise MissingEntries(lost)
    made: dict[str, bytes] = {}
    for number in missing:
        lines = [EMPTY.decode()]
        if (number + 1) % interval == 0:
            for before in range(max(0, number - interval), number):
                name = present.get(before) or spark_names.file_log_entry(before, interval)
                lines += _lines(name, made[name] if name in made else read(name))
        made[spark_names.file_log_entry(number, interval)] = "\n".join(lines).encode()
    return made


def _lines(name: str, content: bytes) -> list[str]:
    try:
        version, *lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        version, lines = "", []
    if version.strip() != "v1":
        raise FormatError(
            f"{spark_names.sink_entry_key(name)}: no entry of a file sink's log",
            kind=ErrorKind.FORMAT_DAMAGED,
        )
    return [line for line in lines if line]
