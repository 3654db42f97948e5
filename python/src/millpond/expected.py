"""What a query must have after a committed batch, from Spark's metadata and logs, never from what happens to lie there (pure).

operators     in Spark checkpoint format 2 those whose ids the commit log lists; in format 1 those of which `millpond/operators` has a file
stores        as the operator's metadata lists them
partitions    as the batch's entry of the offset log says; one, of an operator without a partition key
entries       of the offset log and of the commit log, each without a gap
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millpond import layout
from millpond.errors import ErrorKind, MillpondError, error
from millpond.ids import StoreId
from millpond.partition_keys import lives_in_one_partition
from millpond.restore.plan import RestorePlan
from millpond.spark_metadata import CommitEntry, OperatorInfo, SparkMetadata


@dataclass(frozen=True, slots=True)
class Lost:
    """An entry of one of Spark's logs that must be there and is not."""

    key: str
    batch: int
    why: str

    def error(self) -> MillpondError:
        """Return it as an error."""
        return error(ErrorKind.FORMAT_DAMAGED, f"{self.key} is not there, although {self.why}")


def operators_at(commit: CommitEntry, present: Collection[int]) -> tuple[int, ...]:
    """Return the operators that the state after `commit` must have.

    Args:
        present: those of which any file is there, or which are written down.
    """
    return tuple(sorted({*present, *commit.state_ids}))


def schema_keys(operator: int, info: OperatorInfo, store: str) -> tuple[str, ...]:
    """Return the keys of the schema files of a store. Raises: FormatError: UNSAFE_PATH."""
    paths = info.schema_paths.get(store, ())
    if paths:
        return tuple(layout.relative_state_schema(path, operator) for path in paths)
    return (layout.state_schema_key(StoreId(operator, 0, store)),)


def partitions_of(
    info: OperatorInfo, key_columns: Mapping[str, Sequence[str] | None], partitions: int | None
) -> int | None:
    """Return how many partitions of an operator hold state.

    Args:
        key_columns: of each of its stores; None: not known, or of several column families.
        partitions: of the query.
    """
    columns = {store: key_columns.get(store) for store in info.stores}
    return 1 if columns and lives_in_one_partition(info.name, columns) else partitions


def stores_of(operator: int, info: OperatorInfo, partitions: int) -> Iterator[StoreId]:
    """Yield the stores of an operator that holds state in so many partitions."""
    return (
        StoreId(operator, partition, name)
        for partition in range(partitions)
        for name in info.stores
    )


def check_ids(commit: CommitEntry, operator: int, partitions: int) -> None:
    """Raise unless the commit log lists ids for as many partitions of an operator as it has (Spark checkpoint format 2)."""
    key = layout.commits_key(commit.batch)
    if not commit.has_state_ids:
        return
    if operator not in commit.state_ids:
        raise error(ErrorKind.FORMAT_DAMAGED, f"{key}: no ids of operator {operator}")
    listed = len(commit.state_ids[operator])
    if listed != partitions:
        raise error(
            ErrorKind.PARTITIONS_CHANGED,
            f"{key} lists {listed} partitions of operator {operator}, and {layout.offsets_key(commit.batch)} says that there are "
            f"{partitions}",
        )


def check_written_for(store: StoreId, plan: RestorePlan, batch: int, partitions: int) -> None:
    """Raise InvalidInputError (PARTITIONS_CHANGED) unless the state of a store was written for so many partitions."""
    newest = plan.headers[-1] if plan.headers else plan.manifest
    if newest is not None and newest.key_groups.partitions != partitions:
        raise error(
            ErrorKind.PARTITIONS_CHANGED,
            f"{layout.offsets_key(batch)} says that there are {partitions} partitions, and {layout.store_dir(store)} was written "
            f"for {newest.key_groups.partitions} of them",
        )


def lost_entries(spark: SparkMetadata) -> Iterator[Lost]:
    """Yield the entries of Spark's logs that must be there and are not.

    Spark removes the oldest entries of both logs, first those of the offset log; it begins a batch when the one before is
    committed. A restored query has one entry of the offset log more than of the commit log.
    """
    offsets, commits = spark.offset_batches, spark.commit_batches
    if not offsets and not commits:
        return
    committed = commits[-1] if commits else -1
    begun = offsets[-1] if offsets else -1
    first_offset = min(offsets[:1] + commits[1:2] or (0,))
    for batch in range(first_offset, max(begun, committed) + 1):
        if batch not in spark.offset_batches:
            why = f"batch {batch} is committed" if batch in commits else f"batch {begun} was begun"
            yield Lost(layout.offsets_key(batch), batch, why)
    first_commit = min(commits[:1] + tuple(batch + 1 for batch in offsets[:1]))
    for batch in range(first_commit, max(begun, committed + 1)):
        if batch not in spark.commit_batches:
            yield Lost(layout.commits_key(batch), batch, f"batch {batch + 1} was begun")
