"""Open a store at a version: key groups, partitions, and the restore plan, laid out locally."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from millpond import layout
from millpond._version import __version__
from millpond.agent.changelogs import make_directory
from millpond.agent.context import StoreContext
from millpond.changelog import ChangelogHeader
from millpond.config import DEFAULT_BACKEND
from millpond.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    error,
)
from millpond.format_file import CheckpointFormat, decode_format, encode_format
from millpond.ids import StoreId, VersionId
from millpond.json_fields import KeyGroupsInfo
from millpond.keygroups import KeyGroups, key_groups_for
from millpond.one_partition import lives_in_partition_0
from millpond.partition_keys import partition_key_rule
from millpond.restore.execute import LaidOut, LaidOutSources, lay_out, lay_out_sources
from millpond.restore.plan import Rejection, RestorePlan, empty_plan, plan_changes, plan_restore
from millpond.snapshot import local_ssts
from millpond.spark_metadata import OperatorInfo, SparkMetadata, read_spark_metadata
from millpond.store_files import StoreFiles
from millpond.unlisted import NeedsListing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the query is, as far as one store depends on it."""

    operator: OperatorInfo | None
    partitions: int
    key_groups: KeyGroups

    @property
    def operator_name(self) -> str:
        return self.operator.name if self.operator is not None else ""


def open_store(
    context: StoreContext,
    target: VersionId,
    *,
    local_dir: str,
    generation: int,
    excluded: tuple[str, ...] = (),
    load_empty: bool = False,
    snapshot: VersionId | None = None,
) -> dict[str, object]:
    """Return the restore plan of the protocol, with its RocksDB directory laid out.

    `snapshot`: the one to begin with; None: the newest that serves.

    Raises: MillpondError: of any kind that docs/design/0001-planes-and-protocol.md names for `open`.
    """
    rejections = {
        name: Rejection(name, ErrorKind.MANIFEST_DAMAGED, "the store found what it names damaged")
        for name in excluded
    }
    arguments = _Arguments(target, local_dir, generation, load_empty, snapshot)
    if context.directory is None and not excluded and snapshot is None:
        try:
            return _open(context, context.unlisted_files(local_dir), rejections, arguments)
        except NeedsListing as e:
            log.info("store %s: listing it, because %s", context.store, e)
    files = context.new_files()
    files.refresh()
    _refuse_foreign(context, files)
    return _open(context, files, rejections, arguments)


@dataclass(frozen=True, slots=True)
class _Arguments:
    target: VersionId
    local_dir: str
    generation: int
    load_empty: bool
    snapshot: VersionId | None


def _open(
    context: StoreContext,
    files: StoreFiles,
    rejections: dict[str, Rejection],
    arguments: _Arguments,
) -> dict[str, object]:
    started = time.monotonic()
    target, local_dir = arguments.target, arguments.local_dir
    metadata = context.spark_metadata()
    laid_out: LaidOut | LaidOutSources | None = None
    while True:
        plan = _plan(
            context, files, target, rejections, arguments.load_empty, metadata, arguments.snapshot
        )
        setting = _setting(context, files, plan, metadata)
        if plan.manifest is None:
            break
        name = files.manifest_name(plan.manifest.version_id)
        directory = os.path.join(local_dir, f"db-{arguments.generation}")
        try:
            laid_out = (
                lay_out_sources(context.storage, plan.manifest, directory, context.fetching)
                if plan.manifest.composed
                else lay_out(context.storage, plan.manifest, name, directory, context.fetching)
            )
            break
        except (FormatError, NotFoundError) as e:
            if not files.is_listed:
                raise NeedsListing(e) from e
            # An older snapshot with a longer chain makes the same state, if everything else is there.
            log.warning("store %s: passing over %s: %s", context.store, name, e)
            rejections[name] = Rejection(name, e.kind, str(e))
    for rejection in plan.rejected:
        log.warning("store %s: passed over %s: %s", context.store, rejection.name, rejection.reason)
    make_directory(context, context.staging_dir(local_dir))
    if isinstance(laid_out, LaidOut):
        with context.ssts_lock:
            known = local_ssts.load(local_dir)
            known.update({sst.identity: sst for sst in laid_out.ssts})
            local_ssts.save(local_dir, known.values())
    answer = _answer(
        context,
        files,
        plan,
        setting,
        _described(files, plan, laid_out, local_dir, arguments.generation),
        local_dir,
    )
    log.info(
        "store opened store=%s version=%d snapshot=%d changelogs=%d bytes=%s ms=%d",
        context.store,
        plan.target.version,
        plan.base.version,
        len(plan.headers),
        answer["restore_bytes"],
        (time.monotonic() - started) * 1000,
    )
    return answer


def _plan(
    context: StoreContext,
    files: StoreFiles,
    target: VersionId,
    rejections: dict[str, Rejection],
    load_empty: bool,
    metadata: SparkMetadata,
    snapshot: VersionId | None,
) -> RestorePlan:
    if load_empty:
        return empty_plan(VersionId(target.version))
    try:
        return plan_restore(
            files,
            target,
            excluded=rejections,
            retain_versions=context.retain_versions,
            snapshot=snapshot,
        )
    except NotFoundError as e:
        if files.is_listed and files.listing.is_empty:
            # With more partitions than the state was written for, the new ones have nothing: say why.
            recorded = _recorded_in_partition_0(context)
            if recorded is not None and context.store.partition >= recorded:
                raise _partitions_changed(
                    context, recorded, metadata.partitions or context.partitions_hint
                ) from e
        raise


