"""What a query must have after a committed batch (pure). Spark's metadata and logs say it, never
the files that happen to be there.

operators     in Spark checkpoint format 2 those whose ids the commit log lists; in format 1 those
              that have a file in `millpond/operators`
stores        those that the operator's metadata lists
partitions    as many as the batch's entry of the offset log says; one, if the operator has no
              partition key
entries       of the offset log and of the commit log, each without a gap
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millpond.errors import ErrorKind, MillpondError, error
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId
from millpond.model.partition_keys import lives_in_one_partition
from millpond.spark.log_entries import CommitEntry, OperatorInfo
from millpond.spark.metadata import SparkMetadata


@dataclass(frozen=True, slots=True)
class Lost:
    """An entry of one of Spark's logs that must be there but is not."""

    key: str
    batch: int
    why: str

    def error(self) -> MillpondError:
        """Return it as an error."""
        return error(ErrorKind.FORMAT_DAMAGED, f"{self.key} is not there, although {self.why}")


def operators_at(commit: CommitEntry, present: Collection[int]) -> tuple[int, ...]:
    """Return the operators that the state after `commit` must have.

    Args:
        present: operators that have a file or a record. They count where `commit` lists none.
    """
    return tuple(sorted(commit.state_ids or {*present}))


def left_behind(operator: int, commit: CommitEntry) -> MillpondError:
    """Return the error for an operator that has a folder, but no state after `commit`."""
    folder, record = layout.operator_dir(operator), layout.operator_record_key(operator)
    listed = commit.state_ids
    why = (
        f"{spark_names.commits_key(commit.batch)} lists no such operator"
        if listed
        else "it has no version above 1"
    )
    also = "" if listed else f", and {record} if it is there,"
    copy = (
        ""
        if listed
        else " If the job has the operator, its state is lost: restore the folder from a copy."
    )
    return error(
        ErrorKind.FORMAT_DAMAGED if listed else ErrorKind.CHANGELOG_MISSING,
        f"{folder} is there, and after batch {commit.batch} {why}: a job that was changed while its"
        " first batch failed leaves such a folder, and then Spark does not start the query again",
        hint=(
            f"If the job does not have operator {operator} any more, stop the query and move"
            f" {folder}{also} away.{copy}"
        ),
    )


def schema_keys(operator: int, info: OperatorInfo, store: str) -> tuple[str, ...]:
    """Return the keys of the schema files of a store. Raises: FormatError: UNSAFE_PATH."""
    paths = info.schema_paths.get(store, ())
    if paths:
        return tuple(spark_names.relative_state_schema(path, operator) for path in paths)
    return (spark_names.state_schema_key(StoreId(operator, 0, store)),)


def partitions_of(
    info: OperatorInfo, key_columns: Mapping[str, Sequence[str] | None], partitions: int | None
) -> int | None:
    """Return how many partitions of an operator hold state.

    Args:
        key_columns: of each store; None: not known, or the store has several column families.
        partitions: of the query; None: not known.
    Returns: None if the number is not known.
    """
    columns = {store: key_columns.get(store) for store in info.stores}
    return 1 if columns and lives_in_one_partition(info.name, columns) else partitions


def stores_of(operator: int, info: OperatorInfo, partitions: int) -> Iterator[StoreId]:
    """Yield the stores of an operator that holds state in this many partitions."""
    return (
        StoreId(operator, partition, name)
        for partition in range(partitions)
        for name in info.stores
    )


def check_ids(commit: CommitEntry, operator: int, partitions: int) -> None:
    """Check that the commit log lists ids for each partition of an operator, and no more.

    There are ids only in Spark checkpoint format 2.

    Raises: FormatError: FORMAT_DAMAGED. InvalidInputError: PARTITIONS_CHANGED.
    """
    key = spark_names.commits_key(commit.batch)
    if not commit.has_state_ids:
        return
    if operator not in commit.state_ids:
        raise error(ErrorKind.FORMAT_DAMAGED, f"{key}: no ids of operator {operator}")
    listed = len(commit.state_ids[operator])
    if listed != partitions:
        raise error(
            ErrorKind.PARTITIONS_CHANGED,
            f"{key} lists {listed} partitions of operator {operator}, and"
            f" {spark_names.offsets_key(commit.batch)} says that there are {partitions}",
        )


def check_written_for(
    store: StoreId, newest: ChangelogHeader | Manifest | None, batch: int, partitions: int
) -> None:
    """Check that the state of a store was written for this many partitions.

    Args:
        newest: what describes the store after the batch; None: it is empty.
    Raises: InvalidInputError: PARTITIONS_CHANGED.
    """
    if newest is not None and newest.key_groups.partitions != partitions:
        raise error(
            ErrorKind.PARTITIONS_CHANGED,
            f"{spark_names.offsets_key(batch)} says that there are {partitions} partitions, and"
            f" {layout.store_dir(store)} was written for {newest.key_groups.partitions} of them",
        )


def lost_entries(spark: SparkMetadata) -> Iterator[Lost]:
    """Yield the entries of Spark's logs that must be there but are not.

    Spark begins a batch when the one before is committed. It removes the oldest entries of both
    logs, several at once if it came late: first those of the offset log, then those of the commit
    log. A driver that is killed between leaves entries of the commit log whose batches are gone,
    and there may be gaps in these. To start, Spark needs the last two entries of the offset log. A
    restored query has one entry more in its offset log than in its commit log.
    """
    offsets, commits = spark.offset_batches, spark.commit_batches
    if not offsets and not commits:
        return
    committed = commits[-1] if commits else -1
    begun = offsets[-1] if offsets else -1
    needed = (committed, *(max(begun - 1, batch) for batch in commits[1:2])) if commits else (0,)
    first_offset = min(offsets[:1] + needed)
    for batch in range(first_offset, max(begun, committed) + 1):
        if batch not in spark.offset_batches:
            why = f"batch {batch} is committed" if batch in commits else f"batch {begun} was begun"
            yield Lost(spark_names.offsets_key(batch), batch, why)
    first_commit = min(commits[:1] + tuple(batch + 1 for batch in offsets[:1]))
    first_commit = max((*offsets[:1], first_commit))
    for batch in range(first_commit, max(begun, committed + 1)):
        if batch not in spark.commit_batches:
            yield Lost(spark_names.commits_key(batch), batch, f"batch {batch + 1} was begun")
