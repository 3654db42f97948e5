"""Entry point of the command `millpond`: arguments, exit codes, errors without tracebacks.

Exit codes: 0 done, nothing is wrong; 1 a problem was found, or the storage failed; 2 wrong usage or
input.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from millpond import __version__, api
from millpond.api import MASTERS
from millpond.cli import (
    checkpoint,
    history,
    migrating,
    rescale,
    savepoint,
    serve,
    skew,
    state,
    storage,
    tables,
    ui,
)
from millpond.cli.arguments import (
    Once,
    Parser,
    Run,
    add_file_sink,
    add_json,
    add_options,
    new_command,
    options_of,
)
from millpond.cli.output import Output, give_up_stdout, show_all_texts, stand_in_for_closed
from millpond.errors import (
    ErrorKind,
    InternalError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
)
from millpond.storage.given import given_by, reached_by

OK, PROBLEM, USAGE = 0, 1, 2
NO_READER = 141  # as a shell says it of a process that SIGPIPE ended
# A file of the user's query is lost. Other errors of their class are about what the user named.
_LOST = {ErrorKind.CHANGELOG_MISSING, ErrorKind.SST_MISSING, ErrorKind.OBJECT_NOT_FOUND}


def parser() -> argparse.ArgumentParser:
    """Return the parser of all arguments. What it parses has the command as `run`."""
    root = Parser(
        prog="millpond",
        description=(
            "State of Spark Structured Streaming kept as Flink keeps its own: look at it, check it,"
            " save it, read it, set it up."
        ),
        epilog=(
            "Exit code: 0 nothing wrong, 1 a problem found, 2 wrong usage or input."
            " MILLPOND_DEBUG=1 shows tracebacks."
        ),
    )
    root.add_argument("--version", action="version", version=f"millpond {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    group = commands.add_parser(
        "checkpoint", help="look at or check the checkpoint of a streaming query"
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, text in (
        (
            "show",
            checkpoint.show,
            "print batches, operators, partitions, versions, snapshots, sizes, key groups",
        ),
        (
            "verify",
            checkpoint.verify_command,
            "read everything back, and list all that is wrong with it",
        ),
        (
            "skew",
            skew.skew_command,
            "read all rows, and chart keys and bytes of partitions and key groups",
        ),
        (
            "history",
            history.history_command,
            "print what the last batches did: rows, times, state; the driver keeps it",
        ),
    ):
        action = new_command(actions, name, run, text)
        action.add_argument(
            "checkpoint",
            help="what checkpointLocation was set to: a directory, or a URI such as s3://bucket/x",
        )
        add_options(action)
        if name == "show":
            action.add_argument(
                "--operator",
                metavar="ID",
                help=(
                    "show this operator alone, by number or name, and each of its partitions"
                    " (default: all; of more than 32 partitions the sums)"
                ),
            )
        if name == "history":
            action.add_argument(
                "--last", type=int, metavar="N", help="the last N batches (default: all)"
            )
        add_json(action)

    savepoint.add_commands(commands)
    migrating.add_commands(commands)
    state.add_commands(commands)
    serve.add_command(commands)
    ui.add_command(commands)

    group = commands.add_parser(
        "storage", help="check the storage that state goes to; give state to a moved checkpoint"
    )
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    action = new_command(
        actions,
        "check",
        storage.check,
        "try all that Millpond does with a storage, below a prefix of its own that is removed"
        " afterwards",
    )
    action.add_argument(
        "uri", help="where state would go: s3://bucket/prefix, a directory or a file: URI"
    )
    add_options(action)
    action.add_argument(
        "--quick",
        action="store_true",
        help="leave out the contract, some hundred requests; needs no pytest",
    )
    add_json(action)
    action = new_command(
        actions,
        "take-over",
        storage.take_over_command,
        "give the state at storage.uri to a checkpoint that was moved",
        ". The place where it was before is refused from then on.",
    )
    action.add_argument(
        "checkpoint",
        help="what checkpointLocation is set to now: a directory, or a URI such as s3://bucket/x",
    )
    add_options(action)
    action.add_argument(
        "--even-if-there",
        action="store_true",
        help=(
            "give up the checkpoint that has the state although it is still there, or cannot be"
            " looked at from here"
        ),
    )
    add_json(action)

    action = new_command(
        commands,
        "rescale",
        rescale.rescale_command,
        "give the state of a stopped query another number of partitions",
        ", in place; the next start uses it. Interrupted at any moment, it is finished by running"
        " it again, or taken back with --undo.",
    )
    action.add_argument(
        "checkpoint",
        help="what checkpointLocation was set to: a directory, or a URI such as s3://bucket/x",
    )
    action.add_argument(
        "partitions",
        nargs="?",
        type=int,
        action=Once,
        metavar="M",
        help="the number of partitions from now on",
    )
    add_options(action)
    action.add_argument(
        "--partitions", "-p", type=int, action=Once, metavar="M", help="the same as an option"
    )
    action.add_argument(
        "--max-parallelism",
        type=int,
        metavar="G",
        help=(
            "the number of key groups from now on, a multiple of M; another one than now writes"
            " every row anew"
        ),
    )
    action.add_argument(
        "--dry-run", action="store_true", help="say what would be done, write nothing"
    )
    action.add_argument(
        "--undo", action="store_true", help="take back a rescale that was interrupted"
    )
    action.add_argument(
        "--skip-uncommitted",
        action="store_true",
        help=(
            "leave out a batch that was begun and not committed: its input is read again, its"
            " output may come twice"
        ),
    )
    add_file_sink(action, "as the last start of the query said")
    add_json(action)

    conf = commands.add_parser(
        "conf", help="print the lines for spark-defaults.conf that switch Millpond on"
    )
    conf.add_argument(
        "--master",
        choices=sorted(MASTERS),
        default="local",
        help="kind of cluster (default: local)",
    )
    conf.set_defaults(run=_conf)

    for name, table, text in (
        ("options", tables.options, "print every option with type, default, bounds and meaning"),
        ("errors", tables.errors, "print every error with class, meaning and hint"),
    ):
        command = commands.add_parser(name, help=text)
        add_json(command, "print JSON")
        command.set_defaults(run=table)
    return root


def _conf(arguments: argparse.Namespace, output: Output) -> int:
    for line in api.conf(arguments.master):
        output.line(line)
    return OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names. Return its exit code.

    Args:
        argv: None: the process's own arguments.
    """
    stand_in_for_closed()
    show_all_texts()
    try:
        return _run(argv)
    except BrokenPipeError:  # the reader (`| head`) has closed the pipe
        give_up_stdout()
        return NO_READER


def _run(argv: Sequence[str] | None) -> int:
    """Args, returns: as `main`. Raises: BrokenPipeError: nobody reads stdout or stderr any more."""
    output = Output()
    try:
        try:
            arguments = parser().parse_args(argv)
        except SystemExit as e:  # argparse has printed its message, or the help
            output.flush()
            return OK if e.code in (None, 0) else USAGE
        run: Run = arguments.run
        with reached_by(given_by(options_of(arguments))):
            code = run(arguments, output)
        output.flush()
        return code
    except MillpondError as e:
        _debug()
        output.error(e)
        misused = isinstance(e, (InvalidInputError, UnsupportedError, NotFoundError))
        return USAGE if misused and e.kind not in _LOST else PROBLEM
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        output.message("interrupted")
        return 130
    except Exception as e:
        _debug()
        bug = InternalError(
            f"{type(e).__name__}: {e}",
            kind=ErrorKind.INTERNAL,
            hint="Report it with the traceback of MILLPOND_DEBUG=1.",
        )
        output.error(bug)
        return PROBLEM


def _debug() -> None:
    if os.environ.get("MILLPOND_DEBUG"):
        traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
