"""`bootstrap`: makes a Spark checkpoint whose state comes from rows that exist already, so that a
job starts warm.

The query runs once, as batch 0, in a directory beside the target. It reads the given rows instead
of its sources, and it has no sink. Then `fork` makes the target of that run. If state is given,
`create`, `edit` and `restore` make it. So nothing here knows what any operator keeps.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond import config
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.format import layout
from millpond.operations.output.atomic_target import check_vacant, empty, scratch_beside
from millpond.operations.savepoint.create import create
from millpond.operations.savepoint.edit import edit
from millpond.operations.savepoint.kafka_warnings import kafka_warnings
from millpond.operations.savepoint.restore import RestoreReport, fork, restore
from millpond.query.whole import checkpoint_image
from millpond.rows import require_tools
from millpond.spark import job as jobs
from millpond.spark.job_script import JobQuery, chosen, load
from millpond.spark.offsets import check_offsets, offset_texts
from millpond.spark.session import PROVIDER_CLASS
from millpond.spark.sinks import keeping
from millpond.spark.uris import uri_below
from millpond.storage import LocalStorage, open_checkpoint, open_storage, root_of
from millpond.storage.given import place_of_new_state, takes_options
from millpond.storage.place import place_of, read_place

_RUN, _SAVED = "run", "savepoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSource:
    """A source of the query."""

    source: int
    name: str
    rows: int | None  # read in its place, each time; None: none were given; -1: not counted
    offset: Any  # the source goes on after it (JSON values); None: it begins as in a new query


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOperator:
    """A stateful operator of the query."""

    operator: int
    name: str
    keys: int  # -1: not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapReport:
    """What `bootstrap` wrote, or would write.

    `to_json` is the contract of `millpond savepoint bootstrap --json`.
    """

    checkpoint: str
    query: str | None  # queryName
    batch: int  # the last committed one; the query goes on with the next
    query_id: str | None  # None: of a dry run
    watermark_ms: int | None  # of the next batch, since the epoch; 0: there is none; None: dry run
    partitions: int | None
    max_parallelism: int | None
    sources: tuple[BootstrapSource, ...]
    operators: tuple[BootstrapOperator, ...]
    bytes_written: int
    dry_run: bool
    file_sink: str | None = None  # its log says that batch 0 wrote nothing
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@takes_options
def bootstrap(
    job: str | os.PathLike[str] | Callable[..., object],
    checkpoint: str | os.PathLike[str],
    *,
    rows: Any = None,
    state: Any = None,
    operator: int | str | None = None,
    offsets: Mapping[int, object] | None = None,
    query: str | None = None,
    storage_uri: str | None = None,
    conf: Mapping[str, str] | None = None,
    file_sink: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    options: Mapping[str, object] | None = None,
) -> BootstrapReport:
    """Make a Spark checkpoint with which a job starts warm: with the state that rows make, or with
    rows of state, and at given offsets.

    This starts no query of the job, reads none of its sources, and writes no row to its sink. It
    runs the query once, as batch 0, over `rows`. They go through the query itself, so the query
    makes the state and the watermark. Its output is dropped. Rows that the watermark closes only
    afterwards come with the first batch of the job.

    Args:
        job: path of a Python script, `path.py:function`, or a function that returns a streaming
            DataFrame or its writer.
        checkpoint: path or URI that does not exist yet, or is an empty directory. Afterwards it is
            complete or absent, whatever happens. Spark also writes to a directory beside it, so the
            executors must reach that.
        rows: a DataFrame, or a `pyarrow.Table`, with the columns of the query's only source; or a
            mapping of the number of a source, from 0, to one. Sources are numbered as in Spark's
            offset log: in the order of the plan. A source that is not named gives no rows.
        state: a `pyarrow.Table` with the columns `key` and `value`, as `millpond.read_state`
            returns them; or a mapping to one of the name of a column family (a state variable, say)
            or of a store of a join. It replaces what `rows` made of that column family.
        operator: the operator of `state`, if the query has several: number or name.
        offsets: a mapping of the number of a source to the offset after which it goes on, as JSON,
            as Spark's offset log has it: `{0: {"topic": {"0": 23}}}`. A source that is not named
            begins as in a new query.
        query: queryName of the query, if the job has several.
        storage_uri: where the state goes; None: what `options` say, or the session's option
            storage.uri, else into the Spark checkpoint.
        conf: settings of a Spark session for the job, if none runs yet. The batch runs with the
            settings of the session.
        file_sink: path or URI of the empty directory that the query writes to in a file format. Its
            log gets an entry for batch 0, which the query never writes. `none`: the query writes to
            none. None: what the job itself says.
        dry_run: write nothing, and check what can be checked without the batch.
        options: of the storages, by name. They do not reach the session of the job: `conf` does.
    Raises:
        InvalidInputError: TARGET_NOT_EMPTY, OPERATOR_UNKNOWN, FILE_SINK_INVALID,
            FILE_SINK_MISMATCH; INVALID_ARGUMENT: columns, offsets or a query that do not fit.
        UnsupportedError: SHIM_MISSING; FOREIGN_CHECKPOINT: the session keeps its state elsewhere;
            UNSUPPORTED: the extra `tools` is not installed. UnavailableError: storage. What the job
            itself raises.
    """
    if rows is None and state is None and offsets is None:
        raise _invalid("there is nothing to begin with: give rows, state or offsets")
    tables = _tables(state)
    if operator is not None and not tables:
        raise _invalid("operator says whose the state is, and no state is given")
    if tables:
        require_tools(load=False)
    texts = offset_texts(offsets or {})
    new_root = root_of(checkpoint)
    check_vacant(new_root)
    meant = chosen(load(job, lambda: jobs.new_session(conf or {})), query)
    provider = jobs.provider(meant)
    if provider != PROVIDER_CLASS:
        raise UnsupportedError(
            f"the session keeps state in {provider}",
            kind=ErrorKind.FOREIGN_CHECKPOINT,
            hint="Start it with millpond.configure(SparkSession.builder).",
        )
    where = place_of_new_state(storage_uri)
    if where is None:
        where = jobs.setting(meant, f"{config.PREFIX}storage.uri")
    if where is not None:
        check_vacant(place_of(where, str(uuid.uuid4())))  # raises if it cannot be reached
    given = _by_source(rows, jobs.sources(meant, {}))
    frames = {number: jobs.batch_frame(meant, one) for number, one in given.items()}
    sources = jobs.sources(meant, frames)
    _check_rows(sources, frames)
    texts = _to_all(texts, sources)

    def said(counted: Mapping[int, int]) -> tuple[BootstrapSource, ...]:
        return tuple(
            BootstrapSource(
                source=number,
                name=one.name,
                rows=counted.get(one.first, -1) if one.first in frames else None,
                offset=json.loads(texts[number]) if number in texts else None,
            )
            for number, one in enumerate(sources)
        )

    sink = keeping.for_start(
        file_sink if file_sink is not None else _sink_of(meant),
        None,
        batch=0,
        same_query=False,
    )
    if dry_run:
        return replace(_dry(new_root, meant, said({})), file_sink=sink.root, warnings=sink.warnings)
    with scratch_beside(new_root) as scratch:
        run = f"{scratch}/{_RUN}"
        try:
            counts = jobs.run_over(meant, frames, uri_below(run, "").rstrip("/"))
            written_to = sink.root or keeping.NONE
            report = _taken_over(
                run, scratch, checkpoint, tables, operator, texts, where, written_to
            )
        finally:
            _discard_state(run)
    image = checkpoint_image(open_checkpoint(new_root), new_root, report.batch)
    firsts = [number for number, one in enumerate(sources) if one.first == number]
    return BootstrapReport(
        checkpoint=new_root,
        query=meant.name,
        batch=report.batch,
        query_id=report.query_id,
        watermark_ms=image.watermark_ms,
        partitions=report.partitions,
        max_parallelism=report.max_parallelism,
        sources=said(dict(zip(firsts, counts, strict=False))),
        operators=tuple(
            BootstrapOperator(operator=o.operator, name=o.name, keys=o.keys)
            for o in image.operators
        ),
        bytes_written=report.bytes_written + report.bytes_copied + report.bytes_linked,
        dry_run=False,
        file_sink=sink.root,
        warnings=(*sink.warnings, *kafka_warnings(image, meant)),
    )


def _sink_of(meant: JobQuery) -> str | None:
    """Return the sink of the query's own writer, as `--file-sink` has it; None: it does not say."""
    sink = jobs.sink(meant)
    if sink is None:
        return None
    return sink.path if sink.is_file else keeping.NONE