def change_feed(
    context: StoreContext, start_version: int, target: VersionId, *, local_dir: str
) -> dict[str, list[dict[str, object]]]:
    """Return the answer of the protocol's `change_feed`: the changelogs of `start_version .. target.version`, readable locally.

    Raises: MillpondError: as `restore.plan.plan_changes`.
    """
    files = context.new_files()
    files.refresh()
    _refuse_foreign(context, files)
    headers = plan_changes(files, start_version, target, retain_versions=context.retain_versions)
    return {"changelogs": _fetch(context, files, headers, local_dir)[0]}


def _fetch(
    context: StoreContext, files: StoreFiles, headers: Iterable[ChangelogHeader], local_dir: str
) -> tuple[list[dict[str, object]], int]:
    """Make the changelogs readable locally. Return them as the protocol wants them, and their size in bytes."""
    changelogs: list[dict[str, object]] = []
    total_bytes = 0
    for header in headers:
        info = files.changelog_info(header.version_id)
        path = context.storage.local_path(info.key) or files.local_copy(header.version_id)
        if path is None:
            path = os.path.join(local_dir, info.key.rpartition("/")[2])
            context.storage.get_to_file(info.key, path)
        total_bytes += info.size_bytes
        changelogs.append({"version": header.version, "id": header.id, "path": path})
    return changelogs, total_bytes


def _described(
    files: StoreFiles,
    plan: RestorePlan,
    laid_out: LaidOut | LaidOutSources | None,
    local_dir: str,
    generation: int,
) -> dict[str, object] | None:
    """Return `db` of the answer: the disk tier to begin with, or what to put it together from."""
    manifest = plan.manifest
    if laid_out is None or manifest is None:
        return None
    db: dict[str, object] = {
        "dir": os.path.join(local_dir, f"db-{generation}"),
        "manifest": files.manifest_name(manifest.version_id),
        "version": manifest.version,
        "id": manifest.id,
        "keys": manifest.keys,
        "column_families": [family.to_json() for family in manifest.column_families],
    }
    if manifest.group_keys is not None:
        db["group_keys"] = list(manifest.group_keys)
    if isinstance(laid_out, LaidOutSources):
        db["sources"] = [
            {
                "dir": directory,
                "bytes": source.total_bytes,
                "slots": [list(pair) for pair in source.slots],
            }
            for directory, source in zip(laid_out.directories, manifest.sources, strict=True)
        ]
        db["changelogs"] = [
            {
                "version": changelog.version.version,
                "id": changelog.version.id,
                "path": path,
                "slots": [list(pair) for pair in changelog.slots],
            }
            for path, changelog in zip(laid_out.changelogs, manifest.changelogs, strict=True)
        ]
    return db


def _answer(
    context: StoreContext,
    files: StoreFiles,
    plan: RestorePlan,
    setting: Setting,
    db: dict[str, object] | None,
    local_dir: str,
) -> dict[str, object]:
    changelogs, restore_bytes = _fetch(context, files, plan.headers, local_dir)
    if plan.manifest is not None:
        restore_bytes += plan.manifest.total_bytes
    operator = setting.operator
    rule = partition_key_rule(
        setting.operator_name,
        context.store.name,
        "default",
        None,
        None,
        operator.state_variables if operator is not None else (),
    )
    return {
        "operator_name": setting.operator_name,
        "partitions": setting.partitions,
        "max_parallelism": setting.key_groups.max_parallelism,
        "base": setting.key_groups.base,
        "backend": _backend(context),
        "partition_key": rule.to_json(),
        "misplaced": _misplaced(plan),
        "staging_dir": context.staging_dir(local_dir),
        "version": plan.target.version,
        "id": plan.target.id,
        "db": db,
        "changelogs": changelogs,
        "snapshot_version": plan.base.version if plan.manifest is not None else 0,
        "lineage_base": plan.base.version,
        "lineage": list(plan.lineage),
        "restore_bytes": restore_bytes,
    }


def _backend(context: StoreContext) -> str:
    """What the session says, else what was chosen when the Spark checkpoint was made of a savepoint, else the default."""
    chosen = context.options["backend"]
    if chosen is None:
        stored = read_format(context)
        chosen = stored.backend if stored is not None else None
    return str(chosen or DEFAULT_BACKEND)


def _misplaced(plan: RestorePlan) -> str:
    """Why the rows of this version do not lie where their keys say; empty if they do."""
    last = plan.headers[-1] if plan.headers else plan.manifest
    return last.key_groups.reason if last is not None and not last.key_groups.scalable else ""


# ---- the query and its key groups ----------------------------------------------------------------------------------


