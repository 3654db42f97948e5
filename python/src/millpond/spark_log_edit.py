"""New entries of Spark's logs, made from old ones: text in, text out. Source: Spark 4.3.0."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from millpond.errors import ErrorKind, FormatError
from millpond.spark_metadata import LEFT_OUT, SHUFFLE_PARTITIONS

StateIds = Mapping[int, Sequence[Sequence[str]]]  # operator -> partition -> an id per store


def offsets_with_partitions(text: str, partitions: int, *, name: str) -> str:
    """Return an entry of the offset log that differs from `text` in `spark.sql.shuffle.partitions` alone.

    Raises: FormatError: FORMAT_DAMAGED: `text` is no such entry. `name` is the file's, for the message.
    """
    return offsets_with_conf(text, {SHUFFLE_PARTITIONS: str(partitions)}, name=name)


def offsets_left_out(text: str, before: str, *, name: str) -> str:
    """Return the entry `text` of the offset log as that of a batch that is left out: it reads nothing after the batch before it,
    whose entry is `before`. Raises: as above."""
    lines, sources = (
        offsets_with_conf(text, {LEFT_OUT: "true"}, name=name).split("\n"),
        before.split("\n"),
    )
    return "\n".join([*lines[:2], *sources[2:]])


def offsets_with_conf(text: str, values: Mapping[str, str], *, name: str) -> str:
    """Return an entry of the offset log in which these confs are pinned to these values. Raises: as above."""
    lines, metadata = _parse(text, name)
    conf = metadata.get("conf")
    if not isinstance(conf, dict):
        raise FormatError(f"{name}: has no conf", kind=ErrorKind.FORMAT_DAMAGED)
    conf.update(values)
    lines[1] = _dump(metadata)
    return "\n".join(lines)


def commit_without_state_ids(text: str, *, name: str) -> str:
    """Return an entry of the commit log as Spark checkpoint format 1 has it. Raises: FormatError: FORMAT_DAMAGED."""
    lines, metadata = _parse(text, name)
    if metadata.pop("stateUniqueIds", None) is None and lines[0] != "v2":
        return text
    lines[0] = "v1" if lines[0] == "v2" else lines[0]  # from v3 on the version is about sinks
    lines[1] = _dump(metadata)
    return "\n".join(lines)


def commit_with_state_ids(text: str, ids: StateIds, *, name: str) -> str:
    """Return an entry of the commit log with these ids of state versions in place of its own; in Spark checkpoint format 1
    (no ids) `text` itself. Raises: FormatError: FORMAT_DAMAGED."""
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
    """Return operator metadata (version 2) with this number of state partitions. Raises: FormatError: FORMAT_DAMAGED."""
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
