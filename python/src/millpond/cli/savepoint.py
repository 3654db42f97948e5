"""`millpond savepoint ...` and `millpond fork`: the functions of `millpond.savepoint`, with
words around them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from millpond import savepoint as savepoints
from millpond.cli import bootstrap, edit, restore
from millpond.cli.arguments import (
    Run,
    add_batch,
    add_engine,
    add_json,
    add_options,
    add_writing,
    new_command,
    number,
    session_of,
)
from millpond.cli.output import Output, bytes_text, count_text
from millpond.cli.progress import progress_bar
from millpond.operations.notebook import time_text
from millpond.savepoint import RowDiff

_CHECKPOINT = "what checkpointLocation was set to: a directory or a URI"
_SAVEPOINT = "the savepoint: a directory or a URI"
_NEW = "that does not exist yet, or is empty"


def add_commands(commands: Any) -> None:
    """Add the commands to the root's subparsers."""
    group = commands.add_parser(
        "savepoint", help="save a query, look at what was saved, start from it"
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(parent: Any, name: str, run: Run, text: str) -> argparse.ArgumentParser:
        command = new_command(parent, name, run, text)
        add_json(command)
        return command

    command = add(
        actions,
        "create",
        create,
        "save a query, running or stopped, as it was after a committed batch",
    )
    command.add_argument("checkpoint", help=_CHECKPOINT)
    command.add_argument("savepoint", help=f"a directory or a URI {_NEW}")
    add_batch(command)
    command.add_argument(
        "--keep",
        type=number,
        metavar="N",
        help=(
            "for schedules: SAVEPOINT is a directory, which gets a savepoint named by the time; of"
            " such savepoints of this query the newest N stay"
        ),
    )
    command.add_argument(
        "--format",
        choices=("native", "canonical"),
        default="native",
        help="canonical: the state as Parquet tables (default: native, files as they are)",
    )
    add_writing(command)
    add_options(command)
    add_engine(command, "write the tables of --format canonical")

    command = add(actions, "show", show, "print what a savepoint holds")
    command.add_argument("savepoint", help=_SAVEPOINT)
    add_options(command)

    command = add(
        actions, "verify", verify, "read a savepoint back, and list all that is wrong with it"
    )
    command.add_argument("savepoint", help=_SAVEPOINT)
    add_options(command)
    add_engine(command, "read it")

    command = add(actions, "list", list_, "list the savepoints in a directory, oldest first")
    command.add_argument("directory", help="the directory that they are in")
    add_options(command)

    command = add(
        actions,
        "diff",
        diff,
        "compare two states: of two savepoints or Spark checkpoints, or of one after two batches",
    )
    command.add_argument("first", help="a savepoint, or the checkpoint of a query")
    command.add_argument("second", nargs="?", help="another one (default: the same)")
    command.add_argument(
        "--batch",
        dest="batches",
        action="append",
        default=[],
        type=number,
        metavar="N",
        help="a committed batch; give it twice, for the first and for the second",
    )
    command.add_argument(
        "--rows", action="store_true", help="print each key that differs, before and after"
    )
    add_options(command)

    text = "make a new Spark checkpoint from a savepoint"
    command = add(actions, "restore", restore.restore, text)
    restore.add_restore_arguments(command)

    command = add(
        actions,
        "plan",
        restore.plan,
        "say what a job would do with the state in a savepoint; starts no query",
    )
    restore.add_plan_arguments(command)

    edit.add_arguments(
        add(actions, "edit", edit.edit, "write a new savepoint in which some state is another")
    )

    text = (
        "make a Spark checkpoint with which a job starts warm: from history, from rows of state, at"
        " given offsets"
    )
    bootstrap.add_arguments(add(actions, "bootstrap", bootstrap.bootstrap, text))

    command = add(actions, "delete", delete, "delete a savepoint")
    command.add_argument("savepoint", help=_SAVEPOINT)
    command.add_argument("--dry-run", action="store_true", help="delete nothing")
    add_options(command)

    command = add(
        commands,
        "fork",
        restore.fork,
        "make a new Spark checkpoint from that of a query, running or stopped",
    )
    restore.add_fork_arguments(command)


def create(arguments: argparse.Namespace, output: Output) -> int:
    """Save a query."""
    spark = session_of(arguments)
    with progress_bar(arguments.json) as progress:
        report = savepoints.create(
            arguments.checkpoint,
            arguments.savepoint,
            batch=arguments.batch,
            keep=arguments.keep,
            format=arguments.format,
            copy=arguments.copy,
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
    restore.print_bytes(report, output)
    for place in report.deleted:
        output.line(f"{'deleted':<13} {place}")
    return 0


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
                bytes_text(index.state_bytes(op.operator)),
            )
            for op in image.operators
        ],
        right=(0, 2, 3, 4),
    )
    if view.kafka_offsets:
        output.line()
        output.table(
            ("source", "topic", "partition", "next offset"),
            [
                (one.source, one.topic, str(one.partition), f"{one.offset:,}")
                for one in view.kafka_offsets
            ],
            right=(2, 3),
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
    output.problems(report.problems)
    output.hints(report.problems)
    return 0 if report.ok else 1


def list_(arguments: argparse.Namespace, output: Output) -> int:
    """List savepoints. Exit code 1 if the index of one cannot be read."""
    found = savepoints.list(arguments.directory)
    if arguments.json:
        output.json(found.to_json())
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
                for view in found.savepoints
            ],
            right=(2, 4),
        )
    for one in found.unreadable:
        output.message(f"{one.savepoint}: {one.error.kind.value}: {one.error}")
    return 1 if found.unreadable else 0


def diff(arguments: argparse.Namespace, output: Output) -> int:
    """Compare two states. Exit code 1 if they differ."""
    with progress_bar(arguments.json) as progress:
        report = savepoints.diff(
            arguments.first,
            arguments.second,
            batches=arguments.batches,
            rows=arguments.rows,
            progress=progress,
        )
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
        for row in report.rows or ():
            output.line(_row_line(row))
    return 0 if report.equal else 1


def delete(arguments: argparse.Namespace, output: Output) -> int:
    """Delete a savepoint."""
    report = savepoints.delete(arguments.savepoint, dry_run=arguments.dry_run)
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"{report.savepoint} ({bytes_text(report.size_bytes)})")
    if arguments.dry_run:
        output.message("nothing was deleted (--dry-run)")
    return 0


def _row_line(row: RowDiff) -> str:
    """Return `changed  0 default: {"k":1}  {"n":1} -> {"n":2}`."""
    where = f"{row.operator} {row.store}"
    if row.column_family != row.store:
        where += f" {row.column_family}"
    values = [
        json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for value in (row.before, row.after)
        if value is not None
    ]
    key = json.dumps(row.key, ensure_ascii=False, separators=(",", ":"))
    return f"{row.change:<8} {where}: {key}  {' -> '.join(values)}"
