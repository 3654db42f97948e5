"""`restore` makes a new Spark checkpoint from a savepoint, `fork` directly from that of a query."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, NotFoundError
from millpond.format import layout
from millpond.local.scratch import scratch_directory
from millpond.operations.output.atomic_target import building
from millpond.operations.output.copying import Progress, Written, damaged_state, write_image
from millpond.operations.repartition.origin import Origin
from millpond.operations.repartition.pipeline import write_changelogs
from millpond.operations.savepoint.create import (
    check_apart,
    of_newest_look,
    origin_and_new,
    pin_of,
)
from millpond.operations.savepoint.edit import edit
from millpond.operations.savepoint.fit_job import Confirm, job_to_fit
from millpond.operations.savepoint.planned_image import Changes, plan_image
from millpond.operations.savepoint.restored_image import DROP, GIVEN, KEEP
from millpond.query import image as images
from millpond.query.erasing import read_erasures, refuse_erased
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image
from millpond.query.index import CANONICAL, damaged, read_index
from millpond.query.whole import telling_what_is_left
from millpond.rows import require_tools
from millpond.spark import live
from millpond.spark.column_changes import ColumnChanges
from millpond.spark.heartbeats import refuse_running
from millpond.spark.offsets import offset_texts
from millpond.spark.sinks.recorded import record
from millpond.storage import Storage, open_checkpoint, open_storage
from millpond.storage.given import place_of_new_state, takes_options
from millpond.storage.owner import check_owner
from millpond.storage.place import place_of

log = logging.getLogger(__name__)

_FORK = "leave out --keep-query-id (Python: keep_query_id)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What `restore` or `fork` wrote, or would write. `to_json` is the contract of `--json`."""

    origin: str  # the savepoint, or the Spark checkpoint
    checkpoint: str  # the new one
    batch: int  # the last committed one; the query goes on with the next
    query_id: str | None
    operators: tuple[tuple[int, int], ...]  # number in the origin, number in the new one
    dropped: tuple[int, ...]
    offsets: str  # keep, drop or given
    partitions: int | None
    max_parallelism: int | None
    backend: str | None  # for sessions that set none
    files: int  # in the dry run of a repartition: without those of the state
    size_bytes: int
    bytes_written: int
    bytes_copied: int  # by the object storage itself: no byte came here
    bytes_linked: int
    dry_run: bool
    file_sink: str | None = None  # of the new query; its log holds all earlier batches
    warnings: tuple[str, ...] = ()
    new_operators: tuple[int, ...] = ()  # of the job alone; they begin with empty state

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["operators"] = [{"from": old, "to": new} for old, new in self.operators]
        return value


