"""Carry out collections: expire files of the store that asks, and sweep its operator if this store
is the one that sweeps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millpond.agent.context import CheckpointContext, StoreContext
from millpond.errors import ErrorKind, MillpondError, NotFoundError
from millpond.events import emit
from millpond.format import layout, spark_names
from millpond.format.sealed import seal, unseal
from millpond.model.ids import DEFAULT_STORE, VersionId
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import ObjectInfo, is_there
from millpond.storage.growing import drop_unfinished
from millpond.store.collection import announcements, pins, plan
from millpond.store.collection.survey import CACHEABLE_AGE_MS, Marks, Survey, survey
from millpond.store.committed import is_committed
from millpond.store.files import read_listing

log = logging.getLogger(__name__)

_CANDIDATES_KIND = "gc"
# An upload that nobody finished for this long has no writer any more. If it has one, its commit or
# its snapshot sends the file again.
UNFINISHED_MS = 86_400_000
_DROP_EACH_MS = 3_600_000  # to look for them costs a listing


@dataclass(slots=True)
class _Done:
    """What a collection has deleted so far, and what stood in its way."""

    files: int = 0
    size_bytes: int = 0
    problems: list[MillpondError] = field(default_factory=list)

    def add(self, infos: Iterable[ObjectInfo]) -> None:
        for info in infos:
            self.files += 1
            self.size_bytes += info.size_bytes


def collect(
    context: StoreContext, anchor: VersionId, *, force: bool, now_ms: int
) -> dict[str, object]:
    """Delete what no retained version of this store needs. Sweep its operator if it is the store
    that sweeps.

    Args:
        anchor: the newest version that Spark asked for; proves what is committed.
        force: ignore the interval between collections, but not the grace period.
        now_ms: since the epoch.
    Returns: `deleted_files` and `deleted_bytes`; `problem`, as the `error` of an answer, if
        something could not be looked at, or not be deleted, and the rest was done.
    Raises: UnavailableError: the storage does not answer. What is deleted stays deleted; the next
        collection continues.
    """
    interval_ms = context.option_int("gc.intervalMs")
    if not force and not _is_over(interval_ms, context.last_collect_ms, now_ms):
        return {"deleted_files": 0, "deleted_bytes": 0}
    # At once: if few batches are retained, Spark soon removes the entry that proves it.
    proven = anchor.version > 0 and _is_proven(context, anchor)
    pinned = context.checkpoint.pins.read(context.storage, now_ms=now_ms)
    known = anchor if proven else None
    done = _Done()
    _expire(context, known, pinned, done, now_ms)
    context.last_collect_ms = now_ms
    if _sweeps(context):
        _sweep_now_and_then(context, known, pinned, done, force, interval_ms, now_ms)
    if done.files:
        emit(
            "files_deleted",
            **context.event_fields,
            version=anchor.version,
            files=done.files,
            bytes=done.size_bytes,
        )
    answer: dict[str, object] = {
        "deleted_files": done.files,
        "deleted_bytes": done.size_bytes,
    }
    for e in done.problems[:1]:
        answer["problem"] = {"kind": e.kind.value, "message": e.message, "hint": e.hint}
    return answer


def _is_over(interval_ms: int, since_ms: int, now_ms: int) -> bool:
    """Whether an interval is over. A clock that was set back must not make it last for days."""
    return not 0 <= now_ms - since_ms < interval_ms


def _expire(
    context: StoreContext,
    anchor: VersionId | None,
    pinned: frozenset[str],
    done: _Done,
    now_ms: int,
) -> None:
    """Delete what no retained version of the store needs.

    Args:
        anchor: the commit log named it at `now_ms` or later. None: nobody knows what is committed.
    """
    if anchor is None:
        return
    if context.collect_files is None:
        context.collect_files = context.new_files()
    files = context.collect_files
    files.refresh()
    expiry = plan.plan_expiry(
        files,
        anchor,
        retain_versions=context.retain_versions,
        grace_ms=context.option_int("gc.graceMs"),
        now_ms=now_ms,
        pinned=pinned,
    )
    files.forget_young(now_ms - CACHEABLE_AGE_MS)
    if expiry.problem is not None:
        # An executor that lost the store to another one misses what that one has collected. Spark
        # soon tells it to let go.
        newest = max((version.version for version in files.listing.changelogs), default=0)
        lost = newest > anchor.version + 1
        level = logging.INFO if lost else logging.WARNING
        log.log(level, "store %s: nothing is collected: %s", context.store, expiry.problem)
        if not lost:
            done.problems.append(expiry.problem)
    if expiry.files:
        if not _is_still_proven(context, anchor):
            return
        context.storage.delete(expiry.keys)
        done.add(expiry.files)
        log.info(
            "store collected store=%s anchor=%d base=%s files=%d bytes=%d",
            context.store,
            anchor.version,
            expiry.base.version if expiry.base is not None else None,
            len(expiry.files),
            expiry.size_bytes,
        )


def _is_proven(context: StoreContext, anchor: VersionId) -> bool:
    """Whether the commit log names the anchor.

    Somebody may have gone back behind the anchor and begun another lineage, while a provider of the
    earlier run lives on. That is safe: what the new run has written is younger than the grace
    period, or the commit log was changed before it is read here, or by `_is_still_proven`.

    Raises: FormatError: the entry is damaged.
    """
    proven = is_committed(context.storage, context.store, anchor, context.spark_format)
    return _told(context, anchor, proven)


def _is_still_proven(context: StoreContext, anchor: VersionId) -> bool:
    """Whether nobody has gone back behind the anchor since `_is_proven`. Asked last, before files
    are deleted. The entry may be gone while newer ones are there: Spark has removed it, as it does
    once there are more than it retains.

    Raises: FormatError: an entry is damaged.
    """
    proven = is_committed(context.storage, context.store, anchor, context.spark_format)
    if not proven and not is_there(context.storage, spark_names.commits_key(anchor.version - 1)):
        newest = read_spark_metadata(context.storage, batches=(), operators=()).last_committed_batch
        proven = newest is not None and newest >= anchor.version
    return _told(context, anchor, proven)


def _told(context: StoreContext, anchor: VersionId, proven: bool) -> bool:
    if not proven:
        log.info(
            "store %s: nothing is collected: the commit log does not name version %s",
            context.store,
            anchor,
        )
    return proven


def _sweeps(context: StoreContext) -> bool:
    """Whether this is the one store of its operator that sweeps: in partition 0 the default store,
    or the first one if there is no default store.
    """
    if context.store.partition != 0:
        return False
    if context.store.name == DEFAULT_STORE:
        return True
    operator = context.operator_info()
    if operator is None or not operator.stores:
        return True
    return DEFAULT_STORE not in operator.stores and operator.stores[0] == context.store.name


def _sweep_now_and_then(
    context: StoreContext,
    anchor: VersionId | None,
    pinned: frozenset[str],
    done: _Done,
    force: bool,
    interval_ms: int,
    now_ms: int,
) -> None:
    checkpoint, operator = context.checkpoint, context.store.operator
    with checkpoint.lock:
        due = _is_over(interval_ms, checkpoint.last_sweep_ms.get(operator, 0), now_ms)
        if operator in checkpoint.sweeping or not (force or due):
            return
        checkpoint.sweeping.add(operator)
        checkpoint.last_sweep_ms[operator] = now_ms
    try:
        grace_ms = context.option_int("gc.graceMs")
        # Empty when this executor sweeps for the first time: then every SST waits.
        before = checkpoint.marks.get(operator, {})
        seen = _survey(checkpoint, operator, pinned, now_ms)
        _sweep(context, seen, before, pinned, done, grace_ms, now_ms)
        _drop_unfinished(checkpoint, operator, now_ms)
        if anchor is not None:
            _clear_after_rescale(context, anchor, seen, pinned, done, grace_ms, now_ms)
    finally:
        with checkpoint.lock:
            checkpoint.sweeping.discard(operator)


def _sweep(
    context: StoreContext,
    seen: Survey,
    before: Marks,
    pinned: frozenset[str],
    done: _Done,
    grace_ms: int,
    now_ms: int,
) -> None:
    """Delete SSTs that no manifest names, and staging files that nobody finished.

    Deletes nothing if one manifest of the operator cannot be read: nobody knows what it names.
    """
    checkpoint, operator = context.checkpoint, context.store.operator
    started = time.monotonic()
    try:
        seen.check()
        candidates = _load_candidates(checkpoint, operator)
        # One that was replaced is still listed: restores may have begun with what it said before.
        gone = (named for key, (_, named) in before.items() if key not in seen.manifests)
        sweep = plan.plan_sweep(
            seen.ssts,
            seen.staging,
            seen.referenced,
            candidates,
            released=frozenset().union(*gone),
            grace_ms=grace_ms,
            maintenance_ms=context.maintenance_ms,
            now_ms=now_ms,
        )
        doomed = _delete(checkpoint, operator, sweep, pinned, now_ms)
    except MillpondError as e:
        log.warning("operator %d is not swept: %s", operator, e)
        done.problems.append(e)
        return
    done.add(doomed)
    _save_candidates(checkpoint, operator, candidates, sweep.candidates)
    if doomed or sweep.candidates:
        log.info(
            "operator swept operator=%d deleted=%d bytes=%d candidates=%d ms=%d",
            operator,
            len(doomed),
            sum(info.size_bytes for info in doomed),
            len(sweep.candidates),
            (time.monotonic() - started) * 1000,
        )


def _drop_unfinished(checkpoint: CheckpointContext, operator: int, now_ms: int) -> None:
    """Throw away what executors that were killed had sent of large files, now and then."""
    if not _is_over(_DROP_EACH_MS, checkpoint.last_drop_ms.get(operator, 0), now_ms):
        return
    checkpoint.last_drop_ms[operator] = now_ms
    try:
        dropped = drop_unfinished(
            checkpoint.storage, layout.operator_dir(operator) + "/", now_ms - UNFINISHED_MS
        )
    except MillpondError as e:
        # Needs a right of its own (docs/guides/s3.md). A lifecycle rule of the bucket does it, too.
        log.info("operator %d: uploads that nobody finished may be left: %s", operator, e)
        return
    if dropped:
        log.info("operator swept operator=%d unfinished_uploads=%d", operator, dropped)


def _delete(
    checkpoint: CheckpointContext,
    operator: int,
    sweep: plan.Sweep,
    pinned: frozenset[str],
    now_ms: int,
) -> tuple[ObjectInfo, ...]:
    """Delete the files that no manifest names even now.

    Returns: the files that were deleted.
    Raises: MillpondError: the announcement stays.
    """
    if not sweep.doomed:
        return ()
    condemned = (info.key for info in sweep.doomed)
    notice = announcements.announce(checkpoint.storage, operator, condemned)
    # A manifest that was published after the listing may name a doomed SST. From here on its
    # publisher sees the announcement.
    again = _survey(checkpoint, operator, pinned, now_ms)
    again.check()
    made_ms = announcements.withdraw_abandoned(checkpoint.storage, operator, notice)
    if made_ms is None:
        log.warning(
            "operator %d: nothing is deleted: the sweep took so long that another one withdrew it",
            operator,
        )
        return ()
    doomed = tuple(info for info in sweep.still_doomed(made_ms) if info.key not in again.referenced)
    checkpoint.storage.delete(info.key for info in doomed)
    checkpoint.storage.delete([notice])
    return doomed


def _survey(
    checkpoint: CheckpointContext, operator: int, pinned: frozenset[str], now_ms: int
) -> Survey:
    known = checkpoint.marks.get(operator, {})
    seen = survey(checkpoint.storage, operator, known, pinned, now_ms=now_ms)
    if seen.unreadable is None:
        checkpoint.marks[operator] = seen.marks
    return seen


def _clear_after_rescale(
    context: StoreContext,
    anchor: VersionId,
    seen: Survey,
    pinned: frozenset[str],
    done: _Done,
    grace_ms: int,
    now_ms: int,
) -> None:
    """Delete what a rescale left behind: files of partitions that are gone, and pins of changelogs
    that no manifest names any more.
    """
    storage, operator = context.storage, context.store.operator
    oldest_retained = anchor.version - context.retain_versions + 1
    try:
        partitions = read_spark_metadata(storage, batches=(), operators=()).partitions
        if partitions is None:
            return
        rescale_pins = [
            info
            for info in storage.list(layout.PINS_PREFIX)
            if (named := layout.parse_rescale_pin(info.key)) is not None
            and named[0] == operator
            and named[1] < anchor.version  # the listing may be older than a later rescale
            and now_ms - info.modified_ms >= grace_ms
        ]
        for store, extent in seen.stores.items():
            if store.partition < partitions or not extent.is_over(
                oldest_retained, grace_ms=grace_ms, now_ms=now_ms
            ):
                continue
            doomed = plan.plan_left_behind(
                read_listing(storage, store),
                oldest_retained,
                grace_ms=grace_ms,
                now_ms=now_ms,
                pinned=pinned,
            )
            if doomed and not _is_still_proven(context, anchor):
                return
            storage.delete(info.key for info in doomed)
            done.add(doomed)
        if rescale_pins:
            seen.check()
            doomed = [
                info
                for info in rescale_pins
                if not seen.referenced.keys() & pins.pinned_by(storage, info.key)
            ]
            if doomed and _is_still_proven(context, anchor):
                storage.delete(info.key for info in doomed)
                done.add(doomed)
    except MillpondError as e:
        log.warning("operator %d: what a rescale left behind is not cleared: %s", operator, e)
        done.problems.append(e)


def _load_candidates(checkpoint: CheckpointContext, operator: int) -> dict[str, int]:
    key = layout.gc_candidates_key(operator)
    try:
        fields = unseal(
            _CANDIDATES_KIND,
            checkpoint.storage.read(key),
            name=key,
            damaged=ErrorKind.FORMAT_DAMAGED,
        )
        return {
            entry.string("key"): entry.integer("first_seen_ms")
            for entry in fields.children("candidates")
        }
    except NotFoundError:
        return {}
    except MillpondError as e:
        # This only delays the sweep: it sees every candidate for the first time again.
        log.warning("cannot use %s: starting again: %s", key, e)
        return {}


def _save_candidates(
    checkpoint: CheckpointContext,
    operator: int,
    before: Mapping[str, int],
    candidates: Mapping[str, int],
) -> None:
    if dict(before) == dict(candidates):
        return
    entries = [
        {"key": key, "first_seen_ms": first_seen_ms} for key, first_seen_ms in candidates.items()
    ]
    body = {"required_features": [], "candidates": entries}
    checkpoint.storage.put_bytes(layout.gc_candidates_key(operator), seal(_CANDIDATES_KIND, body))
