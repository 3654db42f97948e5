"""What the entries of Spark's logs and the metadata of an operator say. Parses texts, without I/O.

    offsets/<batch>                  `v1`|`v2`, JSON (watermark, time, confs), a line per source
    commits/<batch>                  `v1`|`v2`|`v3`, JSON (watermark; from v2 on the state's ids)
    state/<op>/_metadata/metadata    operator metadata v1, written once (numPartitions goes stale)
    state/<op>/_metadata/v2/<batch>  operator metadata v2, one per run

Source: Spark 4.3.0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.format import spark_names
from millpond.model.ids import StoreId

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SOURCE_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

_OFFSET_LOG_VERSIONS = ("v1", "v2")
_COMMIT_LOG_VERSIONS = ("v1", "v2", "v3")


def is_number(source: str) -> bool:
    """Return whether this is the number of a source."""
    return source.isascii() and source.isdecimal()


def _place(source: str) -> tuple[int, str]:
    return (int(source), "") if is_number(source) else (sys.maxsize, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetEntry:
    """One entry of the offset log: what a micro-batch reads, and the confs that it pins."""

    batch: int
    watermark_ms: int
    timestamp_ms: int
    conf: Mapping[str, str]
    sources: tuple[str, ...]  # its lines of sources, as Spark wrote them
    version: str = "v1"  # of the log

    @property
    def by_source(self) -> dict[str, str]:
        """The offset of each source, as text, by its number or name, in the order of these.

        v1 has a line for each place of a source in the query. From v2 on a line is
        `<source>:<offset>`: the lines have no order, and a source that gave nothing yet has none.
        """
        found: dict[str, str] = {}
        for place, line in enumerate(self.sources):
            source, colon, offset = line.partition(":")
            named = self.version != "v1" and colon
            found[source if named else str(place)] = offset if named else line
        return dict(sorted(found.items(), key=lambda item: _place(item[0])))

    @property
    def has_names(self) -> bool:
        """Whether the job names its sources. A name may consist of digits."""
        return self.version != "v1" and (
            self.conf.get(SOURCE_NAMES) == "true"
            or not all(is_number(source) for source in self.by_source)
        )

    @property
    def numbers(self) -> int:
        """How many sources without names there are for certain: the highest number, plus one."""
        return max((int(source) + 1 for source in self.by_source if is_number(source)), default=0)

    @property
    def partitions(self) -> int | None:
        """Number of state partitions of this batch; None if a Spark before 2.4 wrote the entry."""
        text = self.conf.get(SHUFFLE_PARTITIONS, "").strip()  # Spark 3.5 wrote what the user did
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEntry:
    """One entry of the commit log."""

    batch: int
    watermark_ms: int
    # Operator -> partition -> an id per store. Empty in Spark checkpoint format 1.
    state_ids: Mapping[int, tuple[tuple[str, ...], ...]]
    has_state_ids: bool

    def ids_of(self, operator: int, partition: int) -> tuple[str, ...]:
        """Return the ids of one partition's stores.

        Empty if the batch had no such operator or partition.
        """
        partitions = self.state_ids.get(operator, ())
        return partitions[partition] if partition < len(partitions) else ()

    def id_of(self, store: StoreId, names: Sequence[str]) -> str | None:
        """Return the id of the version of one store; None if the entry does not tell it.

        A join has an id for each of its four stores. With column families it has one store, and
        one id.

        Args:
            names: the names of the operator's stores, in the order of its metadata.
        """
        ids = self.ids_of(store.operator, store.partition)
        if len(ids) == 1:
            return ids[0]
        return (
            ids[names.index(store.name)] if len(ids) == len(names) and store.name in names else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInfo:
    """One stateful operator, from its newest metadata."""

    name: str
    stores: tuple[str, ...]
    partitions: int | None  # when Spark wrote the metadata; the offset log knows better
    properties: Mapping[str, Any] = field(default_factory=dict)
    # Store -> absolute paths of its schema files. Only metadata v2 has them.
    schema_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Store -> how many key columns are the prefix, if it has one.
    prefix_columns: Mapping[str, int] = field(default_factory=dict)

    @property
    def state_variables(self) -> tuple[dict[str, Any], ...]:
        """`stateVariables` of transformWithState; empty for other operators."""
        variables = self.properties.get("stateVariables", [])
        return (
            tuple(v for v in variables if isinstance(v, dict))
            if isinstance(variables, list)
            else ()
        )


def parse_offsets(text: str, batch: int) -> OffsetEntry:
    """Parse `offsets/<batch>`. Raises: FormatError."""
    key = spark_names.offsets_key(batch)
    lines, metadata = _entry(text, key, _OFFSET_LOG_VERSIONS)
    if "nextBatchWatermarkMs" in metadata:
        raise damaged_log(key, "an entry of the commit log")
    conf = metadata.get("conf", {})
    if not isinstance(conf, dict):
        raise damaged_log(key, "conf is no JSON object")
    return OffsetEntry(
        batch=batch,
        watermark_ms=_int(metadata, "batchWatermarkMs", key),
        timestamp_ms=_int(metadata, "batchTimestampMs", key),
        conf={str(name): str(value) for name, value in conf.items()},
        sources=tuple(lines[2:]),
        version=lines[0],
    )


def parse_commit(text: str, batch: int) -> CommitEntry:
    """Parse `commits/<batch>`. Raises: FormatError."""
    key = spark_names.commits_key(batch)
    lines, metadata = _entry(text, key, _COMMIT_LOG_VERSIONS)
    if "batchWatermarkMs" in metadata:
        raise damaged_log(key, "an entry of the offset log")
    raw = metadata.get("stateUniqueIds")
    ids: dict[int, tuple[tuple[str, ...], ...]] = {}
    if raw is not None:
        try:
            ids = {
                int(op): tuple(tuple(str(i) for i in stores) for stores in parts)
                for op, parts in raw.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise damaged_log(
                key, "stateUniqueIds is no map of operators to lists of lists"
            ) from error
    return CommitEntry(
        batch=batch,
        watermark_ms=_int(metadata, "nextBatchWatermarkMs", key),
        state_ids=ids,
        # Only Spark checkpoint format 2 writes v2. A query without state then has an empty map.
        has_state_ids=raw is not None or lines[0] == "v2",
    )


def parse_operator_metadata(text: str, key: str) -> OperatorInfo:
    """Parse operator metadata, v1 or v2. Raises: FormatError."""
    lines = _lines(text, key, ("v1", "v2"))
    body = _json_object("".join(lines[1:]), key)
    try:
        stores = body["stateStoreInfo"]
        partitions = {int(store["numPartitions"]) for store in stores}
        properties = (
            json.loads(body["operatorPropertiesJson"]) if body.get("operatorPropertiesJson") else {}
        )
        return OperatorInfo(
            name=str(body["operatorInfo"]["operatorName"]),
            stores=tuple(str(store["storeName"]) for store in stores),
            partitions=max(partitions) if partitions else None,
            properties=properties if isinstance(properties, dict) else {},
            schema_paths={
                str(store["storeName"]): tuple(str(p) for p in store["stateSchemaFilePaths"])
                for store in stores
                if store.get("stateSchemaFilePaths")
            },
            prefix_columns={
                str(store["storeName"]): int(store["numColsPrefixKey"])
                for store in stores
                if store.get("numColsPrefixKey")
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged_log(key, "not the operator metadata that Spark writes") from error


def _entry(text: str, key: str, versions: tuple[str, ...]) -> tuple[list[str], dict[str, Any]]:
    """Return all lines of an entry of a log, and the JSON of its second one."""
    lines = _lines(text, key, versions)
    return lines, _json_object(lines[1], key) if len(lines) > 1 and lines[1].strip() else {}


def _lines(text: str, key: str, versions: tuple[str, ...]) -> list[str]:
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    version = lines[0].strip() if lines else ""
    if version in versions:
        lines[0] = version
        return lines
    if version.startswith("v") and version[1:].isdigit():
        raise UnsupportedError(
            f"{key}: log version {version} is newer than this version of millpond knows",
            kind=ErrorKind.FORMAT_TOO_NEW,
        )
    raise damaged_log(key, "no version in its first line")


def _json_object(text: str, key: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise damaged_log(key, f"no JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise damaged_log(key, "no JSON object")
    return value


def _int(metadata: dict[str, Any], name: str, key: str) -> int:
    value = metadata.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise damaged_log(key, f"{name} is no number")
    return value


def damaged_log(key: str, why: str) -> FormatError:
    """Return the error for a file of Spark's that cannot be read."""
    return FormatError(f"{key}: damaged log of Spark: {why}", kind=ErrorKind.FORMAT_DAMAGED)
