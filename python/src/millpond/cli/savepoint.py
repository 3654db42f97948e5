"""`millpond savepoint ...` and `millpond fork`: the functions of `millpond.savepoint`, with words around them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from millpond import savepoint as savepoints
from millpond.cli import bootstrap, edit
from millpond.cli.arguments import (
    add_engine,
    add_file_sink,
    add_job,
    number,
    pair,
    session_of,
    settings,
)
from millpond.cli.output import Output, bytes_text, count_text, time_text
from millpond.cli.progress import progress_bar
from millpond.config import BACKENDS
from millpond.errors import ErrorKind, InvalidInputError, MillpondError
from millpond.savepoint import CreateReport, RestoreReport, SavepointView

_MAX_PROBLEM_LINES = 200
_JSON = "print JSON; fields may be added, never renamed"
_CHECKPOINT = "what checkpointLocation was set to: a directory or a URI"
_SAVEPOINT = "the savepoint: a directory or a URI"
_NEW = "that does not exist yet, or is empty"

Run = Callable[[argparse.Namespace, Output], int]


def add_commands(commands: Any) -> None:
    """Add the commands to the root's subparsers."""
    group = commands.add_parser(
        "savepoint", help="save a query, look at what was saved, start from it"
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(parent: Any, name: str, run: Run, text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = parent.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + "."
        )
        parser.add_argument("--json", action="store_true", help=_JSON)
        parser.set_defaults(run=run)
        return parser

    command = add(
        actions,
        "create",
        create,
        "save a query, running or stopped, as it was after a committed batch",
    )
    command.add_argument("checkpoint", help=_CHECKPOINT)
    command.add_argument("savepoint", help=f"a directory or a URI {_NEW}")
    _batch(command)
    command.add_argument(
        "--format",
        choices=("native", "canonical"),
        default="native",
        help="canonical: the state as Parquet tables (default: native, files as they are)",
    )
    _writing(command)
    add_engine(command, "write the tables of --format canonical")

    command = add(actions, "show", show, "print what a savepoint holds")
    command.add_argument("savepoint", help=_SAVEPOINT)

    command = add(
        actions, "verify", verify, "read a savepoint back, and list all that is wrong with it"
    )
    command.add_argument("savepoint", help=_SAVEPOINT)
    add_engine(command, "read it")

    command = add(actions, "list", list_, "list the savepoints in a directory, oldest first")
    command.add_argument("directory", help="the directory that they are in")

    command = add(
        actions, "diff", diff, "compare the state of two savepoints, or of two Spark checkpoints"
    )
    command.add_argument("first", help="a savepoint, or the checkpoint of a query")
    command.add_argument("second", help="another one")

    command = add(actions, "restore", restore, "make a new Spark checkpoint from a savepoint")
    command.add_argument("savepoint", help=_SAVEPOINT)
    command.add_argument(
        "checkpoint",
        help=f"the checkpointLocation of the query to start: a directory or a URI {_NEW}",
    )
    _changing(command)
    _writing(command)
    add_engine(command, "write rows anew, where that is needed,")

    command = add(
        actions,
        "plan",
        plan,
        "say what a job would do with the state in a savepoint; starts no query",
    )
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

    edit.add_arguments(
        add(actions, "edit", edit.edit, "write a new savepoint in which some state is another")
    )

    text = "make a Spark checkpoint with which a job starts warm: from history, from rows of state, at given offsets"
    bootstrap.add_arguments(add(actions, "bootstrap", bootstrap.bootstrap, text))

    command = add(actions, "delete", delete, "delete a savepoint")
    command.add_argument("savepoint", help=_SAVEPOINT)
    command.add_argument("--dry-run", action="store_true", help="delete nothing")

    command = add(
        commands,
        "fork",
        fork,
        "make a new Spark checkpoint from that of a query, running or stopped",
    )
    command.add_argument("checkpoint", help=_CHECKPOINT)
    command.add_argument(
        "new_checkpoint",
        help=f"the checkpointLocation of the query to start: a directory or a URI {_NEW}",
    )
    _batch(command)
    _changing(command)
    _writing(command)
    add_engine(command, "write rows anew, where that is needed,")


def _batch(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--batch", type=number, metavar="N", help="a committed batch (default: the last one)"
    )


def _writing(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--copy", action="store_true", help="copy files that could be shared (hard links) instead"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="write nothing, print what would be written"
    )


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
        help="what the query is run with, unless its session sets the option backend (default: as the one that was saved)",
    )
    add_file_sink(command, "refused if the query that was saved writes to one")
    _operators(command)
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
        help="give an operator's state another number, where the new job numbers its operators otherwise; repeatable",
    )
    command.add_argument(
        "--drop-operator",
        type=number,
        action="append",
        default=[],
        metavar="ID",
        help="leave its state out; repeatable",
    )


