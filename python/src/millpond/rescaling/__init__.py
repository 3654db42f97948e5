"""Rescale: another number of state partitions for a query that is stopped, in place, by metadata alone.

import millpond
millpond.rescaling("/data/pond", 16)
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from millpond import layout
from millpond.errors import ConflictError, ErrorKind, InvalidInputError
from millpond.ids import new_id
from millpond.manifest import encode_manifest
from millpond.rescaling.plan import Target, check_partitions, check_scalable, compose
from millpond.rescaling.read import Before, read_before
from millpond.rescaling.write import Writing, carry_out, clear, pin, read_journal
from millpond.running import refuse_running
from millpond.spark_log_edit import commit_with_state_ids, offsets_with_partitions, operator_metadata_with_partitions
from millpond.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleReport:
    """What a rescale did, or with `dry_run` would do. `to_json` is the contract of `millpond rescale --json`."""

    checkpoint: str
    current: int  # partitions before
    partitions: int  # and after
    batch: int  # the batch without input that switches over
    way: str  # `composed`: manifests that name the files that are there; no row moves
    stores: int  # manifests written
    state_bytes: int  # SSTs and changelogs that they name
    written_bytes: int
    seconds: float
    dry_run: bool
    undone: bool = False  # an interrupted rescale was taken back before this one

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rescale(
    storage: Storage,
    root: str,
    partitions: int,
    *,
    dry_run: bool = False,
    skip_uncommitted: bool = False,
) -> RescaleReport:
    """Give the state of a stopped query another number of partitions. The next start of the query uses it.

    Args:
        root: name of the Spark checkpoint, for messages.
        partitions: 1 to 65,536; must divide the max parallelism.
        skip_uncommitted: leave out a batch that was begun and not committed: its input is read again by the next batch,
            which may be cut differently, so a sink that counts on equal batches may get rows twice.
        dry_run: read and plan everything, write nothing.
    Raises:
        InvalidInputError: PARTITIONS_INVALID, BATCH_UNCOMMITTED, NOT_A_CHECKPOINT.
        UnsupportedError: STORE_UNSCALABLE, FOREIGN_CHECKPOINT.
        ConflictError: RESCALE_UNFINISHED (to another number), QUERY_RUNNING.
        FormatError, NotFoundError: the state cannot be read.
    """
    started = time.monotonic()
    if not dry_run:
        refuse_running(storage, root)
    undone = _finish_interrupted(storage, partitions, dry_run)
    before = read_before(storage, root)
    check_partitions(partitions, before.partitions)
    if before.started != before.committed and not skip_uncommitted:
        raise InvalidInputError(
            f"{root}: batch {before.started} was begun and not committed", kind=ErrorKind.BATCH_UNCOMMITTED
        )
    groups = before.format.key_groups
    for operator, by_name in before.stores.items():
        for stores in by_name.values():
            if operator not in before.single:
                check_scalable(stores, before.partitions)
    if groups.max_parallelism % partitions:
        raise InvalidInputError(
            f"{partitions} partitions do not divide the max parallelism {groups.max_parallelism}",
            kind=ErrorKind.PARTITIONS_INVALID,
            hint="Choose one of: " + ", ".join(map(str, _divisors(groups.max_parallelism, before.partitions))) + ".",
        )
    writing, state_bytes, manifests = _composed(storage, before, partitions)
    if not dry_run:
        carry_out(storage, writing)
    return RescaleReport(
        checkpoint=root,
        current=before.partitions,
        partitions=partitions,
        batch=writing.batch,
        way="composed",
        stores=manifests,
        state_bytes=state_bytes,
        written_bytes=writing.total_bytes,
        seconds=round(time.monotonic() - started, 3),
        dry_run=dry_run,
        undone=undone,
    )


def undo(storage: Storage, root: str) -> bool:
    """Take back an interrupted rescale. Return whether there was one that had not switched over yet.

    Raises: ConflictError: QUERY_RUNNING.
    """
    refuse_running(storage, root)
    journal = read_journal(storage)
    return journal is not None and not clear(storage, journal)


def _finish_interrupted(storage: Storage, partitions: int, dry_run: bool) -> bool:
    journal = read_journal(storage)
    if journal is None:
        return False
    if dry_run or journal.partitions != partitions:
        raise ConflictError(
            f"a rescale from {journal.current} to {journal.partitions} partitions was interrupted",
            kind=ErrorKind.RESCALE_UNFINISHED,
        )
    return not clear(storage, journal)


def _divisors(max_parallelism: int, near: int) -> list[int]:
    divisors = [d for d in range(1, max_parallelism + 1) if max_parallelism % d == 0]
    return sorted(sorted(divisors, key=lambda d: abs(d - near))[:12])


def _composed(storage: Storage, before: Before, partitions: int) -> tuple[Writing, int, int]:
    batch, created_ms = before.started + 1, time.time_ns() // 1_000_000
    target = Target(partitions=partitions, version=batch + 1, created_ms=created_ms)
    files: dict[str, bytes] = {}
    manifests: dict[str, bytes] = {}
    ids: dict[int, list[list[str]]] = {}
    state_bytes = 0
    if before.started != before.committed:
        # the batch that is left out counts as committed, with nothing done
        files[layout.commits_key(before.started)] = storage.read(layout.commits_key(before.committed))
    for operator, by_name in before.stores.items():
        pinned: list[str] = []
        names = before.names[operator]
        ids[operator] = []
        for name in names:
            fresh = [new_id() for _ in range(1 if operator in before.single else partitions)]
            composed = compose(by_name[name], before.format.key_groups, before.partitions, target, fresh)
            for partition, manifest in enumerate(composed):
                key = layout.manifest_key(manifest.store, manifest.version_id, before.spark_format)
                manifests[key] = encode_manifest(manifest)
                pinned += manifest.changelog_keys()
                if len(ids[operator]) <= partition:
                    ids[operator].append([])
                ids[operator][partition].append(manifest.id)
            state_bytes += _state_bytes(by_name[name])
        if pinned:
            files[layout.rescale_pin_key(operator, batch)] = pin(pinned, created_ms)
        metadata = _operator_metadata(storage, operator, partitions)
        if metadata is not None:
            files[f"{layout.operator_metadata_v2_prefix(operator)}{batch}"] = metadata
    files.update(manifests)
    committed = layout.commits_key(before.committed)
    offsets = layout.offsets_key(before.committed)
    writing = Writing(
        current=before.partitions,
        partitions=partitions,
        batch=batch,
        offsets=offsets_with_partitions(storage.read(offsets).decode("utf-8"), partitions, name=offsets).encode(
            "utf-8"
        ),
        files=files,
        commit=commit_with_state_ids(storage.read(committed).decode("utf-8"), ids, name=committed).encode("utf-8"),
        created_ms=created_ms,
    )
    return writing, state_bytes, len(manifests)


def _state_bytes(stores: list[Any]) -> int:
    return sum(
        (old.plan.manifest.total_bytes if old.plan.manifest is not None else 0)
        + sum(size for _, size in old.changelog_files.values())
        for old in stores
    )


def _operator_metadata(storage: Storage, operator: int, partitions: int) -> bytes | None:
    """Return the newest metadata of version 2 with the new number of partitions; None if there is only version 1, which
    Spark writes once and nobody trusts."""
    prefix = layout.operator_metadata_v2_prefix(operator)
    batches = [layout.parse_batch(info.key[len(prefix) :]) for info in storage.list(prefix)]
    newest = max((batch for batch in batches if batch is not None), default=None)
    if newest is None:
        return None
    key = f"{prefix}{newest}"
    return operator_metadata_with_partitions(storage.read(key).decode("utf-8"), partitions, name=key).encode("utf-8")