@takes_options
def restore(
    savepoint: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    keep_query_id: bool = False,
    offsets: str | Mapping[int, object] = KEEP,
    map_operators: Mapping[int, int] | None = None,
    drop_operators: Collection[int] = (),
    partitions: int | None = None,
    max_parallelism: int | None = None,
    storage_uri: str | None = None,
    backend: str | None = None,
    file_sink: str | os.PathLike[str] | None = None,
    allow_new_operator: bool = False,
    match_operators: Confirm = False,
    job: str | os.PathLike[str] | Callable[..., object] | None = None,
    query: str | None = None,
    conf: Mapping[str, str] | None = None,
    columns: ColumnChanges | None = None,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    copy: bool = False,
    link: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: Any = None,
    options: Mapping[str, object] | None = None,
) -> RestoreReport:
    """Make a new Spark checkpoint from a savepoint. A query that starts with it goes on after the
    savepoint's batch.

    Args:
        savepoint: path or URI of the savepoint. It does not change.
        checkpoint: path or URI that does not exist yet, or is an empty directory. Afterwards it is
            complete or absent, whatever happens.
        keep_query_id: False: the query is a new one (a fork). True: it is the same (a move: the old
            one must not run again).
        offsets: `keep`: sources go on where they were. `drop`: they begin as in a new query; state
            and watermark stay. Or a mapping of the number of a source, from 0, to its offset as
            Spark's offset log has it, `{0: {"topic": {"0": 23}}}`: the source goes on after that,
            and a source that is not named begins as in a new query.
        map_operators: old number to new, of stateful operators that have another number in the plan
            of the new job.
        drop_operators: numbers of operators whose state is left out.
        partitions: number of state partitions (spark.sql.shuffle.partitions of the query); None: as
            many as it had. Another number writes every row anew.
        max_parallelism: number of key groups, a multiple of `partitions`; None: what it had, if
            that is possible.
        storage_uri: where the state of the new Spark checkpoint goes, as by the option storage.uri;
            None: as `options` say, else into the Spark checkpoint.
        backend: `rocksdb` or `heap`: the backend of the query, unless its session sets the option
            backend; None: that of the saved query.
        file_sink: path or URI of the directory that the new query writes to in a file format: an
            empty one, or for a move that of the query itself. `none`: the query writes to none.
            None: refused if the saved query writes to one.
        allow_new_operator: a stateful operator that only `job` has begins with empty state. Without
            it Spark refuses such a job.
        match_operators: operators that have another number in the plan of `job` get it: they are
            found by name and columns. A function gets what becomes of each operator, and returns
            whether that is meant. False: such a job is refused, unless `map_operators` says it.
        job, query, conf: the job that is to start, as for `plan`. It is planned, and refused if
            `plan` refuses it; needed for `allow_new_operator` and `match_operators`,
            and to ask Kafka whether it still has the offsets that the job goes on from.
        columns, operator, store, column_family: other columns for the values of one column family,
            as for `edit`. The edited state goes through a scratch directory of this machine.
        copy: copy files, even if both are on one file system, where the new Spark checkpoint could
            share blocks with the savepoint.
        link: the older name: `link=False` is `copy=True`.
        dry_run: write nothing.
        progress: called now and then with how much is done, and how much there is in all.
        spark: a SparkSession whose executors write rows anew, if that is needed: as for `create`.
        options: of the storages, by name. They do not reach a session of `job`.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT, TARGET_NOT_EMPTY, OPERATOR_UNKNOWN,
            MAX_PARALLELISM_INVALID, INVALID_ARGUMENT; FILE_SINK_UNKNOWN, FILE_SINK_INVALID,
            FILE_SINK_MISMATCH. OPERATOR_UNKNOWN also if `job` has not the operators of the
            savepoint, INVALID_ARGUMENT if Spark refuses it.
        FormatError: SAVEPOINT_DAMAGED. UnavailableError: storage.
        UnsupportedError: FORMAT_TOO_NEW; UNSUPPORTED: only Spark knows where rows belong on other
            partitions; FOREIGN_CHECKPOINT: a new operator, and the saved query had no state in
            Millpond. What the job itself raises. With `columns`, also as `edit`.
    """
    storage_uri = place_of_new_state(storage_uri)
    changes = Changes(
        keep_query_id=keep_query_id,
        offsets=_offsets(offsets),
        mapped=map_operators or {},
        dropped=set(drop_operators),
        partitions=partitions,
        max_parallelism=max_parallelism,
        storage_uri=storage_uri,
        backend=backend,
        file_sink=file_sink,
        fit=job_to_fit(job, query, conf, allow_new_operator, match_operators),
    )
    origin, new_root = origin_and_new(savepoint, checkpoint)
    sharing = link and not copy
    if not columns:
        if (operator, store, column_family) != (None, None, None):
            raise InvalidInputError(
                "an operator, store or column family is named, and no change of its columns",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="To leave an operator out, say --drop-operator; to read one, millpond state.",
            )
        return _restore(origin, new_root, changes, sharing, dry_run, progress, spark)
    if spark is not None:
        raise InvalidInputError(
            "executors cannot change columns",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Change them with millpond savepoint edit first, then restore what it wrote.",
        )
    if storage_uri is not None:
        # `_write` knows only the edited savepoint.
        check_apart(origin, place_of(storage_uri, str(uuid.uuid4())))
    with scratch_directory("restore") as directory:
        edited = os.path.join(directory, "edited")
        edit(
            origin,
            edited,
            operator=operator,
            store=store,
            column_family=column_family,
            columns=columns,
            progress=progress,
        )
        report = _restore(edited, new_root, changes, sharing, dry_run, progress, spark)
    return replace(report, origin=origin)


def _restore(
    origin: str,
    new_root: str,
    changes: Changes,
    sharing: bool,
    dry_run: bool,
    progress: Progress | None,
    spark: Any,
) -> RestoreReport:
    source = open_storage(origin)
    index = read_index(source, origin)
    image = savepoint_image(source, index)
    if index.format == CANONICAL:
        require_tools()
    rows = Origin(origin, image, index)
    try:
        return _write(
            new_root, source, rows, changes, nullcontext(), sharing, dry_run, progress, spark
        )
    except NotFoundError as e:
        raise damaged(e.message) from e


