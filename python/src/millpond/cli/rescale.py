"""`millpond rescale`."""

from __future__ import annotations

import argparse

from millpond.cli.checkpoint import open_it
from millpond.cli.output import Output, bytes_text
from millpond.errors import InvalidInputError
from millpond.rescaling import rescale, undo


def rescale_command(arguments: argparse.Namespace, output: Output) -> int:
    """Rescale, say what a rescale would do, or take back one that was interrupted."""
    storage, root = open_it(arguments)
    if arguments.undo:
        if arguments.partitions is not None or arguments.dry_run:
            raise InvalidInputError("--undo goes with neither --partitions nor --dry-run")
        undone = undo(storage, root)
        if arguments.json:
            output.json({"checkpoint": root, "undone": undone})
        else:
            output.line("the interrupted rescale is taken back" if undone else "there is no rescale to take back")
        return 0
    if arguments.partitions is None:
        raise InvalidInputError("--partitions is missing", hint="Say how many: --partitions 16, or --undo.")
    report = rescale(
        storage,
        root,
        arguments.partitions,
        dry_run=arguments.dry_run,
        skip_uncommitted=arguments.skip_uncommitted,
    )
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"checkpoint  {root}")
    output.line(
        f"partitions  {report.current} -> {report.partitions}{' (dry run: nothing is written)' if report.dry_run else ''}"
    )
    output.line(
        f"way         {report.way}: no row moves, {report.stores} stores get a manifest of the files that are there"
    )
    output.line(f"state       {bytes_text(report.state_bytes)}")
    output.line(f"written     {bytes_text(report.written_bytes)}")
    output.line(f"batch       {report.batch}")
    if report.undone:
        output.message("a rescale that was interrupted has been taken back first")
    return 0
