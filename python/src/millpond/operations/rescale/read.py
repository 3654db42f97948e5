"""Reads what a rescale starts from: Spark's logs, and how each store is restored at the last
committed batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError, NotFoundError, UnsupportedError, error
from millpond.format import layout, spark_names
from millpond.format.format_file import CheckpointFormat, decode_format
from millpond.model.ids import StoreId, VersionId, valid_id
from millpond.operations.rescale.plan import OldStore
from millpond.query.from_checkpoint import Plans
from millpond.query.one_partition import lives_in_partition_0
from millpond.query.survey import PROVIDER_PACKAGE, how_to_adopt
from millpond.spark.log_edit import operator_metadata_with_partitions
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.metadata import SparkMetadata, read_spark_metadata
from millpond.storage import Storage
from millpond.store.files import StoreFiles, list_state
from millpond.store.restore.plan import RestorePlan, plan_restore


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A Spark checkpoint before a rescale."""

    spark: SparkMetadata
    format: CheckpointFormat
    spark_format: int
    committed: int  # last committed batch
    started: int  # last batch of the offset log
    partitions: int
    stores: dict[int, dict[str, list[OldStore]]]  # operator -> store name -> by partition, from 0
    single: frozenset[int]  # operators whose state lies in partition 0 alone
    # Keys of changelogs and manifests that no committed batch has.
    stale: tuple[str, ...]
    # Operator -> its store names, in the order in which the commit log lists their ids.
    names: dict[int, tuple[str, ...]]


def read_before(storage: Storage, root: str, plans: Plans) -> Before:
    """Read the Spark checkpoint at `root` (its name, for messages). A batch that Spark's own
    repartition left counts as not there.

    Args:
        plans: how stores are restored, as far as somebody has planned it; one that is not of the
            last committed batch is not used.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, PARTITIONS_UNKNOWN. NotFoundError: BATCH_NOT_COMMITTED:
            no batch ever was.
        UnsupportedError: FOREIGN_CHECKPOINT.
        FormatError, NotFoundError: what a restore of the last committed batch would raise.
    """
    spark = read_spark_metadata(storage).without_repartition()
    checkpoint_format = _format(storage, spark, root)
    committed, started = spark.last_committed_batch, spark.last_batch
    if committed is None or started is None or committed not in spark.offsets:
        raise NotFoundError(
            f"{root}: no committed batch",
            kind=ErrorKind.BATCH_NOT_COMMITTED,
            hint="Start the query once, so that it commits its first batch, and stop it.",
        )
    partitions = spark.offsets[committed].partitions
    if partitions is None:
        raise error(
            ErrorKind.PARTITIONS_UNKNOWN,
            f"{spark_names.offsets_key(committed)} does not say how many partitions",
        )
    spark_format = spark.checkpoint_format or 1
    present: dict[int, dict[str, set[int]]] = {}
    stale: list[str] = []
    for file in list_state(storage, layout.STATE_PREFIX):
        parsed = layout.parse_key(file.key)
        if parsed is not None and parsed.file is not None:
            found = present.setdefault(parsed.store.operator, {}).setdefault(
                parsed.store.name, set()
            )
            found.add(parsed.store.partition)
            if _is_stale(parsed.file, committed):
                stale.append(file.key)
    stores: dict[int, dict[str, list[OldStore]]] = {}
    names: dict[int, tuple[str, ...]] = {}
    alone: set[int] = set()
    for operator, by_name in sorted(present.items()):
        info = spark.operators.get(operator)
        names[operator] = store_names(info, by_name)
        listed = info.stores if info is not None else names[operator]
        single = lives_in_partition_0(storage, operator, info)
        if single:
            alone.add(operator)
        stores[operator] = {
            name: [
                _old_store(
                    storage,
                    spark,
                    spark_format,
                    committed,
                    StoreId(operator, p, name),
                    listed,
                    plans,
                )
                for p in range(1 if single else partitions)
            ]
            for name in by_name
        }
    return Before(
        spark=spark,
        format=checkpoint_format,
        spark_format=spark_format,
        committed=committed,
        started=started,
        partitions=partitions,
        stores=stores,
        single=frozenset(alone),
        stale=tuple(stale),
        names=names,
    )