def create(arguments: argparse.Namespace, output: Output) -> int:
    """Save a query."""
    spark = session_of(arguments)
    with progress_bar(arguments.json) as progress:
        report = savepoints.create(
            arguments.checkpoint,
            arguments.savepoint,
            batch=arguments.batch,
            format=arguments.format,
            link=not arguments.copy,
            dry_run=arguments.dry_run,
            progress=progress,
            spark=spark,
        )
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"{'savepoint':<13} {report.savepoint}")
    output.line(f"{'of':<13} {report.checkpoint}")
    output.line(f"{'batch':<13} {report.batch}")
    output.line(f"{'operators':<13} {report.operators}")
    output.line(f"{'keys':<13} {count_text(report.keys if report.keys >= 0 else None)}")
    _print_bytes(report, output)
    return 0


def _print_bytes(report: CreateReport | RestoreReport, output: Output) -> None:
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


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Print what a savepoint holds."""
    view = savepoints.show(arguments.savepoint)
    if arguments.json:
        output.json(view.to_json())
        return 0
    index, image = view.index, view.index.image
    groups = "none"
    if image.max_parallelism is not None:
        groups = f"{image.max_parallelism} (max parallelism), base {image.key_group_base}"
    planned = "" if image.planned_batch is None else f", {image.planned_batch} was begun"
    for label, text in (
        ("savepoint", view.savepoint),
        ("format", index.format),
        ("created", f"{time_text(index.created_ms)} by {index.created_by}"),
        ("query id", image.query_id or "none"),
        ("batch", f"{image.batch} of {time_text(image.timestamp_ms)}{planned}"),
        ("watermark", time_text(image.watermark_ms) if image.watermark_ms else "none"),
        ("checkpoint format", str(image.spark_checkpoint_format)),
        ("partitions", count_text(image.partitions)),
        ("key groups", groups),
        ("size", f"{bytes_text(index.size_bytes)} in {len(index.files):,} files"),
    ):
        output.line(f"{label:<18} {text}")
    output.line()
    output.table(
        ("operator", "name", "stores", "keys", "size"),
        [
            (
                str(op.operator),
                op.name,
                str(len(op.stores)),
                count_text(op.keys if op.keys >= 0 else None),
                bytes_text(op.size_bytes),
            )
            for op in image.operators
        ],
        right=(0, 2, 3, 4),
    )
    return 0


def verify(arguments: argparse.Namespace, output: Output) -> int:
    """Read a savepoint back. Exit code 1 if anything is wrong."""
    spark = session_of(arguments)
    with progress_bar(arguments.json) as progress:
        report = savepoints.verify(arguments.savepoint, progress=progress, spark=spark)
    if arguments.json:
        output.json(report.to_json())
        return 0 if report.ok else 1
    checked = report.checked
    output.line(f"savepoint   {report.savepoint}")
    output.line(f"files       {report.files:,} ({bytes_text(report.size_bytes)})")
    output.line(f"stores      {checked.stores:,}")
    output.line(f"changelogs  {checked.changelogs:,} ({checked.records:,} records)")
    output.line(f"snapshots   {checked.manifests:,} ({checked.entries:,} entries)")
    output.line(f"problems    {len(report.problems):,}")
    for problem in report.problems[:_MAX_PROBLEM_LINES]:
        output.line(f"  {problem.kind}  {problem.file}: {problem.message}")
    if len(report.problems) > _MAX_PROBLEM_LINES:
        output.line(f"  and {len(report.problems) - _MAX_PROBLEM_LINES} more (all with --json)")
    for hint in dict.fromkeys(problem.hint for problem in report.problems if problem.hint):
        output.message(f"hint: {hint}")
    return 0 if report.ok else 1


def list_(arguments: argparse.Namespace, output: Output) -> int:
    """List savepoints. Exit code 1 if the index of one cannot be read."""
    found = savepoints.list_savepoints(arguments.directory)
    views = [entry for entry in found if isinstance(entry, SavepointView)]
    broken = [entry for entry in found if not isinstance(entry, SavepointView)]
    if arguments.json:
        output.json(
            {
                "savepoints": [view.to_json() for view in views],
                "unreadable": [_unreadable(*e) for e in broken],
            }
        )
    else:
        output.table(
            ("savepoint", "created", "batch", "operators", "size"),
            [
                (
                    view.savepoint.rstrip("/").rpartition("/")[2],
                    time_text(view.index.created_ms),
                    str(view.index.image.batch),
                    ", ".join(op.name for op in view.index.image.operators) or "none",
                    bytes_text(view.index.size_bytes),
                )
                for view in views
            ],
            right=(2, 4),
        )
    for path, e in broken:
        output.message(f"{path}: {e.kind.value}: {e}")
    return 1 if broken else 0


def _unreadable(path: str, e: MillpondError) -> dict[str, str]:
    return {"savepoint": path, "kind": e.kind.value, "message": str(e)}


def diff(arguments: argparse.Namespace, output: Output) -> int:
    """Compare two states. Exit code 1 if they differ."""
    with progress_bar(arguments.json) as progress:
        report = savepoints.diff(arguments.first, arguments.second, progress=progress)
    if arguments.json:
        output.json(report.to_json())
    else:
        output.table(
            ("operator", "name", "store", "column family", "added", "removed", "changed", "same"),
            [
                (
                    str(f.operator),
                    f.name,
                    f.store,
                    f.column_family,
                    *map(count_text, (f.added, f.removed, f.changed, f.same)),
                )
                for f in report.families
            ],
            right=(0, 4, 5, 6, 7),
        )
    return 0 if report.equal else 1


def restore(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint of a savepoint."""
    options = _restore_options(arguments)
    with progress_bar(arguments.json) as progress:
        report = savepoints.restore(
            arguments.savepoint, arguments.checkpoint, progress=progress, **options
        )
    return _print_restored(report, arguments, output)


