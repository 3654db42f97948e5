"""`millpond savepoint bootstrap`: calls `millpond.bootstrap`, and prints what it reports."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from typing import Any

from millpond.cli.arguments import add_file_sink, add_job, add_options, settings
from millpond.cli.output import Output, bytes_text, count_text
from millpond.errors import ErrorKind, InvalidInputError
from millpond.operations.notebook import time_text
from millpond.rows import require_tools
from millpond.rows.chunks import table_batches
from millpond.savepoint import BootstrapReport
from millpond.savepoint import bootstrap as bootstrap_checkpoint


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    command.add_argument(
        "checkpoint",
        help=(
            "the checkpointLocation of the query to start: a directory or a URI that does not exist"
            " yet, or is empty"
        ),
    )
    add_job(command)
    command.add_argument(
        "--rows",
        action="append",
        default=[],
        metavar="[SOURCE=]PATH",
        help=(
            "Parquet, as spark.read.parquet takes it, with the columns of a source; with several"
            " sources the number of the one that is meant, from 0, in the order of the plan;"
            " repeatable"
        ),
    )
    command.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="[FAMILY=]PATH",
        help=(
            "Parquet with the columns key and value, which takes the place of the rows of a column"
            " family, such as a state variable; repeatable"
        ),
    )
    command.add_argument(
        "--operator", metavar="OPERATOR", help="whose --state it is: number or name"
    )
    command.add_argument(
        "--offsets",
        metavar="FILE.json",
        help=(
            "after which offsets sources go on, those not named begin as in a new query: the number"
            ' of each, from 0, to its offset as in the offset log, such as {"0": {"topic": {"0":'
            " 23}}}"
        ),
    )
    command.add_argument(
        "--storage-uri",
        metavar="URI",
        help=(
            "where the state goes, as by the option storage.uri (default: what --conf says of it,"
            " else into the checkpoint)"
        ),
    )
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "a setting of the Spark session, as the job's own: spark.sql.shuffle.partitions for"
            " one; repeatable"
        ),
    )
    add_file_sink(command, "what the job says of it")
    add_options(command)
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="check what can be checked without running the query, write nothing",
    )


def bootstrap(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint with which a job starts warm."""
    conf = settings(arguments.conf)
    paths = _named(arguments.rows, "--rows", numbers=True)
    tables = _tables(arguments.state)
    offsets = _offsets(arguments.offsets) if arguments.offsets is not None else None
    rows: Any = None
    if paths:
        from millpond.spark.job import new_session, parquet_frame  # imported here: it takes long

        spark = new_session(conf)
        frames = {number: parquet_frame(spark, path) for number, path in paths.items()}
        rows = (
            frames[None]
            if None in frames
            else {int(str(number)): frame for number, frame in frames.items()}
        )
    report = bootstrap_checkpoint(
        arguments.job,
        arguments.checkpoint,
        rows=rows,
        state=tables,
        operator=_operator(arguments.operator),
        offsets=offsets,
        query=arguments.query,
        storage_uri=arguments.storage_uri,
        conf=conf,
        file_sink=arguments.file_sink,
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        output.json(report.to_json())
    else:
        _print(report, output)
    output.warnings(report.warnings)
    return 0


def _print(report: BootstrapReport, output: Output) -> None:
    output.line(f"{'checkpoint':<13} {report.checkpoint}")
    output.line(f"{'batch':<13} {report.batch}")
    output.line(f"{'query id':<13} {report.query_id or 'none'}")
    output.line(
        f"{'watermark':<13} {time_text(report.watermark_ms) if report.watermark_ms else 'none'}"
    )
    output.line(f"{'partitions':<13} {count_text(report.partitions)}")
    if report.file_sink is not None:
        output.line(f"{'file sink':<13} {report.file_sink}")
    output.line(f"{'written':<13} {bytes_text(report.bytes_written)}")
    output.line()
    output.table(
        ("source", "name", "rows", "goes on after"),
        [
            (
                str(s.source),
                s.name,
                _count(s.rows),
                "-" if s.offset is None else json.dumps(s.offset),
            )
            for s in report.sources
        ],
        right=(0, 2),
    )
    output.line()
    output.table(
        ("operator", "name", "keys"),
        [(str(o.operator), o.name, _count(o.keys)) for o in report.operators],
        right=(0, 2),
    )
    if report.dry_run:
        output.message("nothing was run or written (--dry-run)")


def _count(count: int | None) -> str:
    return count_text(None if count == -1 else count)


def _operator(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _named(given: Iterable[str], option: str, *, numbers: bool) -> dict[str | None, str]:
    """Return the paths by the text before `=`; by None if there is no such text.

    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    found: dict[str | None, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        # A path may contain `=`, as directories of partitions do.
        named = (
            bool(equals)
            and (name.isdecimal() if numbers else "/" not in name)
            and not os.path.exists(text)
        )
        key = (str(int(name)) if numbers else name) if named else None
        if key in found or (None in found and found) or (key is None and found):
            raise InvalidInputError(
                f"{option} is given more than once: say which is which,"
                f" {'SOURCE' if numbers else 'FAMILY'}=PATH",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Number or name each of them, as the message shows.",
            )
        found[key] = path if named else text
    return found


def _tables(given: Iterable[str]) -> Any:
    """Return the tables of `--state`; None if there are none.

    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    paths = _named(given, "--state", numbers=False)
    if not paths:
        return None
    require_tools()
    import pyarrow as pa  # start-up time
    import pyarrow.parquet as pq

    tables = {}
    for family, path in paths.items():
        batches = [*table_batches(path)]
        try:
            tables[family] = pa.Table.from_batches(batches) if batches else pq.read_table(path)
        except (OSError, ValueError) as e:
            raise InvalidInputError(
                f"{path} cannot be read: {e}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Name a Parquet file that is there, or a directory of them.",
            ) from e
    return tables.get(None, tables)


def _offsets(path: str) -> dict[int, object]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as e:
        raise InvalidInputError(
            f"{path} cannot be read: {e}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name a file that is there, and is valid JSON.",
        ) from e
    return value  # type: ignore[no-any-return]
