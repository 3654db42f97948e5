"""What the query is, as far as one store depends on it: its partitions and its key groups.

The first store that opens writes the key groups to `millpond/format.json`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from millpond._version import __version__
from millpond.agent.context import StoreContext
from millpond.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    error,
)
from millpond.format import layout
from millpond.format.format_file import CheckpointFormat, decode_format, encode_format
from millpond.model.ids import StoreId
from millpond.model.json_fields import KeyGroupsInfo
from millpond.model.key_groups import KeyGroups, key_groups_for
from millpond.query.one_partition import lives_in_partition_0
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.metadata import SparkMetadata, read_spark_metadata
from millpond.storage import read_if_there
from millpond.store.files import StoreFiles
from millpond.store.restore.plan import RestorePlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """What one store needs to know about the query."""

    operator: OperatorInfo | None
    partitions: int
    key_groups: KeyGroups

    @property
    def operator_name(self) -> str:
        return self.operator.name if self.operator is not None else ""


def query_setting(context: StoreContext, version: int) -> Setting:
    """Return the setting for the state at `version`, from what is stored now.

    Raises: InvalidInputError: PARTITIONS_UNKNOWN.
    """
    metadata = context.spark_metadata()
    partitions = metadata.partitions or context.partitions_hint
    stored = read_format(context)
    if partitions is None or stored is None:
        raise _partitions_unknown(context)
    return Setting(
        metadata.operators.get(context.store.operator), partitions, stored.key_groups_at(version)
    )


def setting_of(
    context: StoreContext, files: StoreFiles, plan: RestorePlan, metadata: SparkMetadata
) -> Setting:
    """Return the setting of a store that is restored by `plan`.

    Raises: MillpondError: PARTITIONS_UNKNOWN, PARTITIONS_CHANGED, or a wrong `maxParallelism`.
    """
    recorded = _recorded(plan)
    operator = metadata.operators.get(context.store.operator)
    # Without an offset log (a test drives the provider) what the files record is better than the
    # session's value.
    partitions = metadata.partitions or (
        recorded.partitions if recorded is not None else context.partitions_hint
    )
    if partitions is None:
        raise _partitions_unknown(context)
    if (
        recorded is not None
        and recorded.partitions != partitions
        and not lives_in_partition_0(context.storage, context.store.operator, operator)
    ):
        _check_recorded(context, plan.target.version, recorded.partitions, partitions)
        partitions = recorded.partitions
    key_groups = _key_groups(context, partitions, recorded, plan.target.version, metadata)
    key_groups.check_partitions(partitions)
    return Setting(operator, partitions, key_groups)


def _recorded(plan: RestorePlan) -> KeyGroupsInfo | None:
    """Return the key groups that the newest restored file records."""
    if plan.headers:
        return plan.headers[-1].key_groups
    return plan.manifest.key_groups if plan.manifest is not None else None


def _check_recorded(context: StoreContext, version: int, recorded: int, partitions: int) -> None:
    """Refuse a version that is not from before a rescale. Raises: PARTITIONS_CHANGED."""
    metadata = read_spark_metadata(
        context.storage, batches=(version - 1,), operators=(context.store.operator,)
    )
    last = metadata.last_committed_batch
    is_past = last is not None and version <= last
    if not is_past or metadata.partitions_at(version) != recorded:
        raise partitions_changed(context, recorded, partitions)


def partitions_changed(context: StoreContext, recorded: int, partitions: int | None) -> Exception:
    """Return the error of a number of partitions that somebody changed by hand."""
    return error(
        ErrorKind.PARTITIONS_CHANGED,
        f"store {context.store}: spark.sql.shuffle.partitions was changed by hand from {recorded}"
        f" to {partitions}; the state was written for {recorded} partitions, so rows would be"
        " looked for in the wrong one",
        hint=(
            f"Put {recorded} back as spark.sql.shuffle.partitions into the newest file of"
            " <checkpoint>/offsets (and delete its .crc file)."
        ),
    )


def _partitions_unknown(context: StoreContext) -> Exception:
    return error(
        ErrorKind.PARTITIONS_UNKNOWN,
        f"store {context.store}: the number of state partitions is neither in <checkpoint>/offsets"
        " nor in the session",
    )


def recorded_in_partition_0(context: StoreContext) -> int | None:
    """Return how many partitions the operator's state was written for, by the newest file of
    partition 0; None: not known.
    """
    if context.store.partition == 0:
        return None
    files = StoreFiles(
        context.storage,
        StoreId(context.store.operator, 0, context.store.name),
        context.spark_format,
    )
    listing = files.refresh()
    try:
        if listing.changelogs:
            return files.header(max(listing.changelogs)).key_groups.partitions
        if listing.manifests:
            return files.read_manifest(max(listing.manifests)).key_groups.partitions
    except (FormatError, NotFoundError) as e:
        log.warning(
            "store %s: cannot tell for how many partitions it was written: %s", files.store, e
        )
    return None


def read_format(context: StoreContext) -> CheckpointFormat | None:
    """Return what `millpond/format.json` says; None if it is absent.

    Raises: FormatError, UnsupportedError.
    """
    if context.checkpoint.format is not None:
        return context.checkpoint.format
    data = read_if_there(context.storage, layout.FORMAT_KEY)
    if data is None:
        return None
    stored = decode_format(data)
    _remember_format(context, stored)
    return stored


def _remember_format(context: StoreContext, stored: CheckpointFormat) -> None:
    if context.directory is None:
        context.checkpoint.format = stored


def _key_groups(
    context: StoreContext,
    partitions: int,
    recorded: KeyGroupsInfo | None,
    version: int,
    metadata: SparkMetadata,
) -> KeyGroups:
    """Return the query's key groups at `version`. The first store that opens records them."""
    option = context.options["maxParallelism"]
    requested = option if isinstance(option, int) else None
    stored = read_format(context)
    left_behind = (
        stored is not None
        and stored.base != partitions
        and requested is None
        and recorded is None
        and version == 0
        and stored.created_ms < context.checkpoint.begun_ms
        and _is_unused(context, metadata)
    )
    if stored is None or left_behind:
        if recorded is not None:
            log.warning(
                "%s is missing: writing it again from what the state records", layout.FORMAT_KEY
            )
            groups = KeyGroups(recorded.max_parallelism, recorded.base)
        else:
            groups = key_groups_for(partitions, requested)
        stored = CheckpointFormat(
            max_parallelism=groups.max_parallelism,
            base=groups.base,
            created_by=f"millpond {__version__}",
            created_ms=time.time_ns() // 1_000_000,
        )
        try:
            # All stores of a run write the same over what a run before it left behind.
            context.storage.put_bytes(
                layout.FORMAT_KEY, encode_format(stored), if_absent=not left_behind
            )
        except ConflictError:
            # Another executor was first. What it wrote counts, and is checked like any other.
            stored = decode_format(context.storage.read(layout.FORMAT_KEY))
        _remember_format(context, stored)
    if requested is not None and requested != stored.max_parallelism:
        raise InvalidInputError(
            f"maxParallelism is {requested}, but that of this Spark checkpoint is"
            f" {stored.max_parallelism}",
            kind=ErrorKind.MAX_PARALLELISM_MISMATCH,
        )
    groups = stored.key_groups_at(version)
    if recorded is not None and (recorded.max_parallelism, recorded.base) != (
        groups.max_parallelism,
        groups.base,
    ):
        raise error(
            ErrorKind.FORMAT_DAMAGED,
            f"store {context.store} was written with max parallelism {recorded.max_parallelism}"
            f" (base {recorded.base}), but {layout.FORMAT_KEY} says {groups.max_parallelism} (base"
            f" {groups.base})",
        )
    return groups


def _is_unused(context: StoreContext, metadata: SparkMetadata) -> bool:
    """Return whether the query has neither begun a batch nor any state.

    In real-time mode Spark logs a batch when it ends. A first batch that is cut short leaves key
    groups for as many partitions as its run had, and the next run may have another number. A task
    of that run which opens a store late finds what the next one wrote, and leaves it.
    """
    return (
        metadata.last_batch is None
        and metadata.last_committed_batch is None
        and not any(
            isinstance(layout.file_of(info.key), layout.ChangelogFile | layout.ManifestFile)
            for info in context.storage.list(layout.STATE_PREFIX)
        )
    )
