"""`millpond savepoint edit`: calls `millpond.operations.savepoint.edit`, and prints what it
reports.
"""

from __future__ import annotations

import argparse
from typing import Any

from millpond import savepoint as savepoints
from millpond.cli.arguments import add_columns, add_family, add_options, columns_of
from millpond.cli.output import Output
from millpond.cli.progress import progress_bar
from millpond.rows import require_tools
from millpond.rows.chunks import table_batches
from millpond.spark.job_script import function_at


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    command.add_argument("savepoint", help="a savepoint, of either format; it is not changed")
    command.add_argument(
        "new_savepoint", help="a directory or a URI that does not exist yet, or is empty"
    )
    add_family(command)
    add_columns(command)
    rows = command.add_mutually_exclusive_group()
    rows.add_argument(
        "--function",
        metavar="FILE.PY:NAME",
        help=(
            "a function that gets the rows, a pyarrow.RecordBatch with key and value, and returns"
            " those that take their place"
        ),
    )
    rows.add_argument(
        "--table",
        metavar="PATH",
        help="Parquet with the columns key and value, which takes the place of all rows",
    )
    command.add_argument("--dry-run", action="store_true", help="do all of it, and keep nothing")
    add_options(command)


def edit(arguments: argparse.Namespace, output: Output) -> int:
    """Write a savepoint with other rows."""
    given: dict[str, Any] = {}
    if arguments.function is not None:
        given["function"] = function_at(arguments.function)
    elif arguments.table is not None:
        require_tools()
        given["table"] = table_batches(arguments.table, ("key", "value"))
    with progress_bar(arguments.json) as progress:
        report = savepoints.edit(
            arguments.savepoint,
            arguments.new_savepoint,
            operator=arguments.operator,
            store=arguments.store,
            column_family=arguments.column_family,
            columns=columns_of(arguments),
            dry_run=arguments.dry_run,
            progress=progress,
            **given,
        )
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"{'savepoint':<13} {report.savepoint}")
    output.line(f"{'operator':<13} {report.operator}")
    output.line(f"{'store':<13} {report.store}")
    output.line(f"{'column family':<13} {report.column_family}")
    output.line(f"{'rows':<13} {report.rows_before:,}, now {report.rows_after:,}")
    if report.columns:
        output.line(f"{'columns':<13} {', '.join(report.columns)}")
    if report.dry_run:
        output.message("nothing was written (--dry-run)")
    return 0
