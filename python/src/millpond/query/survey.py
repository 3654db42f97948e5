"""A survey of a Spark checkpoint: Spark's logs, Millpond's format file, the listing of every store.

Every look at a query begins with it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from millpond.errors import (
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
    error,
)
from millpond.format import layout, spark_names
from millpond.format.format_file import CheckpointFormat, decode_format
from millpond.model.ids import StoreId
from millpond.query.expected import (
    Lost,
    left_behind,
    lost_entries,
    operators_at,
    partitions_of,
    schema_keys,
)
from millpond.query.rescaling import left_by_spark, repartition_error, unfinished_rescale
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.metadata import SparkMetadata, read_operator_info, read_spark_metadata
from millpond.spark.state_schemas import key_columns, parse_schema_file
from millpond.storage import Storage
from millpond.store.files import Listing, add_to_listing, list_state

PROVIDER_PACKAGE = "org.apache.spark.sql.millpond."


@dataclass(slots=True)
class Survey:
    """What was found.

    Keeps the errors of single files, so that one damaged file does not hide the others.
    """

    stores: dict[StoreId, Listing] = field(default_factory=dict)
    spark: SparkMetadata | None = None
    operators: dict[int, OperatorInfo] = field(default_factory=dict)
    # Operator -> store -> key columns; None: not known, or the store has several column families.
    key_columns: dict[int, dict[str, tuple[str, ...] | None]] = field(default_factory=dict)
    format: CheckpointFormat | None = None  # None: damaged or missing
    spark_format: int = 1  # Spark's state store checkpoint format
    # What says that a rescale runs, or was interrupted; None: there is none.
    rescale: MillpondError | None = None
    # What says that Spark's own repartition did not end. The last committed batch is whole.
    repartition: MillpondError | None = None
    errors: list[tuple[str, MillpondError]] = field(default_factory=list)  # key, what is wrong
    lost: list[Lost] = field(default_factory=list)  # entries of Spark's logs
    # Operators that have a folder but are not part of the query any more -> the error that says so.
    left: dict[int, MillpondError] = field(default_factory=dict)

    def operator_ids(self) -> list[int]:
        """All operators that have a store or metadata, ascending."""
        return sorted({store.operator for store in self.stores} | set(self.operators))

    def sizes(self) -> dict[str, int]:
        """Sizes in bytes of all changelogs and SSTs that were listed, by key."""
        return {
            info.key: info.size_bytes
            for listing in self.stores.values()
            for info in (*listing.changelogs.values(), *listing.ssts.values())
        }

    def partitions_of(self, operator: int, batch: int) -> int | None:
        """Return how many partitions of an operator hold state after a batch; None: not known."""
        info, entry = (
            self.operators.get(operator),
            self.spark.offsets.get(batch) if self.spark is not None else None,
        )
        if info is None or entry is None:
            return None
        return partitions_of(info, self.key_columns.get(operator, {}), entry.partitions)


def survey(
    storage: Storage, checkpoint: str, *, foreign: bool = False, erasing: bool = False
) -> Survey:
    """List and read everything but the files of the stores.

    Args:
        checkpoint: name of the Spark checkpoint, for messages.
        foreign: also accept state that another provider wrote.
        erasing: also accept state from which a key is being erased.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT.
        UnsupportedError: FOREIGN_CHECKPOINT: another provider wrote the state.
        UnavailableError: the storage does not answer.
    """
    result = Survey()
    # Read the logs before the state: then all files of each committed batch are there. A later
    # batch may have only some of its files.
    result.spark = read_spark_metadata(storage, operators=(), damaged=result.errors)
    result.lost = list(lost_entries(result.spark))
    result.rescale = unfinished_rescale(storage, checkpoint)
    left = result.spark.repartition_left
    # A rescale that ended while its logs were read has no journal any more: look again.
    if left is not None and result.rescale is None and left_by_spark(storage) == left:
        result.repartition = repartition_error(left, result.spark.partitions, checkpoint)
    present: set[int] = set()
    for info in list_state(storage, layout.STATE_PREFIX):
        operator = layout.operator_of(info.key)
        if operator is not None:
            present.add(operator)
        parsed = layout.parse_key(info.key)
        if parsed is not None:
            add_to_listing(
                result.stores.setdefault(parsed.store, Listing()), parsed, info, parsed.store
            )
    # A directory that has only Spark's own files (schemas, say) is not a store of Millpond's.
    result.stores = {
        s: found
        for s, found in sorted(result.stores.items())
        if not found.is_empty or found.foreign
    }
    _read_format(storage, result, erasing)
    _leave_out_unlogged(result, present)
    _refuse_others(result, checkpoint, foreign)
    _leave_out(result, present, foreign)
    _read_operators(storage, result, present | _recorded_operators(storage, result.spark))
    if not foreign:
        _note_missing(result, present)
    # The commit log decides. Batch 0 may have been tried in the other format before: its files lie
    # beside those of the query.
    result.spark_format = result.spark.checkpoint_format or _format_of_names(result)
    return result


def _format_of_names(result: Survey) -> int:
    listings = result.stores.values()
    ids = any(version.id for found in listings for version in found.changelogs | found.manifests)
    return 2 if ids else 1


def _recorded_operators(storage: Storage, spark: SparkMetadata) -> set[int]:
    """Return the operators of which the query keeps a record. It keeps records where the commit log
    does not list operators.

    Returns none if an earlier version of Millpond began the query.
    """
    if spark.last_committed_batch is None or spark.checkpoint_format == 2:
        return set()
    recorded = (
        layout.parse_operator_record(info.key) for info in storage.list(layout.OPERATORS_PREFIX)
    )
    return {operator for operator in recorded if operator is not None}


def _read_operators(storage: Storage, result: Survey, present: set[int]) -> None:
    """Read what Spark wrote about its operators: about all that the last committed batch must have,
    and about others that have a file.
    """
    spark = result.spark
    commit = spark.last_commit if spark is not None else None
    for operator in sorted(present) if commit is None else operators_at(commit, present):
        try:
            info = read_operator_info(storage, operator)
        except MillpondError as e:
            _keep(result, _named_key(e, (layout.operator_dir(operator),)), e)
            continue
        if info is not None:
            result.operators[operator] = info
            if commit is not None:
                _read_schemas(storage, result, operator, info)
        elif commit is not None:
            key = spark_names.operator_metadata_dir(operator)
            result.errors.append((key, _gone(key, commit.batch, "which stores the operator has")))


def _leave_out_unlogged(result: Survey, present: set[int]) -> None:
    """Drop the lost entries of batches that neither log has, if the query keeps no state.

    With Spark's option `asyncProgressTrackingEnabled`, which takes no query with state, Spark logs
    a batch now and then, in both logs or in none.
    """
    damaged = any(key == layout.FORMAT_KEY for key, _ in result.errors)
    if present or result.format is not None or damaged or result.spark is None:
        return
    logged = {*result.spark.offset_batches, *result.spark.commit_batches}
    result.lost = [lost for lost in result.lost if lost.batch in logged]


def _leave_out(result: Survey, present: set[int], foreign: bool) -> None:
    """Drop the stores of operators that the last commit does not list, and note their folders.

    The commit log of Spark checkpoint format 1 lists no operators. There nobody knows whether an
    operator that stopped at its first version was dropped or lost: that is an error.
    """
    commit = result.spark.last_commit if result.spark is not None else None
    if commit is None:
        return
    if commit.state_ids:
        result.left = {
            operator: left_behind(operator, commit)
            for operator in present.difference(commit.state_ids)
        }
        result.stores = {
            s: found for s, found in result.stores.items() if s.operator not in result.left
        }
    elif commit.batch > 0 and not foreign:
        alive = {store.operator for store, listing in result.stores.items() if listing.newest > 1}
        stopped = sorted(present - alive) if alive else []
        result.errors += [
            (layout.operator_dir(operator), left_behind(operator, commit)) for operator in stopped
        ]


def _read_schemas(storage: Storage, result: Survey, operator: int, info: OperatorInfo) -> None:
    columns = result.key_columns.setdefault(operator, {})
    for store in info.stores:
        try:
            keys = schema_keys(operator, info, store)
        except MillpondError as e:
            result.errors.append((spark_names.operator_metadata_dir(operator), e))
            continue
        for key in keys:
            try:
                data = storage.read(key)
                columns[store] = key_columns(data, name=key)
                parse_schema_file(data, prefix_columns=info.prefix_columns.get(store, 0), name=key)
            except NotFoundError:
                assert result.spark is not None
                batch = result.spark.last_committed_batch or 0
                result.errors.append((key, _gone(key, batch, "which columns the state has")))
            except UnsupportedError:
                continue  # whoever needs the columns reports it
            except MillpondError as e:
                _keep(result, key, e)


def _gone(key: str, batch: int, what: str) -> MillpondError:
    return error(
        ErrorKind.FORMAT_DAMAGED,
        f"{key} is not there, although batch {batch} is committed: nothing tells {what}",
    )


def _note_missing(result: Survey, present: set[int]) -> None:
    """Note what else is missing that belongs to no single store."""
    spark = result.spark
    assert spark is not None
    written = bool(result.stores) or (bool(present) and bool(spark.commit_batches))
    if (
        result.format is None
        and written
        and not any(key == layout.FORMAT_KEY for key, _ in result.errors)
    ):
        e = error(
            ErrorKind.OBJECT_NOT_FOUND,
            f"{layout.FORMAT_KEY} is not there: nothing tells the key groups",
        )
        result.errors.append((layout.FORMAT_KEY, e))
    key = spark_names.QUERY_METADATA_KEY
    if (
        spark.query_id is None
        and spark.commit_batches
        and not any(key == damaged for damaged, _ in result.errors)
    ):
        e = _gone(key, spark.commit_batches[-1], "the id of the query")
        hint = (
            'Write it back from a copy: {"id": "<the id>"}. Or start the query: Spark gives it a'
            " new id, and a sink that knows the query by its id, as Delta's txnAppId, takes it for"
            " another one."
        )
        result.errors.append((key, type(e)(e.message, kind=e.kind, hint=hint)))
    if result.format is not None and not present and spark.commit_batches:
        key = layout.STATE_DIR
        result.errors.append(
            (key, _gone(key, spark.commit_batches[-1], "the state, which the query has"))
        )


def _keep(result: Survey, key: str, e: MillpondError) -> None:
    """Note an error that concerns one file. Raise others: an error of the storage concerns all."""
    if e.kind not in (ErrorKind.FORMAT_DAMAGED, ErrorKind.FORMAT_TOO_NEW, ErrorKind.UNSAFE_PATH):
        raise e
    result.errors.append((key, e))


def _named_key(e: MillpondError, directories: tuple[str, ...]) -> str:
    first = e.message.partition(": ")[0]
    return first if first.startswith(directories) else directories[0]


def _read_format(storage: Storage, result: Survey, erasing: bool) -> None:
    try:
        data = storage.read(layout.FORMAT_KEY)
        result.format = decode_format(data, name=layout.FORMAT_KEY, erasing=erasing)
    except NotFoundError:
        result.format = None
    except MillpondError as e:
        _keep(result, layout.FORMAT_KEY, e)


def how_to_adopt(checkpoint: str) -> str:
    """Return what a user does with a Spark checkpoint of Spark's own stores, to be pasted."""
    new = f"{checkpoint.rstrip('/')}-millpond"
    return (
        f"Stop the query and run: {shlex.join(['millpond', 'adopt', checkpoint, new])}; then start"
        " it on the new one. Or keep the provider with which it began."
    )


def _refuse_others(result: Survey, checkpoint: str, foreign: bool) -> None:
    damaged_format = any(key == layout.FORMAT_KEY for key, _ in result.errors)
    if result.format is not None or damaged_format:
        return
    spark = result.spark
    provider = spark.provider_class if spark is not None else None
    if not foreign and provider is not None and not provider.startswith(PROVIDER_PACKAGE):
        raise UnsupportedError(
            f"{checkpoint}: the state was written by {provider}, not by Millpond",
            kind=ErrorKind.FOREIGN_CHECKPOINT,
            hint=how_to_adopt(checkpoint),
        )
    if not foreign and any(listing.foreign for listing in result.stores.values()):
        raise UnsupportedError(
            f"{checkpoint}: the state was written by another provider",
            kind=ErrorKind.FOREIGN_CHECKPOINT,
            hint=how_to_adopt(checkpoint),
        )
    empty = spark is None or (spark.query_id is None and not spark.offset_batches)
    if empty and not result.stores and not result.errors:
        raise InvalidInputError(
            f"no checkpoint of a streaming query: {checkpoint}",
            kind=ErrorKind.NOT_A_CHECKPOINT,
        )
