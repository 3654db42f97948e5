"""What the agent does, without py4j: one method for each call of the protocol. JSON text in, JSON
text out.

Thread-safe: py4j brings every JVM thread its own thread here. A request carries all that it needs,
so a new agent answers like the one that died before it. A request with a ticket gets an answer in
time, even if that only says that the work is not done yet (`agent.pending`).

Source: docs/design/0001-planes-and-protocol.md.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from millpond._version import __version__
from millpond.agent import changelogs, opening
from millpond.agent.balance import executors_of, plan_moves, units_of
from millpond.agent.context import Contexts, StoreContext, request_error
from millpond.agent.growing import GrowingChangelogs
from millpond.agent.memory_budget import plan_budget, process_of
from millpond.agent.pending import AbandonedError, PendingCalls, check_wanted, wanted_while
from millpond.agent.query_setting import query_setting, read_format
from millpond.errors import ErrorKind, MillpondError, UnavailableError, error
from millpond.model.ids import VersionId, valid_id
from millpond.model.json_fields import ColumnFamily, JsonFields, KeyGroupsInfo, group_keys_from_json
from millpond.model.partition_keys import (
    PartitionKeyRule,
    partition_key_rule,
    with_dropped_variables,
)
from millpond.query.schemas import newest_of_each
from millpond.storage import Storage, StorageSettings, open_checkpoint
from millpond.storage.usage import usage_of
from millpond.store import local_ssts
from millpond.store.snapshot import upload
from millpond.store.snapshot.plan import CheckpointSst
from millpond.store.snapshot.uploads import Uploads

log = logging.getLogger(__name__)

_PENDING = '{"pending":true}'
_NEVER_LONG = ("ping", "memory_budget", "balance", "standby", "changelog_ended", "close")


def now_ms() -> int:
    """Return the time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def _open_storage(uri: str, settings: StorageSettings) -> Storage:
    return open_checkpoint(uri, settings, writable=True)


