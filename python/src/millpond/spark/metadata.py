"""Reads what Spark recorded about a query in its logs. Writes nothing.

These are the query's id, and what `log_entries` parses. Each of them may be absent:
before the first batch, or if a test or the data source drives a provider. A file that is there but
unreadable is an error: Spark renames complete files into place, so no file is ever half written.
This module skips Hadoop's `.crc` sidecars and temporary files by name. Source: Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from millpond.errors import FormatError, MillpondError, NotFoundError, UnsupportedError
from millpond.format import layout, spark_names
from millpond.spark.log_entries import (
    SHUFFLE_PARTITIONS,
    CommitEntry,
    OffsetEntry,
    OperatorInfo,
    damaged_log,
    parse_commit,
    parse_offsets,
    parse_operator_metadata,
)
from millpond.storage.base import Storage
from millpond.storage.place import query_id_of

LEFT_OUT = "millpond.leftOut"  # a conf that Spark ignores
PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_ENCODING_FORMAT = "spark.sql.streaming.stateStore.encodingFormat"

_TRIES = 3  # a log may have entries that never have a partner, so not for ever
T = TypeVar("T")


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
        return newest.conf.get(PROVIDER_KEY) if newest is not None else None

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
    def repartition_left(self) -> int | None:
        """The batch that Spark's own repartition began and did not end: its entry is that of the
        last committed batch but for the number of partitions, so it reads nothing. None: there is
        no such batch. Needs both entries in `offsets`.

        Half a rescale of Millpond's looks alike, and has a journal.
        """
        committed, newest = self.last_committed_batch, self.last_batch
        if committed is None or newest != committed + 1:
            return None
        before, mine = self.offsets.get(committed), self.offsets.get(newest)
        if before is None or mine is None or before.partitions == mine.partitions:
            return None
        if before.by_source != mine.by_source:
            return None
        conf = {**before.conf, SHUFFLE_PARTITIONS: mine.conf.get(SHUFFLE_PARTITIONS, "")}
        alike = replace(before, batch=newest, conf=conf, sources=mine.sources)
        return newest if mine == alike else None

    def without_repartition(self) -> SparkMetadata:
        """Return what Spark had recorded before its repartition began `repartition_left`."""
        left = self.repartition_left
        if left is None:
            return self
        offsets = {batch: entry for batch, entry in self.offsets.items() if batch != left}
        return replace(self, offset_batches=self.offset_batches[:-1], offsets=offsets)

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


def is_avro(conf: Mapping[str, str]) -> bool:
    """Return whether the confs that an offset entry pins say that Spark writes state as Avro."""
    return conf.get(_ENCODING_FORMAT, "").lower() == "avro"


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
    for _ in range(_TRIES):
        unread: list[tuple[str, MillpondError]] = []
        found, listed = _read_logs(storage, batches, operators, None if damaged is None else unread)
        # A query that commits fast has removed all that was listed: what it has now counts.
        if found.kept_batches or not listed:
            break
    if damaged is not None:
        damaged += unread
    return found


def _read_logs(
    storage: Storage,
    batches: Collection[int] | None,
    operators: Collection[int] | None,
    damaged: list[tuple[str, MillpondError]] | None,
) -> tuple[SparkMetadata, int]:
    """Read Spark's logs once. Return what they say, and how many commits were listed."""
    # The commit log first. A batch of the commit log then has its entry in the offset log too, even
    # if it commits meanwhile.
    commit_batches = logged_batches(storage, spark_names.COMMITS_DIR)
    offset_batches = logged_batches(storage, spark_names.OFFSETS_DIR)
    listed = len(commit_batches)

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
        offset = read(spark_names.offsets_key(batch), partial(parse_offsets, batch=batch))
        if offset is not None:
            offsets[batch] = offset
    commits: dict[int, CommitEntry] = {}
    for batch in _wanted(commit_batches, batches):
        commit = read(spark_names.commits_key(batch), partial(parse_commit, batch=batch))
        if commit is not None:
            commits[batch] = commit
    offset_batches = [b for b in offset_batches if spark_names.offsets_key(b) not in gone]
    commit_batches = [b for b in commit_batches if spark_names.commits_key(b) not in gone]
    if operators is None:
        operators = _operators(storage)
    infos = {}
    for operator in operators:
        info = read_operator_info(storage, operator)
        if info is not None:
            infos[operator] = info
    result = SparkMetadata(
        query_id=read(spark_names.QUERY_METADATA_KEY, query_id_of),
        offset_batches=tuple(offset_batches),
        commit_batches=tuple(commit_batches),
        offsets=offsets,
        commits=commits,
        operators=infos,
    )
    return result, listed


def read_operator_info(storage: Storage, operator: int) -> OperatorInfo | None:
    """Return the newest metadata of one operator; None if there is none yet. Prefers v2 to v1."""
    prefix = spark_names.operator_metadata_v2_prefix(operator)
    newest = max((b for b in _names_as_batches(storage, prefix)), default=None)
    if newest is not None:
        text = _read_text(storage, f"{prefix}{newest}")
        if text is not None:
            return parse_operator_metadata(text, f"{prefix}{newest}")
    key = spark_names.operator_metadata_v1_key(operator)
    text = _read_text(storage, key)
    return None if text is None else parse_operator_metadata(text, key)


def logged_batches(storage: Storage, directory: str) -> list[int]:
    """Return the batches that have a file in a directory of Spark's, ascending. One listing.

    Args:
        directory: of a log, or of metadata by batch; without a slash at its end.
    """
    return sorted(_names_as_batches(storage, directory + "/"))


def newest_commit(storage: Storage) -> int:
    """Return the newest batch in the commit log; -1: there is none. One listing."""
    return max(_names_as_batches(storage, spark_names.COMMITS_DIR + "/"), default=-1)


def _names_as_batches(storage: Storage, prefix: str) -> list[int]:
    names = (info.key[len(prefix) :] for info in storage.list(prefix))
    return [batch for batch in map(spark_names.parse_batch, names) if batch is not None]


def _operators(storage: Storage) -> list[int]:
    found = set()
    prefix = layout.STATE_PREFIX
    for info in storage.list(prefix):
        operator = spark_names.parse_batch(info.key[len(prefix) :].partition("/")[0])
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
        raise damaged_log(key, "not UTF-8") from error