def fork(arguments: argparse.Namespace, output: Output) -> int:
    """Make a Spark checkpoint of another one."""
    options = _restore_options(arguments)
    with progress_bar(arguments.json) as progress:
        report = savepoints.fork(
            arguments.checkpoint,
            arguments.new_checkpoint,
            batch=arguments.batch,
            progress=progress,
            **options,
        )
    return _print_restored(report, arguments, output)


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
        "link": not arguments.copy,
        "dry_run": arguments.dry_run,
        "spark": session_of(arguments),
    }


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
    if report.dropped:
        output.line(f"{'dropped':<13} {', '.join(map(str, report.dropped))}")
    output.line(f"{'offsets':<13} {report.offsets}")
    output.line(f"{'partitions':<13} {count_text(report.partitions)}")
    if report.backend is not None:
        output.line(f"{'backend':<13} {report.backend}")
    if report.file_sink is not None:
        output.line(f"{'file sink':<13} {report.file_sink}")
    _print_bytes(report, output)
    return 0


def plan(arguments: argparse.Namespace, output: Output) -> int:
    """Say what a job would do with a savepoint. Exit code 1: Spark would not start it."""
    report = savepoints.plan(
        arguments.savepoint,
        arguments.job,
        map_operators=_mapping(arguments.map_operator),
        drop_operators=arguments.drop_operator,
        query=arguments.query,
        conf=settings(arguments.conf),
    )
    if arguments.json:
        output.json(report.to_json())
    else:
        output.table(
            ("operator", "name", "saved as", "verdict"),
            [
                (count_text(op.operator), op.name, count_text(op.saved_as), op.verdict)
                for op in report.operators
            ],
            right=(0, 2),
        )
        for op in report.operators:
            for column in op.columns:
                output.line(f"{op.name}: {column}")
            if op.reason:
                output.line(f"{op.name}: {op.reason}")
    return 0 if report.ok else 1


def delete(arguments: argparse.Namespace, output: Output) -> int:
    """Delete a savepoint."""
    view = savepoints.delete(arguments.savepoint, dry_run=arguments.dry_run)
    if arguments.json:
        output.json(
            {
                "savepoint": view.savepoint,
                "size_bytes": view.index.size_bytes,
                "dry_run": arguments.dry_run,
            }
        )
        return 0
    output.line(f"{view.savepoint} ({bytes_text(view.index.size_bytes)})")
    if arguments.dry_run:
        output.message("nothing was deleted (--dry-run)")
    return 0
