"""Makes new entries of Spark's logs from old ones: text in, text out. Source: Spark 4.3.0.

Every function takes `name`, the name of the file for messages, and raises FormatError
(FORMAT_DAMAGED) if the text is no such entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from millpond.errors import ErrorKind, FormatError
from millpond.spark.log_entries import SHUFFLE_PARTITIONS
from millpond.spark.metadata import LEFT_OUT

StateIds = Mapping[int, Sequence[Sequence[str]]]  # operator -> partition -> an id per store


def offsets_with_partitions(text: str, partitions: int, *, name: str) -> str:
    """Return the offset log entry `text` with another `spark.sql.shuffle.partitions`."""
    return offsets_with_conf(text, {SHUFFLE_PARTITIONS: str(partitions)}, name=name)


def offsets_left_out(text: str, before: str, *, name: str) -> str:
    """Return the offset log entry `text` changed so that its batch reads nothing.

    The new entry ends at the offsets of `before`, the entry of the batch before. A conf keeps the
    offsets that the batch was to read.
    """
    planned = json.dumps(text.split("\n")[2:], separators=(",", ":"), ensure_ascii=False)
    lines, sources = (
        offsets_with_conf(text, {LEFT_OUT: planned}, name=name).split("\n"),
        before.split("\n"),
    )
    return "\n".join([*lines[:2], *sources[2:]])


def offsets_as_planned(text: str, *, name: str) -> str | None:
    """Return an offset log entry as it was before `offsets_left_out`.

    Returns `text` if its batch was not left out. Returns None if the offsets are not kept: early
    versions of Millpond did not keep them.
    """
    lines, metadata = _parse(text, name)
    conf = metadata.get("conf")
    if not isinstance(conf, dict) or LEFT_OUT not in conf:
        return text
    try:
        sources = json.loads(conf.pop(LEFT_OUT))
    except (ValueError, TypeError) as e:
        raise FormatError(f"{name}: damaged conf {LEFT_OUT}", kind=ErrorKind.FORMAT_DAMAGED) from e
    if not isinstance(sources, list) or not all(isinstance(line, str) for line in sources):
        return None
    return "\n".join([lines[0], _dump(metadata), *sources])


def offsets_with_conf(text: str, values: Mapping[str, str], *, name: str) -> str:
    """Return the offset log entry `text` with these values of confs."""
    lines, metadata = _parse(text, name)
    conf = metadata.get("conf")
    if not isinstance(conf, dict):
        raise FormatError(f"{name}: has no conf", kind=ErrorKind.FORMAT_DAMAGED)
    conf.update(values)
    lines[1] = _dump(metadata)
    return "\n".join(lines)


def commit_without_state_ids(text: str, *, name: str) -> str:
    """Return the commit log entry `text` in the form of Spark checkpoint format 1."""
    lines, metadata = _parse(text, name)
    if metadata.pop("stateUniqueIds", None) is None and lines[0] != "v2":
        return text
    lines[0] = "v1" if lines[0] == "v2" else lines[0]  # from v3 on the version is about sinks
    lines[1] = _dump(metadata)
    return "\n".join(lines)


def commit_with_state_ids(text: str, ids: StateIds, *, name: str) -> str:
    """Return the commit log entry `text` with `ids` in place of its own ids of state versions.

    In Spark checkpoint format 1, which has no ids, returns `text`.
    """
    lines, metadata = _parse(text, name)
    if metadata.get("stateUniqueIds") is None:
        return text
    metadata["stateUniqueIds"] = {
        str(operator): [list(stores) for stores in partitions]
        for operator, partitions in sorted(ids.items())
    }
    lines[1] = _dump(metadata)
    return "\n".join(lines)


def operator_metadata_with_partitions(text: str, partitions: int, *, name: str) -> str:
    """Return operator metadata (version 2) with this number of state partitions."""
    lines, metadata = _parse(text, name)
    try:
        for store in metadata["stateStoreInfo"]:
            store["numPartitions"] = partitions
    except (KeyError, TypeError) as e:
        raise FormatError(
            f"{name}: not the operator metadata that Spark writes", kind=ErrorKind.FORMAT_DAMAGED
        ) from e
    lines[1] = _dump(metadata)
    return "\n".join(lines)


def _parse(text: str, name: str) -> tuple[list[str], dict[str, Any]]:
    lines = text.split("\n")
    try:
        metadata = json.loads(lines[1])
    except (IndexError, ValueError) as e:
        raise FormatError(f"{name}: damaged log of Spark", kind=ErrorKind.FORMAT_DAMAGED) from e
    if not isinstance(metadata, dict):
        raise FormatError(
            f"{name}: damaged log of Spark: no JSON object", kind=ErrorKind.FORMAT_DAMAGED
        )
    return lines, metadata


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
