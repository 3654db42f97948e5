"""`millpond serve`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from millpond.cli.arguments import add_options, new_command, number
from millpond.cli.listening import add_listening, token_for
from millpond.cli.output import Output
from millpond.rows import require_tools
from millpond.web import require_web

_PORT = 8765
_SWITCH_S = 0.0005
_LIMITS = (
    ("max-keys", 1000, "keys of a request"),
    ("max-body-bytes", 1024 * 1024, "bytes of a request's body"),
    ("max-rows", 10_000, "rows of an answer"),
    ("max-answer-bytes", 32 * 1024 * 1024, "bytes of an answer's rows, as the state has them"),
    ("max-requests", 64, "requests at the same time"),
)


def add_command(commands: Any) -> None:
    """Add the command to the root's subparsers."""
    command = new_command(
        commands,
        "serve",
        serve,
        "answer questions about keys over HTTP, from the query's newest committed batch",
        ". It only reads: a running query goes on as before. SIGTERM or Ctrl-C ends it.",
    )
    command.add_argument(
        "path",
        help="checkpoint of a query, running or stopped, or a savepoint: a directory or a URI",
    )
    add_options(command)
    add_listening(command, _PORT)
    for name, default, what in _LIMITS:
        command.add_argument(
            f"--{name}",
            type=_positive,
            default=default,
            metavar="N",
            help=f"at most so many {what} (default: {default:,})",
        )
    command.add_argument(
        "--poll-ms",
        type=_positive,
        default=250,
        metavar="N",
        help="how often to look for a new commit, in ms (default: 250)",
    )


def serve(arguments: argparse.Namespace, output: Output) -> int:
    """Serve until a signal."""
    require_web()
    require_tools()
    from millpond.serve.app import serve_app  # start-up time: starlette, pyarrow
    from millpond.serve.following import Following
    from millpond.serve.lookups import Limits
    from millpond.web.server import run

    token = token_for(arguments.token_file)
    following = Following(arguments.path, every_ms=arguments.poll_ms)
    limits = Limits(
        keys=arguments.max_keys,
        body_bytes=arguments.max_body_bytes,
        rows=arguments.max_rows,
        answer_bytes=arguments.max_answer_bytes,
        requests=arguments.max_requests,
    )

    def announce(url: str) -> None:
        output.line(f"path     {arguments.path}")
        output.line(f"address  {url}")
        kept = arguments.token_file
        output.line(f"token    {token if kept is None else f'in {kept}'}")
        output.flush()

    # The thread that follows the query computes for tens of milliseconds at a time. Requests get
    # their turn sooner with this than with Python's 5 ms.
    sys.setswitchinterval(_SWITCH_S)
    ended = run(
        serve_app(following, limits),
        host=arguments.host,
        port=arguments.port,
        token=token,
        announce=announce,
        hosts=arguments.allow_host,
        close=following.stop,
    )
    if not ended:
        # Python would wait for the threads of pools, which may read a large state for hours. What
        # they leave on the disk the next process removes, as after a kill.
        output.flush()
        os._exit(0)
    return 0


def _positive(text: str) -> int:
    value = number(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
