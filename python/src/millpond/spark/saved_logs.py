"""Changes texts of Spark's logs for a savepoint or a restore (pure).

It keeps the parts that it does not know. Source: Spark 4.3.0; `millpond.spark.metadata` reads the
same texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.spark.log_entries import OffsetEntry, is_number, parse_offsets

VOID_OFFSET = "-"  # Spark's mark for a source that has given nothing yet


def query_metadata(query_id: str) -> bytes:
    """Return the content of the file `metadata`."""
    return json.dumps({"id": query_id}, separators=(",", ":")).encode()


def with_offsets(text: bytes, offsets: Mapping[int, str]) -> bytes:
    """Return an entry of the offset log with these offsets and no others.

    A source without an offset starts as in a new query.

    Args:
        offsets: by number of the source.
    Raises: UnsupportedError: UNSUPPORTED: the sources have names instead of numbers.
    """
    lines = text.decode("utf-8").rstrip("\n").split("\n")
    if lines[0].strip() == "v1":
        places = range(len(lines) - 2)
        return "\n".join([*lines[:2], *(offsets.get(n, VOID_OFFSET) for n in places)]).encode()
    entry = parse_offsets(text.decode("utf-8"), 0)
    if offsets:
        check_numbered(entry)
    # A source that gave nothing yet has no line. Spark passes over a number that none has: of a
    # source that is read twice, that is the first of its two.
    names = [line.partition(":")[0] for line in lines[2:]]
    names += [str(number) for number in offsets if str(number) not in names]
    given = {str(number): offset for number, offset in offsets.items()}
    return "\n".join(
        [*lines[:2], *(f"{name}:{given.get(name, VOID_OFFSET)}" for name in names)]
    ).encode()


def check_numbered(entry: OffsetEntry) -> None:
    """Raise UnsupportedError if the sources have names: offsets are given by number."""
    if entry.has_names:
        raise UnsupportedError(
            f"the query's sources have names ({', '.join(entry.by_source)}), and offsets can be"
            " given by number only"
        )


def commit_with_operators(text: bytes, operators: Mapping[int, int], *, name: str) -> bytes:
    """Return an entry of the commit log with the state ids of `operators` alone.

    Args:
        operators: old number to new number.
        name: of the file, for messages.
    Raises: FormatError: FORMAT_DAMAGED.
    """

    def change(body: dict[str, Any]) -> None:
        ids = body.get("stateUniqueIds")
        if ids is not None:
            body["stateUniqueIds"] = {
                str(operators[int(op)]): ids[op] for op in ids if int(op) in operators
            }

    return _edited(text, change, name)


def operator_metadata(
    text: bytes, operator: int, schema_path: Callable[[str], str], *, name: str
) -> bytes:
    """Return operator metadata (v1 or v2) for the number `operator`.

    Args:
        schema_path: maps the path of a schema file to its new path.
        name: of the file, for messages.
    Raises: FormatError: FORMAT_DAMAGED.
    """

    def change(body: dict[str, Any]) -> None:
        body["operatorInfo"]["operatorId"] = operator
        for store in body["stateStoreInfo"]:
            if store.get("stateSchemaFilePaths"):
                store["stateSchemaFilePaths"] = [
                    schema_path(path) for path in store["stateSchemaFilePaths"]
                ]

    return _edited(text, change, name)


def schema_paths(text: bytes, *, name: str) -> list[str]:
    """Return the paths of schema files that operator metadata names.

    Raises: FormatError: FORMAT_DAMAGED.
    """
    found: list[str] = []
    operator_metadata(text, 0, lambda path: found.append(path) or path, name=name)  # type: ignore[func-returns-value]
    return found


def source_log_offset(offsets: OffsetEntry, source: str) -> int | None:
    """Return the last entry of its own log that a file source had read.

    None if the source keeps no such log, or had read nothing.

    Args:
        source: its number or its name in the entry.
    """
    try:
        offset = json.loads(offsets.by_source.get(source, VOID_OFFSET))
    except ValueError:
        return None
    value = offset.get("logOffset") if isinstance(offset, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def last_source_log_offset(offsets: OffsetEntry, folder: str, folders: int) -> int | None:
    """Return an entry of a file source's own log up to which the source had read, or a later one.

    A source with a name has it for its folder, too. Else the offset log counts each place of a
    source in the query, and Spark makes one folder for a source that the query reads twice. So the
    number of a source may be higher than that of its folder. Of those that it may be the largest
    offset counts: what a log has beyond its offset, Spark reads in one batch; what it lacks, Spark
    reads again.

    Args:
        folder: name of the source's folder below `sources/`.
        folders: the highest number of a folder, plus one.
    Returns: None if none of them is a source with such a log that had read something.
    """
    if offsets.has_names:
        return source_log_offset(offsets, folder)
    if not is_number(folder):
        return None
    mine = int(folder)
    if offsets.version == "v1":
        further = max(0, len(offsets.sources) - folders)
        numbers = [str(number) for number in range(mine, mine + further + 1)]
    else:
        # A source that is read twice has the last of its numbers alone. So each number that is
        # left out may be that of a folder less.
        numbers = [n for at, n in enumerate(offsets.by_source) if at <= mine <= int(n)]
    found = (source_log_offset(offsets, number) for number in numbers)
    return max((offset for offset in found if offset is not None), default=None)


def _edited(text: bytes, change: Callable[[dict[str, Any]], None], name: str) -> bytes:
    """Return a log, a version line and a JSON object, after `change` changed the object.

    If the object stays equal, returns `text`, byte for byte.
    """
    try:
        version, _, body = text.decode("utf-8").partition("\n")
        value = json.loads(body)
        change(value)
        if value == json.loads(body):
            return text
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FormatError(f"{name}: damaged log of Spark", kind=ErrorKind.FORMAT_DAMAGED) from e
    return f"{version}\n{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}".encode()
