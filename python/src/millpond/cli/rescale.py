"""`millpond rescale`."""

from __future__ import annotations

import argparse

from millpond import api
from millpond.cli.output import Output, bytes_text
from millpond.errors import InvalidInputError
from millpond.model.command_texts import path_text
from millpond.operations.rescale import COMPOSED, REHASH, RescaleReport


def rescale_command(arguments: argparse.Namespace, output: Output) -> int:
    """Rescale, say what a rescale would do, or take back one that was interrupted."""
    if arguments.undo:
        _refuse_more_than_undo(arguments)
        undone = api.undo_rescale(arguments.checkpoint)
        if arguments.json:
            output.json(undone.to_json())
        elif undone.undone:
            output.line("the interrupted rescale is taken back")
        else:
            output.line("there is no rescale to take back")
        return 0
    if arguments.partitions is None:
        command = f"millpond rescale {path_text(arguments.checkpoint)} 16"
        raise InvalidInputError(
            "the number of partitions is missing",
            hint=f"Say how many: {command}, or --undo.",
        )

    def announce(planned: RescaleReport) -> None:
        output.line(f"checkpoint  {planned.checkpoint}")
        output.line(f"partitions  {planned.current} -> {planned.partitions}")
        output.line(f"way         {_way(planned)}")
        if planned.way == REHASH and planned.near:
            output.line(f"            no row would move with {', '.join(map(str, planned.near))}")
        output.line(f"key groups  {planned.max_parallelism} (max parallelism)")
        output.line(f"state       {bytes_text(planned.state_bytes)}")
        output.line(f"batch       {planned.batch}")
        if planned.file_sink is not None:
            output.line(f"file sink   {planned.file_sink}")
        about = "about " if planned.way == REHASH else ""
        output.line(
            f"to write    {about}{bytes_text(planned.written_bytes)}, about {planned.seconds:.1f} s"
        )
        output.flush()

    report = api.rescale(
        arguments.checkpoint,
        arguments.partitions,
        max_parallelism=arguments.max_parallelism,
        dry_run=arguments.dry_run,
        skip_uncommitted=arguments.skip_uncommitted,
        file_sink=arguments.file_sink,
        announce=None if arguments.json else announce,
    )
    if arguments.json:
        output.json(report.to_json())
    elif report.dry_run:
        output.line("dry run     nothing is written")
    else:
        output.line(f"written     {bytes_text(report.written_bytes)}, {report.seconds:.1f} s")
    output.warnings(report.warnings)
    if report.undone and not report.dry_run:
        output.message("a rescale that was interrupted has been taken back first")
    return 0


def _refuse_more_than_undo(arguments: argparse.Namespace) -> None:
    """Raise InvalidInputError if an argument is given that only a new rescale heeds."""
    given = {
        "a number of partitions": arguments.partitions is not None,
        "--max-parallelism": arguments.max_parallelism is not None,
        "--dry-run": arguments.dry_run,
        "--skip-uncommitted": arguments.skip_uncommitted,
        "--file-sink": arguments.file_sink is not None,
    }
    if any(given.values()):
        names = ", ".join(name for name, is_given in given.items() if is_given)
        raise InvalidInputError(
            f"--undo goes without {names}",
            hint="Take it back first, by --undo alone; then rescale.",
        )


def _way(planned: RescaleReport) -> str:
    if planned.way == COMPOSED:
        return (
            f"composed: no row moves, {planned.stores} stores get a manifest of the files that are"
            " there"
        )
    return (
        f"rehash: every row is written anew, {planned.stores} stores get a changelog of all they"
        " hold"
    )