def query_setting(context: StoreContext, version: int) -> Setting:
    """Return the setting from what is stored now, for the state at `version`. Raises: InvalidInputError: PARTITIONS_UNKNOWN."""
    metadata = context.spark_metadata()
    partitions = metadata.partitions or context.partitions_hint
    stored = read_format(context)
    if partitions is None or stored is None:
        raise _partitions_unknown(context)
    return Setting(
        metadata.operators.get(context.store.operator), partitions, stored.key_groups_at(version)
    )


def _setting(
    context: StoreContext, files: StoreFiles, plan: RestorePlan, metadata: SparkMetadata
) -> Setting:
    recorded = _recorded(plan)
    operator = metadata.operators.get(context.store.operator)
    # Without an offset log (a provider driven by a test) what is recorded is better than the session's value.
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
    key_groups = _key_groups(context, partitions, recorded, plan.target.version)
    key_groups.check_partitions(partitions)
    return Setting(operator, partitions, key_groups)


def _recorded(plan: RestorePlan) -> KeyGroupsInfo | None:
    """What the newest file that is restored says about its key groups."""
    if plan.headers:
        return plan.headers[-1].key_groups
    return plan.manifest.key_groups if plan.manifest is not None else None


def _check_recorded(context: StoreContext, version: int, recorded: int, partitions: int) -> None:
    """Raise PARTITIONS_CHANGED unless `version` is a past one, read from before a rescale."""
    metadata = read_spark_metadata(
        context.storage, batches=(version - 1,), operators=(context.store.operator,)
    )
    last = metadata.last_committed_batch
    is_past = last is not None and version <= last
    if not is_past or metadata.partitions_at(version) != recorded:
        raise _partitions_changed(context, recorded, partitions)


def _partitions_changed(context: StoreContext, recorded: int, partitions: int | None) -> Exception:
    return error(
        ErrorKind.PARTITIONS_CHANGED,
        f"store {context.store}: spark.sql.shuffle.partitions was changed by hand from {recorded} to {partitions}; the state "
        f"was written for {recorded} partitions, so rows would be looked for in the wrong one",
        hint=f"Put {recorded} back as spark.sql.shuffle.partitions into the newest file of <checkpoint>/offsets "
        "(and delete its .crc file).",
    )


def _partitions_unknown(context: StoreContext) -> Exception:
    return error(
        ErrorKind.PARTITIONS_UNKNOWN,
        f"store {context.store}: the number of state partitions is neither in <checkpoint>/offsets nor in the session",
    )


def _recorded_in_partition_0(context: StoreContext) -> int | None:
    """How many partitions the operator's state was written for, from the newest file of partition 0."""
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
    """Return what `millpond/format.json` says, None if it is not there. Raises: FormatError, UnsupportedError."""
    if context.checkpoint.format is not None:
        return context.checkpoint.format
    try:
        data = context.storage.read(layout.FORMAT_KEY)
    except NotFoundError:
        return None
    stored = decode_format(data)
    _remember_format(context, stored)
    return stored


def _remember_format(context: StoreContext, stored: CheckpointFormat) -> None:
    if context.directory is None:
        context.checkpoint.format = stored


def _key_groups(
    context: StoreContext, partitions: int, recorded: KeyGroupsInfo | None, version: int
) -> KeyGroups:
    """Return the checkpoint's key groups at `version`; the first store that opens writes them down."""
    option = context.options["maxParallelism"]
    requested = option if isinstance(option, int) else None
    stored = read_format(context)
    if stored is None:
        if recorded is not None:
            log.warning(
                "%s is missing and is written anew from what the state says", layout.FORMAT_KEY
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
            context.storage.put_bytes(layout.FORMAT_KEY, encode_format(stored), if_absent=True)
        except ConflictError:
            # Another executor was first: what it wrote rules, and is checked like any other.
            stored = decode_format(context.storage.read(layout.FORMAT_KEY))
        _remember_format(context, stored)
    if requested is not None and requested != stored.max_parallelism:
        raise InvalidInputError(
            f"maxParallelism is {requested}, but that of this Spark checkpoint is {stored.max_parallelism}",
            kind=ErrorKind.MAX_PARALLELISM_MISMATCH,
        )
    groups = stored.key_groups_at(version)
    if recorded is not None and (recorded.max_parallelism, recorded.base) != (
        groups.max_parallelism,
        groups.base,
    ):
        raise error(
            ErrorKind.FORMAT_DAMAGED,
            f"store {context.store} was written with max parallelism {recorded.max_parallelism} (base {recorded.base}), "
            f"but {layout.FORMAT_KEY} says {groups.max_parallelism} (base {groups.base})",
        )
    return groups


def _refuse_foreign(context: StoreContext, files: StoreFiles) -> None:
    foreign = files.listing.foreign
    if foreign and files.listing.is_empty:
        raise _foreign(context, foreign[0])
    if files.listing.changelogs and read_format(context) is None and files.has_foreign_changelog():
        raise _foreign(
            context, next(iter(files.listing.changelogs.values())).key.rpartition("/")[2]
        )


def _foreign(context: StoreContext, name: str) -> Exception:
    return error(
        ErrorKind.FOREIGN_CHECKPOINT,
        f"store {context.store} was written by another state store provider: it holds {name}",
    )
