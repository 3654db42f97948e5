"""`millpond savepoint restore`, `millpond savepoint plan` and `millpond fork`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from millpond import savepoint as savepoints
from millpond.cli.arguments import (
    add_batch,
    add_columns,
    add_engine,
    add_family,
    add_file_sink,
    add_job,
    add_options,
    add_writing,
    columns_of,
    number,
    pair,
    session_of,
    settings,
)
from millpond.cli.output import Output, bytes_text, count_text
from millpond.cli.progress import progress_bar
from millpond.cli.quiet import quiet_jvm
from millpond.config import BACKENDS
from millpond.errors import ErrorKind, InvalidInputError
from millpond.operations.savepoint.verdicts import MAPPED, MOVED
from millpond.savepoint import CreateReport, OperatorVerdict, PlanReport, RestoreReport

_CHECKPOINT = "what checkpointLocation was set to: a directory or a URI"
_SAVEPOINT = "the savepoint: a directory or a URI"
_NEW = (
    "the checkpointLocation of the query to start: a directory or a URI that does not exist yet, or"
    " is empty"
)


def add_restore_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `savepoint restore`."""
    command.add_argument("savepoint", help=_SAVEPOINT)
    command.add_argument("checkpoint", help=_NEW)
    _changing(command)
    add_columns(command)
    add_family(command)
    add_writing(command)
    add_options(command)
    add_engine(command, "write rows anew, where that is needed,")


def add_fork_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `fork`."""
    command.add_argument("checkpoint", help=_CHECKPOINT)
    command.add_argument("new_checkpoint", help=_NEW)
    add_batch(command)
    _changing(command)
    add_writing(command)
    add_options(command)
    add_engine(command, "write rows anew, where that is needed,")


def add_plan_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `savepoint plan`."""
    command.add_argument("savepoint", help=_SAVEPOINT)
    add_job(command)
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the Spark session; repeatable",
    )
    _operators(command)
    add_options(command)


def _changing(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--storage-uri",
        metavar="URI",
        help="where the state goes, as by the option storage.uri (default: into the checkpoint)",
    )
    command.add_argument(
        "--keep-query-id",
        action="store_true",
        help="a move: the query stays the same one, and must not run elsewhere",
    )
    command.add_argument(
        "--offsets",
        choices=("keep", "drop"),
        default="keep",
        help="drop: sources begin as in a new query, with the state as it is (default: keep)",
    )
    command.add_argument(
        "--backend",
        choices=BACKENDS,
        help=(
            "what the query is run with, unless its session sets the option backend (default: as"
            " the one that was saved)"
        ),
    )
    add_file_sink(command, "refused if the query that was saved writes to one")
    _operators(command)
    add_job(command, required=False)
    command.add_argument(
        "--partitions",
        type=number,
        metavar="M",
        help="number of state partitions; another than it had writes every row anew",
    )
    command.add_argument(
        "--max-parallelism",
        type=number,
        metavar="G",
        help="number of key groups, a multiple of the partitions",
    )


def _operators(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--map-operator",
        type=pair,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help=(
            "give an operator's state another number, where the new job numbers its operators"
            " otherwise; repeatable"
        ),
    )
    command.add_argument(
        "--drop-operator",
        type=number,
        action="append",
        default=[],
        metavar="ID",
        help="leave its state out; repeatable",
    )
    command.add_argument(
        "--allow-new-operator",
        action="store_true",
        help="a stateful operator that only the job has starts with empty state",
    )
    command.add_argument(
        "--match-operators",
        action="store_true",
        help=(
            "operators that have another number in the job get it, as they were found by name and"
            " columns; without it a restore asks on a terminal, and else refuses"
        ),
    )


