"""Open a store at a version: key groups, partitions, and the restore plan, laid out locally."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from millpond.agent.changelogs import make_directory
from millpond.agent.context import StoreContext
from millpond.agent.pending import check_wanted
from millpond.agent.query_setting import (
    Setting,
    partitions_changed,
    read_format,
    recorded_in_partition_0,
    setting_of,
)
from millpond.config import DEFAULT_BACKEND
from millpond.errors import ErrorKind, FormatError, NotFoundError, error
from millpond.events import emit, shortened
from millpond.format.changelog import ChangelogHeader
from millpond.model.ids import VersionId
from millpond.model.partition_keys import PartitionKeyRule, partition_key_rule
from millpond.spark.metadata import SparkMetadata
from millpond.store import local_ssts
from millpond.store.by_name import NeedsListing
from millpond.store.files import StoreFiles
from millpond.store.restore.execute import LaidOut, LaidOutSources, lay_out, lay_out_sources
from millpond.store.restore.plan import (
    Rejection,
    RestorePlan,
    empty_plan,
    plan_changes,
    plan_restore,
)

log = logging.getLogger(__name__)


def open_store(
    context: StoreContext,
    target: VersionId,
    *,
    local_dir: str,
    generation: int,
    excluded: tuple[str, ...] = (),
    load_empty: bool = False,
    snapshot: VersionId | None = None,
    listed: bool = False,
) -> dict[str, object]:
    """Plan the restore of a version and bring its RocksDB files here.

    Args:
        excluded: names of manifests whose files the store found damaged.
        load_empty: position an empty state at the version, instead of restoring one.
        snapshot: begin with this snapshot and no other; None: with the newest usable one.
        listed: list the store's files first: a file that the last plan named proved damaged.
    Returns: the restore plan of the protocol.
    Raises: MillpondError: of the kinds that docs/design/0001-planes-and-protocol.md names for
        `open`.
    """
    rejections = {
        name: Rejection(name, ErrorKind.MANIFEST_DAMAGED, "the store found its files damaged")
        for name in excluded
    }
    arguments = _Arguments(target, local_dir, generation, load_empty, snapshot)
    if context.directory is None and not (excluded or listed) and snapshot is None:
        try:
            return _open(context, context.unlisted_files(local_dir), rejections, arguments)
        except (NeedsListing, FormatError) as e:
            log.info("store %s: listing it, because %s", context.store, e)
    files = context.new_files()
    listing = files.refresh()
    while True:
        _refuse_foreign(context, files)
        try:
            return _open(context, files, dict(rejections), arguments)
        except NotFoundError as e:
            # Another executor may have taken a snapshot since the listing, and deleted what only
            # older snapshots need. Then the new snapshot serves.
            before, listing = listing, files.refresh()
            if not before.lost(listing):
                raise
            log.info("store %s: planned once more, a collection came between: %s", context.store, e)


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
        setting = setting_of(context, files, plan, metadata)
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
            # An older snapshot with a longer chain makes the same state, if no file of these is
            # missing.
            log.info("store %s: passing over %s: %s", context.store, name, e)
            rejections[name] = Rejection(name, e.kind, e.message)
    context.distrusted = frozenset(rejections)
    for rejection in plan.rejected:
        emit(
            "snapshot_passed_over",
            **context.event_fields,
            version=target.version,
            manifest=rejection.name,
            error=rejection.kind.value,
            reason=shortened(rejection.reason),
        )
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
            # If there are more partitions than the state was written for, the new ones have no
            # files: say that.
            recorded = recorded_in_partition_0(context)
            if recorded is not None and context.store.partition >= recorded:
                raise partitions_changed(
                    context, recorded, metadata.partitions or context.partitions_hint
                ) from e
        raise


def change_feed(
    context: StoreContext, start_version: int, target: VersionId, *, local_dir: str
) -> dict[str, list[dict[str, object]]]:
    """Answer `change_feed`: make the changelogs of versions `start_version .. target.version`
    readable on this machine.

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
    """Make the changelogs readable on this machine.

    Returns: the changelogs as the protocol describes them; their size in bytes.
    """
    changelogs: list[dict[str, object]] = []
    total_bytes = 0
    still_wanted = check_wanted()
    for header in headers:
        info = files.changelog_info(header.version_id)
        path = context.storage.local_path(info.key) or files.local_copy(header.version_id)
        if path is None:
            still_wanted()
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
    """Return the answer's `db`: the disk tier to begin with, or the parts to make it from."""
    manifest = plan.manifest
    if laid_out is None or manifest is None:
        return None
    db: dict[str, object] = {
        "dir": os.path.join(local_dir, f"db-{generation}"),
        "manifest": files.manifest_name(manifest.version_id),
        "version": manifest.version,
        "id": manifest.id,
        "keys": manifest.keys,
        "created_ms": manifest.created_ms,
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
    return {
        "partitions": setting.partitions,
        "max_parallelism": setting.key_groups.max_parallelism,
        "base": setting.key_groups.base,
        "backend": _backend(context),
        "partition_key": _rule(context, plan, setting).to_json(),
        "misplaced": _misplaced(plan),
        "staging_dir": context.staging_dir(local_dir),
        "db": db,
        "changelogs": changelogs,
        "listed": files.is_listed,
        "lineage_base": plan.base.version,
        "lineage": list(plan.lineage),
        "restore_bytes": restore_bytes,
    }


def _rule(context: StoreContext, plan: RestorePlan, setting: Setting) -> PartitionKeyRule:
    """Return how a key leads to its key group. Rows are looked for by it, so it must be the rule by
    which they were written.

    Raises: FormatError: FORMAT_DAMAGED. UnsupportedError: FORMAT_TOO_NEW.
    """
    operator, last = setting.operator, plan.newest
    rule = partition_key_rule(
        setting.operator_name,
        context.store.name,
        "default",
        None,
        None,
        operator.state_variables if operator is not None else (),
    )
    if last is None:
        return rule
    if not last.key_groups.by_key:
        return PartitionKeyRule(kind="unknown", reason=last.key_groups.reason)
    if rule.kind != "unknown":
        return rule
    number = context.store.operator
    where = f"store {context.store}: its rows lie by their keys, and which columns count is lost"
    if operator is None:
        raise error(
            ErrorKind.FORMAT_DAMAGED,
            f"{where}: Spark's metadata of operator {number} is missing",
            hint=f"Restore <checkpoint>/state/{number}/_metadata from a copy or a savepoint.",
        )
    raise error(ErrorKind.FORMAT_TOO_NEW, f"{where}: {rule.reason}")


def _backend(context: StoreContext) -> str:
    """Return the backend: the session's, else the one that the Spark checkpoint remembers, else the
    default.
    """
    chosen = context.options["backend"]
    if chosen is None:
        stored = read_format(context)
        chosen = stored.backend if stored is not None else None
    return str(chosen or DEFAULT_BACKEND)


def _misplaced(plan: RestorePlan) -> str:
    """Return why a row of this version is not where its key belongs; "" if all are."""
    last = plan.newest
    return last.key_groups.reason if last is not None and not last.key_groups.scalable else ""


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