def _taken_over(
    run: str,
    scratch: str,
    checkpoint: str | os.PathLike[str],
    tables: Mapping[str | None, Any],
    operator: int | str | None,
    offsets: Mapping[int, object],
    storage_uri: str | None,
    file_sink: str,
) -> RestoreReport:
    """Make the target from the Spark checkpoint of the batch."""
    if not tables:
        return fork(run, checkpoint, offsets=offsets, storage_uri=storage_uri, file_sink=file_sink)
    saved = f"{scratch}/{_SAVED}-0"
    create(run, saved)
    stores = {
        store.name
        for one in checkpoint_image(open_checkpoint(run), run).operators
        for store in one.stores
    }
    for number, (family, table) in enumerate(tables.items(), 1):
        edited = f"{scratch}/{_SAVED}-{number}"
        # Joins in their older formats have a store where others have a column family.
        store, column_family = (family, None) if family in stores else (None, family)
        edit(
            saved, edited, operator=operator, store=store, column_family=column_family, table=table
        )
        saved = edited
    return restore(saved, checkpoint, offsets=offsets, storage_uri=storage_uri, file_sink=file_sink)


def _discard_state(run: str) -> None:
    """Delete the state of the batch if the option storage.uri has put it elsewhere."""
    place = read_place(open_storage(run))
    if place is None:
        return
    storage = open_storage(place)
    if isinstance(storage, LocalStorage):
        shutil.rmtree(storage.root, ignore_errors=True)
    else:
        empty(storage)