@takes_options
def fork(
    checkpoint: str | os.PathLike[str],
    new_checkpoint: str | os.PathLike[str],
    *,
    batch: int | None = None,
    keep_query_id: bool = False,
    offsets: str | Mapping[int, object] = KEEP,
    map_operators: Mapping[int, int] | None = None,
    drop_operators: Collection[int] = (),
    partitions: int | None = None,
    max_parallelism: int | None = None,
    storage_uri: str | None = None,
    backend: str | None = None,
    file_sink: str | os.PathLike[str] | None = None,
    allow_new_operator: bool = False,
    match_operators: Confirm = False,
    job: str | os.PathLike[str] | Callable[..., object] | None = None,
    query: str | None = None,
    conf: Mapping[str, str] | None = None,
    copy: bool = False,
    link: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    spark: Any = None,
    options: Mapping[str, object] | None = None,
) -> RestoreReport:
    """Make a new Spark checkpoint from that of a query, which may run: `create` and `restore` in
    one step.

    On one file system that moves no bytes of state. The two queries share no file that either of
    them changes.

    With `keep_query_id` they are one query, also for its sink, and it must not run, nor have run
    meanwhile: ConflictError, QUERY_RUNNING or COMMAND_RUNNING.

    Args, Raises: as for `create` and `restore`.
    """
    storage_uri = place_of_new_state(storage_uri)
    changes = Changes(
        keep_query_id=keep_query_id,
        offsets=_offsets(offsets),
        mapped=map_operators or {},
        dropped=set(drop_operators),
        partitions=partitions,
        max_parallelism=max_parallelism,
        storage_uri=storage_uri,
        backend=backend,
        file_sink=file_sink,
        fit=job_to_fit(job, query, conf, allow_new_operator, match_operators),
    )
    origin, new_root = origin_and_new(checkpoint, new_checkpoint)
    source = open_checkpoint(origin)
    check_owner(source, origin)
    logs = None
    if keep_query_id:
        refuse_running(source, origin)
        logs = live.read_logs(source)  # before the image: a batch that comes meanwhile counts
    erased = read_erasures(source)

    def check() -> None:
        refuse_erased(source, origin, erased)
        if logs is not None:
            refuse_running(source, origin)
            live.refuse_moved(source, origin, logs, own=_FORK)  # a run may have come and gone

    with telling_what_is_left(source, origin, batch):

        def make(image: Image) -> RestoreReport:
            rows = Origin(origin, image)
            sharing, pin = link and not copy, pin_of(source, image)
            return _write(
                new_root, source, rows, changes, pin, sharing, dry_run, progress, spark, check
            )

        return of_newest_look(source, origin, batch, make)


def _offsets(given: str | Mapping[int, object]) -> str | Mapping[int, str]:
    if not isinstance(given, str):
        return offset_texts(given)
    if given not in (KEEP, DROP):
        raise InvalidInputError(
            f"offsets: {given!r} is neither {KEEP} nor {DROP}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=(
                "Write keep to go on where the query was, drop to read the sources from"
                " their start."
            ),
        )
    return given


def _write(
    new_root: str,
    source: Storage,
    origin: Origin,
    changes: Changes,
    pin: AbstractContextManager[object],
    link: bool,
    dry_run: bool,
    progress: Progress | None,
    spark: Any,
    check: Callable[[], None] | None = None,
) -> RestoreReport:
    """Write the new Spark checkpoint. Args: check: called when the state is copied."""
    planned = plan_image(origin, new_root, changes, dry_run=dry_run)
    image, new, sink = planned.image, planned.partitions, planned.sink
    of_savepoint = origin.index is not None
    written = Written()
    state_bytes: dict[str, int] = {}
    if not dry_run:
        if planned.state is not None:
            # A fork's place has a random name, which a killed command has told nobody.
            log.warning(
                "the state goes to %s; if this command is killed, delete what it left there",
                planned.state,
            )
        # The entries of the sink's log come late: by then this command hardly fails, and takes none
        # back on which another one relies.
        with pin, ExitStack() as until_end, building(new_root, planned.state) as target:

            def before_texts() -> None:
                if check is not None:
                    check()
                until_end.enter_context(sink.writing())

            if new is not None:
                state_bytes = write_changelogs(
                    origin, new, planned.numbers, source, target, spark=spark, progress=progress
                )
            if sink.sink is not None:
                target.storage.put_bytes(layout.SINK_KEY, record(sink.sink))
            written = write_image(
                image,
                source,
                target,
                link=link,
                verify=of_savepoint,
                damaged=damaged if of_savepoint else damaged_state,
                progress=progress,
                before_texts=before_texts,
            )
    return RestoreReport(
        origin=origin.root,
        checkpoint=new_root,
        batch=image.batch,
        query_id=image.query_id,
        operators=tuple(sorted(planned.numbers.items())),
        dropped=tuple(sorted(changes.dropped)),
        offsets=changes.offsets if isinstance(changes.offsets, str) else GIVEN,
        partitions=image.partitions,
        max_parallelism=image.max_parallelism,
        backend=images.backend_of(image),
        files=len(image.texts) + len(image.files) + len(state_bytes),
        size_bytes=image.size_bytes + sum(state_bytes.values()),
        bytes_written=written.bytes_written + sum(state_bytes.values()),
        bytes_copied=written.bytes_copied,
        bytes_linked=written.bytes_linked,
        dry_run=dry_run,
        file_sink=sink.root,
        warnings=planned.warnings,
        new_operators=planned.new_operators,
    )
