"""`millpond ui`."""

from __future__ import annotations

import argparse
from typing import Any

from millpond.cli.arguments import add_options, new_command
from millpond.cli.listening import add_listening, token_for
from millpond.cli.output import Output
from millpond.web import require_web


def add_command(commands: Any) -> None:
    """Add `millpond ui`."""
    command = new_command(
        commands,
        "ui",
        ui,
        "show queries and savepoints in a browser: a server on this machine, which changes nothing",
    )
    command.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="Spark checkpoints, savepoints, and directories of them; running or stopped",
    )
    add_options(command)
    command.add_argument(
        "--job",
        default="",
        metavar="JOB.PY[:FUNCTION]",
        help="a job, for the pages of savepoints: they can ask what it would do with the state; it"
        " is run for that, in a JVM, as by `millpond savepoint plan`",
    )
    add_listening(command, 0)


def ui(arguments: argparse.Namespace, output: Output) -> int:
    """Serve the pages until a signal ends it."""
    require_web()
    from millpond.ui.app import ui_app  # start-up time: the server's packages
    from millpond.web.server import run  # start-up time: the server's packages

    token = token_for(arguments.token_file)
    shown = "" if arguments.token_file else f"/?token={token}"

    def announce(address: str) -> None:
        output.line(f"{address}{shown}")
        output.flush()

    app = ui_app(arguments.paths, job=arguments.job)
    run(
        app,
        host=arguments.host,
        port=arguments.port,
        token=token,
        announce=announce,
        hosts=arguments.allow_host,
    )
    return 0
