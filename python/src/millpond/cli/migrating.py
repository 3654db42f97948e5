"""`millpond adopt` and `millpond release`: the functions of `millpond.api`, with words."""

from __future__ import annotations

import argparse
from typing import Any

from millpond import api
from millpond.api import MigrationReport
from millpond.cli.arguments import add_batch, add_json, add_options, new_command, number, settings
from millpond.cli.output import Output, bytes_text
from millpond.cli.progress import progress_bar
from millpond.operations.migrate.plan import PROVIDERS

_NEW = (
    "the checkpointLocation of the query to start: a directory or a URI that does not exist yet, or"
    " is empty"
)


def add_commands(commands: Any) -> None:
    """Add the commands to the root's subparsers."""
    for name, run, text in (
        (
            "adopt",
            adopt,
            "make a new Spark checkpoint for Millpond from one of Spark's own state stores",
        ),
        (
            "release",
            release,
            "make a new Spark checkpoint for one of Spark's own state stores from one of Millpond",
        ),
    ):
        command = new_command(commands, name, run, text)
        command.add_argument(
            "checkpoint", help="what checkpointLocation was set to: a directory or a URI"
        )
        command.add_argument("new_checkpoint", help=_NEW)
        if name == "release":
            command.add_argument(
                "--provider", choices=tuple(PROVIDERS), required=True, help="Spark's state store"
            )
        add_batch(command)
        command.add_argument(
            "--new-query-id",
            action="store_true",
            help="a trial: sinks that know queries by id take it for another one",
        )
        if name == "adopt":
            command.add_argument(
                "--max-parallelism",
                type=number,
                metavar="G",
                help="number of key groups, a multiple of the partitions",
            )
        command.add_argument(
            "--conf",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=(
                "a setting of Spark: spark.hadoop.* for storage, spark.driver.memory for the JVM"
                " that copies; repeatable"
            ),
        )
        add_options(command)
        command.add_argument(
            "--dry-run", action="store_true", help="write nothing, print what would be done"
        )
        add_json(command)


def adopt(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint for Millpond from one of Spark's own state stores."""
    with progress_bar(arguments.json) as progress:
        report = api.adopt(
            max_parallelism=arguments.max_parallelism, progress=progress, **_arguments(arguments)
        )
    return _print(report, arguments, output)


def release(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint for one of Spark's own state stores from one of Millpond."""
    with progress_bar(arguments.json) as progress:
        report = api.release(
            provider=arguments.provider, progress=progress, **_arguments(arguments)
        )
    return _print(report, arguments, output)


def _arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "checkpoint": arguments.checkpoint,
        "new_checkpoint": arguments.new_checkpoint,
        "batch": arguments.batch,
        "new_query_id": arguments.new_query_id,
        "conf": settings(arguments.conf),
        "dry_run": arguments.dry_run,
    }


def _print(report: MigrationReport, arguments: argparse.Namespace, output: Output) -> int:
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"{'checkpoint':<13} {report.checkpoint}")
    output.line(f"{'from':<13} {report.origin}")
    output.line(f"{'store':<13} {_short(report.provider)}, was {_short(report.provider_before)}")
    output.line(f"{'batch':<13} {report.batch}")
    output.line(f"{'query id':<13} {report.query_id or 'none'}")
    output.line(f"{'operators':<13} {report.operators}")
    output.line(f"{'stores':<13} {report.stores}")
    if report.rows >= 0:
        output.line(f"{'rows':<13} {report.rows:,}")
    if report.dry_run:
        if report.rows >= 0:
            output.line(f"{'to copy':<13} {bytes_text(report.row_bytes)} of keys and values")
        output.warnings(report.warnings)
        output.message("nothing was written (--dry-run)")
        return 0
    output.line(f"{'written':<13} {bytes_text(report.bytes_written)}")
    output.flush()
    output.warnings(report.warnings)
    return 0


def _short(provider: str) -> str:
    return provider.rpartition(".")[2]
