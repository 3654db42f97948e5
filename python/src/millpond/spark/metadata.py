"""Reads what Spark recorded about a query in its logs. Writes nothing.

    metadata                         {"id": "<query id>"}
    offsets/<batch>                  `v1`|`v2`, JSON (watermark, time, confs), a line per source
    commits/<batch>                  `v1`|`v2`|`v3`, JSON (watermark; from v2 on the state's ids)
    state/<op>/_metadata/metadata    operator metadata v1, written once (numPartitions goes stale)
    state/<op>/_metadata/v2/<batch>  operator metadata v2, one per run

Each of them may be absent: before the first batch, or if a test or the data source drives a
provider. A file that is there but unreadable is an error: Spark renames complete files into place,
so no file is ever half written. This module skips Hadoop's `.crc` sidecars and temporary files by
name. Source: Spark 4.3.0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from millpond.errors import ErrorKind, FormatError, MillpondError, NotFoundError, UnsupportedError
from millpond.format import layout
from millpond.model.ids import StoreId
from millpond.storage.base import Storage
from millpond.storage.place import query_id_of

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
LEFT_OUT = "millpond.leftOut"  # a conf that Spark ignores
PROVIDER_CLASS = "spark.sql.streaming.stateStore.providerClass"
SOURCE_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
ENCODING_FORMAT = "spark.sql.streaming.stateStore.encodingFormat"

T = TypeVar("T")

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
        text = self.conf.get(SHUFFLE_PARTITIONS)
        return int(text) if text is not None and text.isdigit() else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkMetadata:
    """All that Spark recorded about a query."""

    query_id: str | None
    offset_batches: tuple[int, ...]  # ascending
    commit_batches: tuple[int, ...]  # ascending
    offsets: Mapping[int, OffsetEntry]  # those that the caller asked for, and the newest
    commits: Mapping[int, CommitEntry]  # those that the caller asked for, and the newest
    operators: Mapping[int, OperatorInfo]

    @property
    def last_batch(self) -> int | None:
        """The newest batch of the offset log, committed or not."""
        return self.offset_batches[-1] if self.offset_batches else None

    @property
    def last_committed_batch(self) -> int | None:
        """The newest batch of the commit log."""
        return self.commit_batches[-1] if self.commit_batches else None

    @property
    def kept_batches(self) -> tuple[int, ...]:
        """The committed batches to which both logs go back, ascending.

        Spark removes the oldest entries of the offset log first. A driver that is killed then
        leaves those of the commit log.
        """
        oldest = self.offset_batches[0] if self.offset_batches else 0
        return tuple(batch for batch in self.commit_batches if batch >= oldest)

    @property
    def last_commit(self) -> CommitEntry | None:
        """The newest entry of the commit log; None if there is none, or if it is damaged."""
        return self.commits.get(self.commit_batches[-1]) if self.commit_batches else None

    @property
    def newest_offsets(self) -> OffsetEntry | None:
        """The newest entry of the offset log."""
        return self.offsets[max(self.offsets)] if self.offsets else None

    @property
    def partitions(self) -> int | None:
        """Number of state partitions, from the newest offset entry."""
        newest = self.newest_offsets
        return newest.partitions if newest is not None else None

    @property
    def provider_class(self) -> str | None:
        """The state store provider that the newest offset entry pins."""
        newest = self.newest_offsets
        return newest.conf.get(PROVIDER_CLASS) if newest is not None else None

    @property
    def checkpoint_format(self) -> int | None:
        """The Spark checkpoint format (1 or 2) of the newest commit; None before the first one."""
        if not self.commits:
            return None
        return 2 if self.commits[max(self.commits)].has_state_ids else 1

    def was_left_out(self, batch: int) -> bool:
        """Return whether a rescale left out `batch`, because it had begun and not committed.

        Its entry of the commit log is then that of the batch before. Its entry of the offset log
        has a conf that says so. Early versions of Millpond wrote no such conf. There the rescale's
        own entry of the offset log, which comes next, tells: it differs in more than the number of
        partitions.
        """
        mine, following = self.offsets.get(batch), self.offsets.get(batch + 1)
        if mine is not None and LEFT_OUT in mine.conf:
            return True
        if mine is None or following is None or mine.partitions == following.partitions:
            return False
        return (mine.watermark_ms, mine.timestamp_ms, mine.sources) != (
            following.watermark_ms,
            following.timestamp_ms,
            following.sources,
        )

    @property
    def without_rows(self) -> frozenset[int]:
        """The committed batches without rows: a rescale used their numbers, or left them out.

        Only the entries in `offsets` count.
        """
        rescales = {
            batch
            for batch, entry in self.offsets.items()
            if (before := self.offsets.get(batch - 1)) is not None
            and before.partitions != entry.partitions
        }
        return frozenset(rescales | {batch for batch in self.offsets if self.was_left_out(batch)})

    def partitions_at(self, version: int) -> int | None:
        """Return the number of state partitions of state version `version`.

        Batch `version - 1` writes that version, and its offset entry tells the number. If `offsets`
        lacks that entry (the batch is still to come, or its entry is gone or was not read), the
        newest entry tells.
        """
        entry = self.offsets.get(version - 1)
        return (
            entry.partitions
            if entry is not None and entry.partitions is not None
            else self.partitions
        )


def read_spark_metadata(
    storage: Storage,
    *,
    batches: Collection[int] | None = None,
    operators: Collection[int] | None = None,
    damaged: list[tuple[str, MillpondError]] | None = None,
) -> SparkMetadata:
    """Read Spark's logs below the root of `storage`.

    Args:
        batches: the entries of the two logs to read, beside the newest; None: all.
        operators: the operators whose metadata to read; None: all that have a directory.
        damaged: if given, this function does not raise for an unreadable file. It leaves the file
            out, and appends the key and the error.
    Raises:
        FormatError: FORMAT_DAMAGED: a log is there but unreadable.
        UnsupportedError: FORMAT_TOO_NEW: Spark 4.3 does not write this version of a log.
        UnavailableError: the storage fails.
    """
    # The commit log first. A batch of the commit log then has its entry in the offset log too, even
    # if it commits meanwhile.
    commit_batches = logged_batches(storage, layout.COMMITS_DIR)
    offset_batches = logged_batches(storage, layout.OFFSETS_DIR)

    gone: set[str] = set()  # keys of what Spark has removed since it was listed

    def read(key: str, parse: Callable[[str], T]) -> T | None:
        try:
            text = _read_text(storage, key)
            if text is None:
                gone.add(key)
                return None
            return parse(text)
        except (FormatError, UnsupportedError) as e:
            if damaged is None:
                raise
            damaged.append((key, e))
            return None

    offsets: dict[int, OffsetEntry] = {}
    for batch in _wanted(offset_batches, batches):
        offset = read(layout.offsets_key(batch), partial(parse_offsets, batch=batch))
        if offset is not None:
            offsets[batch] = offset
    commits: dict[int, CommitEntry] = {}
    for batch in _wanted(commit_batches, batches):
        commit = read(layout.commits_key(batch), partial(parse_commit, batch=batch))
        if commit is not None:
            commits[batch] = commit
    offset_batches = [b for b in offset_batches if layout.offsets_key(b) not in gone]
    commit_batches = [b for b in commit_batches if layout.commits_key(b) not in gone]
    if operators is None:
        operators = _operators(storage)
    infos = {}
    for operator in operators:
        info = read_operator_info(storage, operator)
        if info is not None:
            infos[operator] = info
    return SparkMetadata(
        query_id=read(layout.QUERY_METADATA_KEY, query_id_of),
        offset_batches=tuple(offset_batches),
        commit_batches=tuple(commit_batches),
        offsets=offsets,
        commits=commits,
        operators=infos,
    )


def read_operator_info(storage: Storage, operator: int) -> OperatorInfo | None:
    """Return the newest metadata of one operator; None if there is none yet. Prefers v2 to v1."""
    prefix = layout.operator_metadata_v2_prefix(operator)
    newest = max((b for b in _names_as_batches(storage, prefix)), default=None)
    if newest is not None:
        text = _read_text(storage, f"{prefix}{newest}")
        if text is not None:
            return parse_operator_metadata(text, f"{prefix}{newest}")
    key = layout.operator_metadata_v1_key(operator)
    text = _read_text(storage, key)
    return None if text is None else parse_operator_metadata(text, key)


def parse_offsets(text: str, batch: int) -> OffsetEntry:
    """Parse `offsets/<batch>`. Raises: FormatError."""
    key = layout.offsets_key(batch)
    lines = _lines(text, key, _OFFSET_LOG_VERSIONS)
    metadata = _json_object(lines[1], key) if len(lines) > 1 and lines[1].strip() else {}
    if "nextBatchWatermarkMs" in metadata:
        raise _damaged(key, "an entry of the commit log")
    conf = metadata.get("conf", {})
    if not isinstance(conf, dict):
        raise _damaged(key, "conf is no JSON object")
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
    key = layout.commits_key(batch)
    lines = _lines(text, key, _COMMIT_LOG_VERSIONS)
    metadata = _json_object(lines[1], key) if len(lines) > 1 and lines[1].strip() else {}
    if "batchWatermarkMs" in metadata:
        raise _damaged(key, "an entry of the offset log")
    raw = metadata.get("stateUniqueIds")
    ids: dict[int, tuple[tuple[str, ...], ...]] = {}
    if raw is not None:
        try:
            ids = {
                int(op): tuple(tuple(str(i) for i in stores) for stores in parts)
                for op, parts in raw.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise _damaged(
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
        raise _damaged(key, "not the operator metadata that Spark writes") from error


def logged_batches(storage: Storage, directory: str) -> list[int]:
    """Return the batches that have a file in a directory of Spark's, ascending. One listing.

    Args:
        directory: of a log, or of metadata by batch; without a slash at its end.
    """
    return sorted(_names_as_batches(storage, directory + "/"))


def _names_as_batches(storage: Storage, prefix: str) -> list[int]:
    names = (info.key[len(prefix) :] for info in storage.list(prefix))
    return [batch for batch in map(layout.parse_batch, names) if batch is not None]


def _operators(storage: Storage) -> list[int]:
    found = set()
    prefix = layout.STATE_DIR + "/"
    for info in storage.list(prefix):
        operator = layout.parse_batch(info.key[len(prefix) :].partition("/")[0])
        if operator is not None:
            found.add(operator)
    return sorted(found)


def _wanted(present: list[int], asked: Collection[int] | None) -> list[int]:
    if asked is None:
        return present
    return [batch for batch in present if batch in asked or batch == present[-1]]


def _read_text(storage: Storage, key: str) -> str | None:
    try:
        return storage.read(key).decode("utf-8")
    except NotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise _damaged(key, "not UTF-8") from error


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
    raise _damaged(key, "no version in its first line")


def _json_object(text: str, key: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _damaged(key, f"no JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise _damaged(key, "no JSON object")
    return value


def _int(metadata: dict[str, Any], name: str, key: str) -> int:
    value = metadata.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _damaged(key, f"{name} is no number")
    return value


def _damaged(key: str, why: str) -> FormatError:
    return FormatError(f"{key}: damaged log of Spark: {why}", kind=ErrorKind.FORMAT_DAMAGED)
