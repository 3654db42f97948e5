"""`millpond ui`."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import Any

from millpond.cli.checkpoint import options_of
from millpond.cli.output import Output
from millpond.config import resolve
from millpond.errors import ErrorKind, InvalidInputError
from millpond.storage.settings import storage_settings
from millpond.web import require_web


def add_command(commands: Any) -> None:
    """Add `millpond ui`."""
    text = (
        "show queries and savepoints in a browser: a server on this machine, which changes nothing"
    )
    command = commands.add_parser("ui", help=text, description=text[0].upper() + text[1:] + ".")
    command.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="Spark checkpoints, savepoints, and directories of them; running or stopped",
    )
    command.add_argument(
        "--option",
        "-o",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option for the storage, such as storage.s3.endpoint=http://host:9000",
    )
    command.add_argument("--host", default="127.0.0.1", help="where to listen (default: loopback)")
    command.add_argument("--port", type=int, default=0, help="the port (default: any that is free)")
    command.add_argument(
        "--token-file", metavar="FILE", help="has the token (default: a new one, which is printed)"
    )
    command.set_defaults(run=ui)


def ui(arguments: argparse.Namespace, output: Output) -> int:
    """Serve the pages until a signal ends it."""
    require_web()
    from millpond.ui.app import ui_app  # start-up time: the server's packages
    from millpond.web.server import run  # start-up time: the server's packages

    options = options_of(arguments)
    settings = storage_settings(resolve(options))
    token = _token(arguments.token_file)
    shown = "" if arguments.token_file else f"/?token={token}"

    def announce(address: str) -> None:
        output.line(f"{address}{shown}")
        output.flush()

    app = ui_app(arguments.paths, options, settings)
    run(app, host=arguments.host, port=arguments.port, token=token, announce=announce)
    return 0


def _token(file: str | None) -> str:
    if file is None:
        return secrets.token_urlsafe(32)
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as e:
        raise InvalidInputError(
            f"the token in {file} cannot be read: {type(e).__name__}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name a file of one line that this user may read.",
        ) from e
    if len(token) < 16:
        raise InvalidInputError(
            f"the token in {file} has {len(token)} characters; 16 are the least",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Write one with `openssl rand -hex 32`.",
        )
    return token