class AgentService:
    """Answers the calls of one executor's stores.

    Args:
        opener: opens the storage of a Spark checkpoint, given its URI and how to reach it.
        clock_ms: time in ms since the epoch.
        local_root: the JVM's directory for local files; the cache of SSTs is beside it. None: there
            is no cache.
    """

    def __init__(
        self,
        *,
        opener: Callable[[str, StorageSettings], Storage] = _open_storage,
        clock_ms: Callable[[], int] = now_ms,
        local_root: str | None = None,
    ) -> None:
        self._clock_ms = clock_ms
        self._contexts = Contexts(opener, local_root)
        self._opener = opener
        self._pending = PendingCalls()
        self._growing = GrowingChangelogs()
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ping": self._ping,
            "memory_budget": self._memory_budget,
            "balance": self._balance,
            "standby": self._standby,
            "check_start": self._check_start,
            "open": self._open,
            "change_feed": self._change_feed,
            "follow": self._follow,
            "changelog_grew": self._changelog_grew,
            "changelog_ended": self._changelog_ended,
            "publish_changelog": self._publish_changelog,
            "publish_snapshot": self._publish_snapshot,
            "collect": self._collect,
            "partition_key": self._partition_key,
            "close": self._close,
            "rescale": self._rescale,
        }

    def handle(self, method: str, request: str) -> str:
        """Answer one call. Never raises: the answer says what went wrong."""
        return self._answer(method, lambda: self._taken(method, request))

    def _taken(self, method: str, request: str) -> str:
        call, value = self._methods.get(method), _parse(request)
        if call is None:
            raise request_error(f"no method {method!r}")
        ticket, wait_ms = value.pop("ticket", None), value.pop("wait_ms", 0)

        def work() -> str:
            answer = call(value)
            if "store" in value:
                self._report_usage(value, answer)
            return json.dumps({"ok": answer}, separators=(",", ":"))

        if ticket is None or self._is_short(method, value):
            return work()
        if not isinstance(ticket, str) or type(wait_ms) is not int:
            raise request_error("ticket is no text, or wait_ms no whole number")
        answer = self._pending.answer(ticket, wait_ms / 1000, lambda: self._answer(method, work))
        return _PENDING if answer is None else answer

    def _is_short(self, method: str, request: dict[str, Any]) -> bool:
        """Whether the call moves nothing over a network. The thread that was asked then runs it,
        which is faster.
        """
        if method == "publish_changelog" and isinstance(request.get("store"), dict):
            known = self._contexts.known(request["store"])
            return known is not None and known.directory is not None
        return method in _NEVER_LONG

    def _answer(self, method: str, work: Callable[[], str]) -> str:
        try:
            return work()
        except AbandonedError:
            log.info("call abandoned method=%s", method)
            raise
        except MillpondError as e:
            log.info("call failed method=%s kind=%s: %s", method, e.kind, e)
            return _error_answer(e.kind.value, e.message, e.hint)
        # The JVM must get an answer whatever happened; the traceback goes to stderr.
        except Exception as e:
            log.exception("call failed method=%s", method)
            return _error_answer(ErrorKind.INTERNAL.value, f"{type(e).__name__}: {e}", "")

    def _report_usage(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        """Add to the answer what the storage was asked since the last answer. Calls of other stores
        may be in it: only the sum over stores is right.
        """
        known = self._contexts.known(request["store"])
        usage = usage_of(known.storage) if known is not None else None
        taken = usage.take() if usage is not None else {}
        if taken:
            answer["storage"] = taken

    # ---- calls

    def _ping(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"pid": os.getpid(), "version": __version__}

    def _memory_budget(self, request: dict[str, Any]) -> dict[str, Any]:
        return asdict(plan_budget(process_of(JsonFields(request, request_error))))

    def _balance(self, request: dict[str, Any]) -> dict[str, Any]:
        fields = JsonFields(request, request_error)
        moves = plan_moves(units_of(fields), executors_of(fields))
        return {"moves": [asdict(move) for move in moves]}

    def _standby(self, request: dict[str, Any]) -> dict[str, Any]:
        # Imported here: only the driver's agent needs it.
        from millpond.agent.standby import plan_followers

        fields = JsonFields(request, request_error)
        followers = plan_followers(units_of(fields), executors_of(fields))
        return {"followers": [asdict(follower) for follower in followers]}

    def _check_start(self, request: dict[str, Any]) -> dict[str, Any]:
        # Imported here: only the driver's agent needs it.
        from millpond.agent.starting import check_start

        fields = JsonFields(request, request_error)
        return {
            "state": check_start(
                fields.string("root"), request.get("options"), request.get("hadoop")
            )
        }

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        context, fields = self._context(request), JsonFields(request, request_error)
        load_empty = bool(request.get("load_empty", False))
        version = fields.integer("version", 0)
        target = _named(context, version, request.get("id"), required=not load_empty)
        snapshot: VersionId | None = None
        if request.get("snapshot_version") is not None:
            snapshot_version = fields.integer("snapshot_version", 1)
            if snapshot_version > version:
                raise request_error(
                    f"version {version} from a snapshot of version {snapshot_version}"
                )
            snapshot = _named(context, snapshot_version, request.get("snapshot_id"), required=False)
        excluded = tuple(str(name) for name in request.get("excluded") or ())
        local_dir, generation = _local_dir(request), fields.integer("generation", 0)
        still_wanted = context.newest_open.asked(local_dir, generation)
        with context.commit_lock, wanted_while(still_wanted):
            return opening.open_store(
                context,
                target,
                local_dir=local_dir,
                generation=generation,
                excluded=excluded,
                load_empty=load_empty,
                snapshot=snapshot,
                listed=request.get("listed") is True,
            )

    def _change_feed(self, request: dict[str, Any]) -> dict[str, Any]:
        context, fields = self._context(request), JsonFields(request, request_error)
        start_version = fields.integer("start_version", 1)
        target = _named(
            context, fields.integer("version", start_version), request.get("id"), required=True
        )
        return dict(
            opening.change_feed(context, start_version, target, local_dir=_local_dir(request))
        )

    def _follow(self, request: dict[str, Any]) -> dict[str, Any]:
        # Imported here: only executors that follow stores of others need it.
        from millpond.agent.following import changelogs_after

        context, fields = self._context(request), JsonFields(request, request_error)
        after = fields.integer("after_version", 1)
        target = _named(
            context, fields.integer("version", after + 1), request.get("id"), required=True
        )
        changelogs = changelogs_after(context, after, target, local_dir=_local_dir(request))
        return {"changelogs": changelogs}

    def _changelog_grew(self, request: dict[str, Any]) -> dict[str, Any]:
        context = self._contexts.known(request.get("store"))
        if context is None:
            # The store was closed, and must not come back. Or the agent is younger than the batch.
            return {"sends": True}
        fields = JsonFields(request, request_error)
        context.checkpoint.claim()
        sends = self._growing.grown(
            context,
            _version(fields),
            fields.string("staged"),
            _local_dir(request),
            fixed_from=fields.integer("fixed_from"),
            size_bytes=fields.integer("bytes"),
        )
        return {"sends": sends}

    def _changelog_ended(self, request: dict[str, Any]) -> dict[str, Any]:
        self._growing.drop(JsonFields(request, request_error).string("staged"))
        return {}

    def _publish_changelog(self, request: dict[str, Any]) -> dict[str, Any]:
        context, fields = self._context(request), JsonFields(request, request_error)
        context.checkpoint.claim()
        version = _version(fields)
        staged = fields.string("staged")
        with context.commit_lock:
            context.record_operator(version.version)
            path = changelogs.publish_changelog(
                context, version, staged, _local_dir(request), self._growing.take(staged)
            )
        return {"path": path}

    def _publish_snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        context, fields = self._context(request), JsonFields(request, request_error)
        context.checkpoint.claim()
        local_dir, db_checkpoint = _local_dir(request), fields.string("db_checkpoint")
        version = _version(fields)
        groups, store = query_setting(context, version.version).key_groups, context.store
        stored = read_format(context)
        if stored is not None and version.version <= stored.erased_version(store.operator):
            raise upload.erased(store, version.version)
        # The number with which the store was opened: a rescale may have changed the query since.
        partitions = fields.integer("partitions", 1)
        groups.check_partitions(partitions)
        snapshot = upload.SnapshotRequest(
            version=version,
            db_checkpoint=db_checkpoint,
            files=tuple(_checkpoint_sst(file) for file in fields.children("files")),
            keys=fields.integer("keys", -1),
            group_keys=group_keys_from_json(fields),
            column_families=tuple(
                ColumnFamily.from_json(family) for family in fields.children("column_families")
            ),
            key_groups=KeyGroupsInfo(
                max_parallelism=groups.max_parallelism,
                base=groups.base,
                partitions=partitions,
                scalable=fields.boolean("scalable"),
                reason=request.get("unscalable_reason") or "",
            ),
            slots=tuple(groups.slot_ranges(store.partition, partitions)),
        )
        with context.snapshot_lock:
            known = local_ssts.load(local_dir)
            files = context.new_files()
            published = upload.publish_snapshot(
                files,
                snapshot,
                known,
                now_ms=self._clock_ms(),
                cache=context.sst_cache,
                uploads=Uploads(local_dir, self._clock_ms(), context.option_int("gc.graceMs") // 2),
                check_wanted=check_wanted(),
                distrusted=context.distrusted,
            )
            names = {info.key.rpartition("/")[2] for info in files.listing.manifests.values()}
            self._remember(context, local_dir, published, names)
        plan = published.plan
        return {
            "manifest": published.manifest_name,
            "new_files": len(plan.new),
            "new_bytes": plan.new_bytes,
            "reused_files": len(plan.reused),
            "reused_bytes": plan.reused_bytes,
        }

    def _remember(
        self,
        context: StoreContext,
        local_dir: str,
        published: upload.Published,
        manifests: set[str],
    ) -> None:
        with context.ssts_lock:
            # Loaded again: meanwhile an `open` may have added the files of its generation.
            known = {
                i: sst for i, sst in local_ssts.load(local_dir).items() if sst.manifest in manifests
            }
            known.update({sst.identity: sst for sst in published.local_ssts})
            try:
                local_ssts.save(local_dir, known.values())
            except UnavailableError as e:
                # The snapshot stands. Without these entries its SSTs are uploaded once more.
                log.warning("store %s: cannot remember uploaded SSTs: %s", context.store, e)

    def _collect(self, request: dict[str, Any]) -> dict[str, Any]:
        # Imported here: the first task of an executor does not wait for it.
        from millpond.agent import collecting

        context, fields = self._context(request), JsonFields(request, request_error)
        context.checkpoint.claim()
        anchor = VersionId(
            fields.integer("anchor_version", 0),
            (
                (request.get("anchor_id") or "")
                if context.spark_format >= 2 and request.get("anchor_version")
                else ""
            ),
        )
        with context.collect_lock:
            return collecting.collect(
                context, anchor, force=request.get("force") is True, now_ms=self._clock_ms()
            )

    def _partition_key(self, request: dict[str, Any]) -> dict[str, Any]:
        context, fields = self._context(request), JsonFields(request, request_error)
        operator = context.operator_info()
        variables = operator.state_variables if operator is not None else ()

        def rule_by(variables: Sequence[dict[str, Any]]) -> PartitionKeyRule:
            return partition_key_rule(
                operator.name if operator is not None else "",
                context.store.name,
                fields.string("column_family"),
                fields.strings("key_columns"),
                request.get("spec"),
                variables,
            )

        rule = rule_by(variables)
        if rule.kind == "unknown" and operator is not None:
            # A job may have dropped the variable. `adopt` copies its rows all the same.
            files = context.schema_files(operator)
            described = newest_of_each(files, operator, context.store.name)
            families = [(family.name, family.kind, family.key_columns) for family in described]
            rule = rule_by(with_dropped_variables(variables, families))
        return {"rule": rule.to_json()}

    def _close(self, request: dict[str, Any]) -> dict[str, Any]:
        known = self._contexts.known(request.get("store"))
        if known is not None:
            self._contexts.forget(known)
        return {}

    def _rescale(self, request: dict[str, Any]) -> dict[str, Any]:
        # Imported here: the agents of executors never need it.
        from millpond.agent.on_restart import rescale_on_restart

        return rescale_on_restart(request, self._opener)

    def _context(self, request: dict[str, Any]) -> StoreContext:
        return self._contexts.of(request.get("store"))


def _parse(request: str) -> dict[str, Any]:
    try:
        value = json.loads(request) if request else {}
    except ValueError as e:
        raise request_error("no JSON") from e
    if not isinstance(value, dict):
        raise request_error("no JSON object")
    return value


def _named(context: StoreContext, version: int, version_id: object, *, required: bool) -> VersionId:
    """Return a version as Spark names it: in Spark checkpoint format 2 with an id, which may be
    missing unless `required`.
    """
    if version_id and not (isinstance(version_id, str) and valid_id(version_id)):
        raise error(
            ErrorKind.FOREIGN_CHECKPOINT,
            f"store {context.store}: the commit log names version {version} by an id that Millpond"
            " did not make",
        )
    if context.spark_format < 2 or version == 0:
        return VersionId(version)
    if required and not version_id:
        raise error(
            ErrorKind.CHECKPOINT_FORMAT_CHANGED,
            f"store {context.store}: Spark names version {version} without an id, as in Spark"
            " checkpoint format 1, and the session asks for format 2",
        )
    return VersionId(version, str(version_id or ""))


def _version(fields: JsonFields) -> VersionId:
    return VersionId(fields.integer("version", 1), fields.string("id"))


def _checkpoint_sst(fields: JsonFields) -> CheckpointSst:
    return CheckpointSst(
        name=fields.string("name"),
        size_bytes=fields.integer("size_bytes", 1),
        smallest_hex=fields.string("smallest_hex"),
        largest_hex=fields.string("largest_hex"),
        entries=fields.integer("entries"),
        deletions=fields.integer("deletions"),
        level=fields.integer("level"),
    )


def _local_dir(request: dict[str, Any]) -> str:
    """Return the directory for the local files of this generation of the provider."""
    path = JsonFields(request["store"], request_error, "store").string("local_dir")
    if not os.path.isabs(path):
        raise request_error("store.local_dir is no absolute path")
    return path


def _error_answer(kind: str, message: str, hint: str) -> str:
    return json.dumps(
        {"error": {"kind": kind, "message": message, "hint": hint}}, separators=(",", ":")
    )
