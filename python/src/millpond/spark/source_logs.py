"""Cuts the log of a file source at an entry (pure).

    sources/<n>/<entry>            `v1`, then a JSON line per file: {"path", "timestamp", "batchId"}
    sources/<n>/<entry>.compact    the same for all entries up to this one; every tenth by
                                   default; Spark deletes the entries that it covers

A savepoint of a batch must not know the files that later batches read. A query restored from it
would skip them, or read them in other batches.

From two compact files Spark derives the interval, from one it guesses it by its session's. If that
was changed, it may look for a compact file that is not there. So a log that had two keeps two.
Source: `CompactibleFileStreamLog`, `FileStreamSourceLog` of Spark 4.3.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from millpond.errors import ErrorKind, FormatError
from millpond.format import spark_names

_DEFAULT_INTERVAL = 10


def cut(
    names: Iterable[str], last: int, read: Callable[[str], bytes]
) -> Mapping[str, bytes | None] | None:
    """Return the files of the log up to entry `last`.

    Args:
        names: the names of the stored files, relative to the source's directory.
        last: the last entry to keep.
        read: returns the content of one of the files.
    Returns: name to content; the content is None if the stored file serves as it is. None if the
        log cannot be cut there: then keep all of it, and Spark reads the rest in one batch.
    Raises: FormatError: FORMAT_DAMAGED: a compact file is unreadable.
    """
    present = {
        name: entry
        for name in names
        if (entry := spark_names.parse_file_log_entry(name)) is not None
    }
    compacts = {entry: name for name, entry in present.items() if spark_names.is_compact(name)}
    interval = _interval(sorted(compacts), last)
    first = (last + 1) // interval * interval - 1  # the compact file with which Spark begins
    entries = [first - interval, *range(first, last + 1)]
    needed = {spark_names.file_log_entry(entry, interval): entry for entry in entries if entry >= 0}
    missing = [name for name in needed if name not in present]
    if not missing:
        return dict.fromkeys(needed)
    beyond = min((entry for entry in compacts if entry > last), default=None)
    if beyond is None:
        return None
    lines = _lines(compacts[beyond], read)
    rebuilt: dict[str, bytes | None] = dict.fromkeys(needed)
    for name in missing:
        entry, whole = needed[name], spark_names.is_compact(name)
        chosen = [line for line, batch in lines if batch == entry or (whole and batch <= entry)]
        rebuilt[name] = "\n".join(["v1", *chosen]).encode()
    return rebuilt


def _interval(compacts: list[int], last: int) -> int:
    """Return every how many entries one is compact, for a log that is cut at entry `last`.

    Like Spark, derives it from the newest two compact files. Of one file nobody knows it: it may be
    any divisor of the file's count of entries.
    """
    if len(compacts) >= 2:
        return compacts[-1] - compacts[-2]
    if not compacts:
        return last + 2  # none up to `last` is compact
    count = compacts[0] + 1
    return _DEFAULT_INTERVAL if compacts[0] > last and count % _DEFAULT_INTERVAL == 0 else count


def _lines(name: str, read: Callable[[str], bytes]) -> list[tuple[str, int]]:
    try:
        version, *lines = read(name).decode("utf-8").split("\n")
        if version.strip() != "v1":
            raise ValueError(version)
        return [(line, int(json.loads(line)["batchId"])) for line in lines if line]
    except (ValueError, KeyError, TypeError) as e:
        raise FormatError(
            f"{name}: a damaged log of a file source", kind=ErrorKind.FORMAT_DAMAGED
        ) from e