def restore(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint of a savepoint."""
    options = _restore_options(arguments)
    with _quiet(arguments), progress_bar(arguments.json) as progress:
        report = savepoints.restore(
            arguments.savepoint,
            arguments.checkpoint,
            columns=columns_of(arguments),
            operator=arguments.operator,
            store=arguments.store,
            column_family=arguments.column_family,
            progress=progress,
            **options,
        )
    return _print_restored(report, arguments, output)


def fork(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint of another one."""
    options = _restore_options(arguments)
    with _quiet(arguments), progress_bar(arguments.json) as progress:
        report = savepoints.fork(
            arguments.checkpoint,
            arguments.new_checkpoint,
            batch=arguments.batch,
            progress=progress,
            **options,
        )
    return _print_restored(report, arguments, output)


def _quiet(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Return the block in which a job, if one is named, starts a JVM."""
    return quiet_jvm() if arguments.job is not None else nullcontext()


def _restore_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "keep_query_id": arguments.keep_query_id,
        "offsets": arguments.offsets,
        "map_operators": _mapping(arguments.map_operator),
        "drop_operators": arguments.drop_operator,
        "partitions": arguments.partitions,
        "max_parallelism": arguments.max_parallelism,
        "storage_uri": arguments.storage_uri,
        "backend": arguments.backend,
        "file_sink": arguments.file_sink,
        "allow_new_operator": arguments.allow_new_operator,
        "match_operators": arguments.match_operators or (arguments.job is not None and _confirmed),
        "job": arguments.job,
        "query": arguments.query,
        "conf": settings(arguments.conf),
        "copy": arguments.copy,
        "dry_run": arguments.dry_run,
        "spark": session_of(arguments, job=arguments.job is not None),
    }


def _confirmed(verdicts: Sequence[OperatorVerdict]) -> bool:
    """Show what becomes of the operators, and ask whether that is meant, if there is a terminal."""
    shown = Output(sys.stderr)
    _table(verdicts, shown)
    if not sys.stdin.isatty():
        return False
    sys.stderr.write("Give the operators these numbers? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _table(verdicts: Sequence[OperatorVerdict], output: Output) -> None:
    moved = any(op.verdict in (MAPPED, MOVED) for op in verdicts)
    rows = [
        (count_text(op.operator), op.name, count_text(op.saved_as), op.verdict, op.why)
        for op in verdicts
    ]
    head = ("operator", "name", "saved as", "verdict", "found by")
    columns = len(head) if moved else len(head) - 1
    output.table(head[:columns], [row[:columns] for row in rows], right=(0, 2))


def _mapping(pairs: list[tuple[int, int]]) -> dict[int, int]:
    mapped = dict(pairs)
    if len(mapped) != len(pairs):
        raise InvalidInputError("an operator is mapped twice", kind=ErrorKind.OPERATOR_UNKNOWN)
    return mapped


def _print_restored(report: RestoreReport, arguments: argparse.Namespace, output: Output) -> int:
    output.warnings(report.warnings)
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"{'checkpoint':<13} {report.checkpoint}")
    output.line(f"{'from':<13} {report.origin}")
    output.line(f"{'batch':<13} {report.batch}")
    output.line(f"{'query id':<13} {report.query_id or 'none'}")
    moved = [f"{old} as {new}" if old != new else str(old) for old, new in report.operators]
    output.line(f"{'operators':<13} {', '.join(moved) or 'none'}")
    if report.new_operators:
        output.line(f"{'new, empty':<13} {', '.join(map(str, report.new_operators))}")
    if report.dropped:
        output.line(f"{'dropped':<13} {', '.join(map(str, report.dropped))}")
    output.line(f"{'offsets':<13} {report.offsets}")
    output.line(f"{'partitions':<13} {count_text(report.partitions)}")
    if report.backend is not None:
        output.line(f"{'backend':<13} {report.backend}")
    if report.file_sink is not None:
        output.line(f"{'file sink':<13} {report.file_sink}")
    print_bytes(report, output)
    return 0


def plan(arguments: argparse.Namespace, output: Output) -> int:
    """Say what a job would do with a savepoint. Exit code 1: Spark would not start it."""
    with quiet_jvm():
        report = savepoints.plan(
            arguments.savepoint,
            arguments.job,
            map_operators=_mapping(arguments.map_operator),
            drop_operators=arguments.drop_operator,
            allow_new_operator=arguments.allow_new_operator,
            match_operators=arguments.match_operators,
            query=arguments.query,
            conf=settings(arguments.conf),
        )
    output.warnings(report.warnings)
    if arguments.json:
        output.json(report.to_json())
    else:
        _table(report.operators, output)
        way = _to_new_columns(report)
        for op in report.operators:
            for column in op.columns:
                output.line(f"{op.name}: {column}")
            if op.reason:
                output.line(f"{op.name}: {op.reason}")
            for options in op.column_options:
                output.line(f"{op.name}: {way} {options}")
            for warning in op.warnings:
                output.line(f"{op.name}: warning: {warning}")
        for problem in report.problems:
            output.line(problem)
    return 0 if report.ok else 1


def _to_new_columns(report: PlanReport) -> str:
    """Return the command that takes the options for other columns: of one column family a call."""
    place = shlex.quote(report.savepoint)
    if sum(len(op.column_options) for op in report.operators) < 2:
        way = f"millpond savepoint restore {place} NEW_CHECKPOINT"
        return f"to give its state the columns of the job: {way}"
    way = f"millpond savepoint edit {place} NEW_SAVEPOINT"
    return f"to give its state the columns of the job, each change on top of the one before: {way}"


def print_bytes(report: CreateReport | RestoreReport, output: Output) -> None:
    """Print how large a savepoint or a Spark checkpoint is, and what was written for it."""
    output.line(f"{'size':<13} {bytes_text(report.size_bytes)} in {report.files:,} files")
    if report.dry_run:
        output.message("nothing was written (--dry-run)")
    else:
        copied = (
            f", copied by the storage {bytes_text(report.bytes_copied)}"
            if report.bytes_copied
            else ""
        )
        shared = f", shared {bytes_text(report.bytes_linked)}"
        output.line(f"{'written':<13} {bytes_text(report.bytes_written)}{copied}{shared}")