def _is_stale(file: layout.StoreFile, committed: int) -> bool:
    """Whether a file is of a version that no batch committed.

    A batch that was killed left it, or one that somebody went back from. In Spark checkpoint
    format 1 a restore would take the file for the version in its name. In format 2 the id tells a
    restore, but the file has the key groups before the rescale in a version after it.
    """
    if not isinstance(file, layout.ChangelogFile | layout.ManifestFile):
        return False
    return file.version.version > committed + 1


def _format(storage: Storage, spark: SparkMetadata, root: str) -> CheckpointFormat:
    try:
        return decode_format(storage.read(layout.FORMAT_KEY))
    except NotFoundError as e:
        provider = spark.provider_class
        if provider is not None and not provider.startswith(PROVIDER_PACKAGE):
            raise UnsupportedError(
                f"{root}: the state was written by {provider}, not by Millpond",
                kind=ErrorKind.FOREIGN_CHECKPOINT,
                hint=how_to_adopt(root),
            ) from e
        raise InvalidInputError(
            f"no checkpoint of a streaming query with Millpond's state: {root}",
            kind=ErrorKind.NOT_A_CHECKPOINT,
        ) from e


def store_names(info: OperatorInfo | None, present: dict[str, set[int]]) -> tuple[str, ...]:
    """Return an operator's stores in the order of the ids in the commit log.

    That is the order of its metadata.
    """
    if info is not None and set(info.stores) >= set(present):
        return tuple(name for name in info.stores if name in present)
    return tuple(sorted(present))


def _old_store(
    storage: Storage,
    spark: SparkMetadata,
    spark_format: int,
    committed: int,
    store: StoreId,
    names: Sequence[str],
    plans: Plans,
) -> OldStore:
    target = VersionId(committed + 1)
    if spark_format >= 2:
        target = VersionId(committed + 1, _recorded_id(spark, committed, store, names))
    planned = plans.get(store)
    if planned is not None and _is_of(planned[1], target):
        files, plan = planned
    else:
        files = StoreFiles(storage, store, spark_format)
        files.refresh()
        plan = plan_restore(files, target)
    changelogs = {}
    for header in plan.headers:
        info = files.changelog_info(header.version_id)
        changelogs[header.version] = (info.key.rpartition("/")[2], info.size_bytes)
    return OldStore(store=store, plan=plan, changelog_files=changelogs)


def _is_of(plan: RestorePlan, target: VersionId) -> bool:
    """Whether a plan restores `target`. In Spark checkpoint format 1 the file says the id."""
    return plan.target.version == target.version and target.id in ("", plan.target.id)


def operator_metadata(
    storage: Storage, operator: int, committed: int, partitions: int
) -> bytes | None:
    """Return the metadata of version 2 with which the last committed batch ran, with another number
    of partitions.

    A newer one is of a batch that was begun, perhaps by another job. It counts only if there is no
    other. None: there is only version 1. Spark writes that once, and nobody trusts it.
    """
    prefix = spark_names.operator_metadata_v2_prefix(operator)
    named = (spark_names.parse_batch(info.key[len(prefix) :]) for info in storage.list(prefix))
    batches = [batch for batch in named if batch is not None]
    newest = max((b for b in batches if b <= committed), default=max(batches, default=None))
    if newest is None:
        return None
    key = f"{prefix}{newest}"
    return operator_metadata_with_partitions(
        storage.read(key).decode("utf-8"), partitions, name=key
    ).encode("utf-8")


def _recorded_id(spark: SparkMetadata, committed: int, store: StoreId, names: Sequence[str]) -> str:
    found = spark.commits[committed].id_of(store, names)
    if found is None:
        raise error(
            ErrorKind.FORMAT_DAMAGED,
            f"{spark_names.commits_key(committed)} names no state version of store {store}",
        )
    if not valid_id(found):
        raise error(
            ErrorKind.FOREIGN_CHECKPOINT,
            f"{spark_names.commits_key(committed)} names the state of store {store} by an id that"
            " Millpond did not make",
        )
    return found
