"""Rescale: gives the state of a stopped query another number of partitions, in place.

    import millpond
    millpond.rescale("/data/pond", 16)

`read` reads what is there. `plan` composes manifests (pure). `new_files` says what is written, and
`write` writes it. `rehash` writes every row anew. The command line, the API and the agent call this
package. It may import `repartition`, `spread`, and the rooms below `operations`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, NotFoundError, error
from millpond.format import layout, spark_names
from millpond.model.key_groups import divisors_near
from millpond.operations.repartition.folder import remove_leftovers
from millpond.operations.rescale import rehash
from millpond.operations.rescale.new_files import composed, state_bytes
from millpond.operations.rescale.plan import check_partitions, check_scalable, merge_families
from millpond.operations.rescale.read import Before, read_before
from millpond.operations.rescale.write import Writing, carry_out, clear
from millpond.query.rescaling import left_by_spark, read_journal, rescale_error
from millpond.query.whole import check_whole
from millpond.spark.commands import Hold, at_work
from millpond.spark.sinks import keeping
from millpond.spark.sinks.recorded import ran_without_extension, read_sink
from millpond.storage import Storage, is_there
from millpond.storage.owner import check_owner, claim

COMPOSED, REHASH = "composed", "rehash"
_UNWATCHED = (
    "the query's last run had no Millpond extension (spark.sql.extensions): if it was started again"
    " and has not done a batch since, Millpond cannot see it. Make sure that it is stopped."
)
_UNLIKE = (
    "every row is written anew: state variables were deleted and made again, and the partitions"
    " have numbered them differently since"
)
_SECONDS_PER_FILE = 0.005  # on a local disk: two syncs


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleReport:
    """What a rescale did, or with `dry_run` would do.

    `to_json` is the contract of `millpond rescale --json`.
    """

    checkpoint: str
    current: int  # partitions before
    partitions: int  # and after
    batch: int  # the batch without input that switches over
    # `composed`: new manifests name the old files. `rehash`: every row is written anew.
    way: str
    max_parallelism: int  # number of key groups afterwards; only a rehash changes it
    near: tuple[int, ...]  # numbers of partitions near it that move no row; empty: each moves all
    stores: int  # that get a new manifest or changelog
    state_bytes: int  # SSTs and changelogs of the state before
    written_bytes: int  # in a dry run of a rehash: an estimate
    seconds: float  # in a dry run: an estimate
    dry_run: bool
    undone: bool = False  # an interrupted one, or Spark's own, was taken back first, or would be
    file_sink: str | None = None  # its log says that the batch wrote nothing
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rescale(
    storage: Storage,
    root: str,
    partitions: int,
    *,
    max_parallelism: int | None = None,
    dry_run: bool = False,
    skip_uncommitted: bool = False,
    announce: Callable[[RescaleReport], None] | None = None,
    ending_s: float | None = None,
    file_sink: str | os.PathLike[str] | None = None,
) -> RescaleReport:
    """Give the state of a stopped query another number of partitions. The next start of the query
    uses it.

    A number that divides the max parallelism moves no row, as a rule. Any other number hashes every
    row anew, into other key groups. A batch that Spark's own repartition began is taken away first:
    it reads nothing. To the present number that is all.

    Args:
        root: name of the Spark checkpoint, for messages.
        partitions: 1 to 65,536.
        max_parallelism: number of key groups from now on, a multiple of `partitions`; None: as many
            as there are, if `partitions` divides that, else the default for `partitions`.
        dry_run: read and plan everything, write nothing.
        skip_uncommitted: leave out a batch that was begun and not committed. The next batch reads
            its input again, and may cut it differently. So a sink that expects equal batches may
            get rows twice.
        announce: called before anything is written, with what a dry run would return.
        ending_s: how long to wait for a query that is just ending; None:
            `millpond.spark.heartbeats` decides.
        file_sink: path or URI of the directory that the query writes to in a file format. The log
            there must hold every batch number. `none`: the query writes to none. None: take what
            the last start of the query recorded.
    Raises:
        InvalidInputError: PARTITIONS_INVALID, MAX_PARALLELISM_INVALID, NOT_A_CHECKPOINT,
            STATE_OWNED; FILE_SINK_INVALID, FILE_SINK_MISMATCH: the sink would not be whole.
        UnsupportedError: STORE_UNSCALABLE, FOREIGN_CHECKPOINT; only Spark can hash the rows anew.
        ConflictError: RESCALE_UNFINISHED (to another number), QUERY_RUNNING, COMMAND_RUNNING.
        UnavailableError: STORAGE_FULL, LOCAL_DISK_FULL: no space to write rows anew; nothing was
            changed.
        NotFoundError: BATCH_NOT_COMMITTED. FormatError, NotFoundError: the state cannot be read.
    """
    started = time.monotonic()
    _refuse_savepoint(storage, root)
    check_owner(storage, root)
    with nullcontext() if dry_run else at_work(storage, root, "rescale", ending_s) as hold:
        if not dry_run:
            claim(storage, root)
        report = _rescale(
            storage,
            root,
            partitions,
            hold,
            max_parallelism=max_parallelism,
            skip_uncommitted=skip_uncommitted,
            announce=announce,
            file_sink=file_sink,
        )
    if dry_run:
        return report
    return replace(report, seconds=round(time.monotonic() - started, 3))


def _rescale(
    storage: Storage,
    root: str,
    partitions: int,
    hold: Hold | None,
    *,
    max_parallelism: int | None,
    skip_uncommitted: bool,
    announce: Callable[[RescaleReport], None] | None,
    file_sink: str | os.PathLike[str] | None,
) -> RescaleReport:
    """Plan, and write what is planned if the Spark checkpoint is held. Args: as for `rescale`."""
    dry_run = hold is None
    undone = _finish_interrupted(storage, root, partitions, hold)
    left = left_by_spark(storage)
    image, plans = check_whole(storage, root)
    before = read_before(storage, root, plans)
    # A dry run may see a query that runs at two moments: it tells of sizes, and writes nothing.
    if image is None or (not dry_run and image.batch != before.committed):
        raise error(
            ErrorKind.QUERY_RUNNING,
            f"{root}: batch {before.committed} was committed while the rescale was planned",
            hint="Stop the query, then rescale again.",
        )
    groups = before.format.key_groups
    report = RescaleReport(
        checkpoint=root,
        current=before.partitions,
        partitions=partitions,
        batch=before.committed,
        way=COMPOSED,
        max_parallelism=groups.max_parallelism,
        near=divisors_near(groups.max_parallelism, partitions),
        stores=0,
        state_bytes=state_bytes(before),
        written_bytes=0,
        seconds=0.0,
        dry_run=dry_run,
        undone=undone or left is not None,
    )
    if report.undone and partitions == before.partitions and max_parallelism is None:
        if announce is not None:
            announce(report)
        if hold is not None:
            _take_away(storage, left, hold)
        return report
    _check(before, root, partitions, skip_uncommitted)
    sink = keeping.for_rescale(
        file_sink,
        read_sink(storage),
        committed=before.committed,
        batch=before.started + 1,
        empty=before.spark.without_rows,
    )
    divides = groups.max_parallelism % partitions == 0 and max_parallelism in (
        None,
        groups.max_parallelism,
    )
    alike = all(
        merge_families(stores) is not None
        for by_name in before.stores.values()
        for stores in by_name.values()
    )
    keeps = divides and alike
    report = replace(
        report,
        batch=before.started + 1,
        way=COMPOSED if keeps else REHASH,
        near=report.near if alike else (),
        stores=sum(
            1 if operator in before.single else partitions
            for operator, by_name in before.stores.items()
            for _ in by_name
        ),
        file_sink=sink.root,
        warnings=(
            *sink.warnings,
            *((_UNWATCHED,) if ran_without_extension(storage) else ()),
            *((_UNLIKE,) if divides and not alike else ()),
        ),
    )
    if keeps:
        writing = composed(storage, before, partitions)
        planned = replace(
            report,
            written_bytes=writing.total_bytes,
            seconds=round(0.1 + len(writing.files) * _SECONDS_PER_FILE, 3),
            dry_run=True,
        )
        if announce is not None:
            announce(planned)
        if hold is None:
            return planned
        _carry_out(storage, before, replace(writing, sink=sink.entries), left, hold)
    else:
        plan = rehash.plan_rehash(storage, image, partitions, max_parallelism, report.state_bytes)
        report = replace(report, max_parallelism=plan.new.key_groups.max_parallelism)
        planned = replace(
            report, written_bytes=report.state_bytes, seconds=round(plan.seconds, 3), dry_run=True
        )
        if announce is not None:
            announce(planned)
        rehash.check_space(storage, plan)
        if hold is None:
            return planned
        remove_leftovers(storage)
        with rehash.rehashed(storage, before, plan) as writing:
            report = replace(report, written_bytes=writing.total_bytes)
            _carry_out(storage, before, replace(writing, sink=sink.entries), left, hold)
    return replace(report, written_bytes=report.written_bytes or writing.total_bytes)


def _carry_out(
    storage: Storage, before: Before, writing: Writing, left: int | None, hold: Hold
) -> None:
    """Carry a rescale out, unless a query was started since the state was read: that, and writing
    rows anew, may have taken a while.

    Args:
        left: the batch of Spark's own repartition, which goes. The rescale takes its number.
    """
    hold.refuse_running()
    _take_away(storage, left, hold)
    carry_out(storage, replace(writing, first_unused=before.committed + 1), hold)


def _refuse_savepoint(storage: Storage, root: str) -> None:
    if next(storage.list(layout.SAVEPOINT_KEY), None) is not None:
        raise InvalidInputError(
            f"{root} is a savepoint, which nothing changes",
            kind=ErrorKind.NOT_A_CHECKPOINT,
            hint=(
                "Make a Spark checkpoint of it: `millpond savepoint restore"
                f" {shlex.quote(root)} <new checkpoint> --partitions M`."
            ),
        )


def undo(storage: Storage, root: str) -> bool:
    """Take back an interrupted rescale, or what Spark's own repartition left. Return whether there
    was one that had not switched over.

    Raises: ConflictError: QUERY_RUNNING, COMMAND_RUNNING. InvalidInputError: STATE_OWNED,
        NOT_A_CHECKPOINT.
    """
    with at_work(storage, root, "rescale --undo") as hold:
        claim(storage, root)
        remove_leftovers(storage)
        journal = read_journal(storage)
        if journal is None and not is_there(storage, spark_names.QUERY_METADATA_KEY):
            raise error(ErrorKind.NOT_A_CHECKPOINT, f"no checkpoint of a streaming query: {root}")
        if journal is None:
            left = left_by_spark(storage)
            _take_away(storage, left, hold)
            return left is not None
        return not clear(storage, journal, hold)


def _check(before: Before, root: str, partitions: int, skip_uncommitted: bool) -> None:
    """Raise unless one way of rescaling to `partitions` is possible."""
    check_partitions(partitions, before.partitions)
    if before.started != before.committed and not skip_uncommitted:
        raise NotFoundError(
            f"{root}: batch {before.started} was begun and not committed",
            kind=ErrorKind.BATCH_NOT_COMMITTED,
            hint=(
                "Start the query once, so that it finishes the batch, and stop it; or leave the"
                " batch out with --skip-uncommitted."
            ),
        )
    for operator, by_name in before.stores.items():
        for stores in by_name.values():
            if operator not in before.single:
                check_scalable(stores, before.partitions)


def _finish_interrupted(storage: Storage, root: str, partitions: int, hold: Hold | None) -> bool:
    """Take an interrupted rescale back. Return whether there was one that had not switched over.

    Args: hold: None: of a dry run, which takes nothing back.
    """
    journal = read_journal(storage)
    if journal is None:
        return False
    if hold is None or journal.partitions != partitions:
        raise rescale_error(journal, root)
    return not clear(storage, journal, hold)


def _take_away(storage: Storage, left: int | None, hold: Hold) -> None:
    """Take away the batch that Spark's own repartition began and did not end, if there is one.

    Its entry of the offset log is all of it, and keeps every query from starting.
    """
    if left is not None:
        hold.check()
        entry = spark_names.offsets_key(left)
        storage.delete([entry, spark_names.crc_key(entry)])
