"""Arguments that several commands take, and their types."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from millpond.errors import InvalidInputError


class Once(argparse.Action):
    """Stores a value that may be given as an argument or as an option, but not as two."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values is None:  # left out
            return
        before = getattr(namespace, self.dest, None)
        if before not in (None, values):
            parser.error(f"{self.dest} is both {before} and {values}")
        setattr(namespace, self.dest, values)


def number(text: str) -> int:
    """Return a whole number of at least 0. Raises: argparse.ArgumentTypeError."""
    if not text.isdecimal() or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def pair(text: str) -> tuple[int, int]:
    """Return the numbers of `OLD=NEW`. Raises: argparse.ArgumentTypeError."""
    old, equals, new = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form OLD=NEW")
    return number(old), number(new)


def settings(given: Iterable[str]) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping. Raises: InvalidInputError: INVALID_ARGUMENT."""
    parts = [text.partition("=") for text in given]
    if not all(equals for _, equals, _ in parts):
        raise InvalidInputError(
            "--conf wants NAME=VALUE",
            hint="Write --conf spark.driver.memory=4g, once for each setting.",
        )
    return {name: value for name, _, value in parts}


def add_job(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments that name a job, and one of its queries."""
    command.add_argument(
        "--job",
        required=required,
        metavar="JOB.PY[:FUNCTION]",
        help=(
            "the job: a script, or a function that returns its streaming DataFrame; it is run, but"
            ' its queries do not start; its arguments go behind it, in quotes: "job.py --day 1"'
        ),
    )
    command.add_argument(
        "--query",
        metavar="NAME",
        help="queryName of the query that is meant, if the job has several",
    )


def add_file_sink(command: argparse.ArgumentParser, default: str) -> None:
    """Add the argument that says where the query writes.

    Args:
        default: for the help: what holds if the argument is left out.
    """
    command.add_argument(
        "--file-sink",
        metavar="DIR",
        help=(
            "the directory that the query writes to by a file format (parquet, json, csv, orc,"
            " text), whose log must hold every batch number; none: it writes to no such sink"
            f" (default: {default})"
        ),
    )


def add_engine(command: argparse.ArgumentParser, what: str) -> None:
    """Add the arguments that say who does the work.

    Args:
        what: for the help: the work.
    """
    command.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help=(
            f"spark: {what} as tasks of a Spark session, for state too large for one machine"
            " (default: processes of this one)"
        ),
    )
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of that session, spark.master for one; repeatable",
    )


def session_of(arguments: argparse.Namespace, *, job: bool = False) -> Any:
    """Return the Spark session for `--engine spark`; None for any other engine.

    Args:
        job: a job is named, so `--conf` may be for its session.
    Raises: InvalidInputError: `--conf` without that engine, and without a job. Others: as
        `plain_session`.
    """
    conf = settings(arguments.conf)
    if arguments.engine != "spark":
        if conf and not job:
            raise InvalidInputError(
                "--conf is for --engine spark", hint="Leave out --conf, or add --engine spark."
            )
        return None
    # imported here: it takes long, and few need it
    from millpond.spark.session import plain_session

    return plain_session(conf)


def add_batch(command: argparse.ArgumentParser) -> None:
    """Add `--batch`."""
    command.add_argument(
        "--batch", type=number, metavar="N", help="a committed batch (default: the last one)"
    )


def add_writing(command: argparse.ArgumentParser) -> None:
    """Add what every command that writes files takes: `--copy` and `--dry-run`."""
    command.add_argument(
        "--copy", action="store_true", help="copy files that could be shared (hard links) instead"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="write nothing, print what would be written"
    )
