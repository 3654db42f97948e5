"""Where commands with a server listen, and the token that they want."""

from __future__ import annotations

import argparse
import secrets

from millpond.cli.arguments import number
from millpond.errors import ErrorKind, InvalidInputError


def add_listening(command: argparse.ArgumentParser, port: int) -> None:
    """Add --host, --port with this default, --token-file and --allow-host."""
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at (default: 127.0.0.1, for this machine alone)",
    )
    command.add_argument(
        "--port", type=number, default=port, help=f"0: any that is free (default: {port})"
    )
    command.add_argument(
        "--token-file",
        metavar="FILE",
        help="the token that requests must have (default: a random one, which is printed)",
    )
    command.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients call this machine, beside --host; repeatable",
    )


def token_for(path: str | None) -> str:
    """Return the token of a file; None: a new one. Raises: InvalidInputError: INVALID_ARGUMENT."""
    return secrets.token_urlsafe(32) if path is None else _token_of(path)


def _token_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInputError(
            f"cannot read the token: {e}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name a text file that holds the token and nothing else.",
        ) from e
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInputError(
            f"{path} holds no token",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=f"Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > {path}",
        )
    return token