def _dry(new_root: str, meant: JobQuery, sources: tuple[BootstrapSource, ...]) -> BootstrapReport:
    with tempfile.TemporaryDirectory(prefix="millpond-bootstrap-") as directory:
        state = uri_below(os.path.realpath(directory), layout.STATE_DIR)
        found = jobs.operators(meant, state, 0, {})
    partitions = jobs.setting(meant, "spark.sql.shuffle.partitions")
    return BootstrapReport(
        checkpoint=new_root,
        query=meant.name,
        batch=0,
        query_id=None,
        watermark_ms=None,
        partitions=int(partitions) if partitions is not None else None,
        max_parallelism=None,
        sources=sources,
        operators=tuple(
            BootstrapOperator(operator=one.operator, name=one.name, keys=-1) for one in found
        ),
        bytes_written=0,
        dry_run=True,
    )


def _tables(state: Any) -> dict[str | None, Any]:
    """Return state as tables by column family; None stands for the only one.

    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    tables = dict(state) if isinstance(state, Mapping) else {} if state is None else {None: state}
    for family, table in tables.items():
        names = getattr(table, "column_names", None)
        what = "state" if family is None else f"the state of {family!r}"
        if names is None:
            raise _invalid(f"{what} is a pyarrow.Table, not a {type(table).__name__}")
        if "value" not in names:  # of a key without columns, which Parquet leaves out, `edit` knows
            raise _invalid(f"{what} needs the columns key and value, and has: {', '.join(names)}")
    return tables


def _by_source(rows: Any, sources: list[jobs.JobSource]) -> dict[int, Any]:
    """Return rows by the number of their source.

    Raises: InvalidInputError: INVALID_ARGUMENT. UnsupportedError.
    """
    listed = ", ".join(
        f"{number} {one.name}" for number, one in enumerate(sources) if one.first == number
    )
    for one in sources:
        if not one.replaceable:
            raise UnsupportedError(
                f"no rows can take the place of a streaming source like {one.name}"
            )
    if rows is None:
        return {}
    if not isinstance(rows, Mapping):
        if len({one.first for one in sources}) != 1:
            raise _invalid(
                "say which of the sources the rows are of, {number: rows}; the query has:"
                f" {listed}"
            )
        return {0: rows}
    for number in rows:
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not 0 <= number < len(sources)
        ):
            raise _invalid(f"there is no source {number!r}; the query has: {listed}")
        if sources[number].first != number:
            raise _invalid(
                f"source {number} is source {sources[number].first} once more: give its rows for"
                " that one"
            )
    return dict(rows)


def _check_rows(sources: list[jobs.JobSource], frames: Mapping[int, Any]) -> None:
    """Raise InvalidInputError (INVALID_ARGUMENT) if rows lack columns of their source."""
    for number in frames:
        source = sources[number]
        if source.misfits:
            columns = ", ".join(f"{name} {kind}" for name, kind in source.columns.items())
            raise InvalidInputError(
                f"the rows do not fit source {number} ({source.name}): {', '.join(source.misfits)}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint=(
                    f"Its columns: {columns}. What the rows have beyond these is left out; what"
                    " they lack may be null."
                ),
            )


def _to_all(texts: Mapping[int, str], sources: list[jobs.JobSource]) -> dict[int, str]:
    """Return the offsets by every number of a source. One that the query reads twice has two.

    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    check_offsets(texts, len(sources), [n < len(sources) and sources[n].files for n in texts])
    for number, text in texts.items():
        first = sources[number].first
        if texts.get(first, text) != text:
            raise _invalid(f"source {number} is source {first} once more, and has another offset")
    of_first = {sources[number].first: text for number, text in texts.items()}
    return {
        number: of_first[one.first] for number, one in enumerate(sources) if one.first in of_first
    }


def _invalid(message: str) -> InvalidInputError:
    return InvalidInputError(
        message,
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Change the argument or the job that the message names; then nothing was written.",
    )
