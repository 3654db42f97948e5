"""Arguments that several commands take, and their types."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millpond.cli.output import Output
from millpond.errors import ErrorKind, InvalidInputError
from millpond.spark.column_changes import ColumnChanges

Run = Callable[[argparse.Namespace, Output], int]
"""Carries a command out. Returns its exit code."""


class Parser(argparse.ArgumentParser):
    """Takes `--` as the value of an option that is written `--option=--`, as of Python 3.13."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Others leave out a `--` here, also where it does not end the options.
        if action.option_strings and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)


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


def new_command(
    parent: Any, name: str, run: Run, text: str, rest: str = "."
) -> argparse.ArgumentParser:
    """Add a command to subparsers.

    Args:
        text: what it does, for the list of commands; with a capital its own help begins with it.
        rest: how its own help goes on.
    """
    command: argparse.ArgumentParser = parent.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}{rest}"
    )
    command.set_defaults(run=run)
    return command


def add_json(
    command: argparse.ArgumentParser, text: str = "print JSON; fields may be added, never renamed"
) -> None:
    """Add `--json`, with this help."""
    command.add_argument("--json", action="store_true", help=text)


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


def add_family(command: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a column family."""
    command.add_argument(
        "--operator", metavar="OPERATOR", help="number or name (default: the only one)"
    )
    command.add_argument(
        "--store", metavar="NAME", help="of a join: the store (default: the only one)"
    )
    command.add_argument(
        "--column-family", metavar="NAME", help="such as a state variable (default: the only one)"
    )


class _Columns(argparse.Action):
    """Collects all options that change columns, each with its text."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.columns = [*namespace.columns, (option_string, values)]


def add_columns(command: argparse.ArgumentParser) -> None:
    """Add the arguments that change columns of values. `columns_of` reads them."""
    for option, form, text in (
        (
            "--add-column",
            "NAME:TYPE=VALUE",
            "a new column of the values, such as total:long=0; without =VALUE it is null",
        ),
        ("--drop-column", "NAME", "a column that values have no more"),
        ("--rename-column", "OLD=NEW", "another name for a column"),
        ("--change-column", "NAME:TYPE", "another type for numbers, such as total:long"),
        ("--column-order", "NAME,NAME", "all columns, in their new order (default: new ones last)"),
    ):
        repeatable = "" if option == "--column-order" else "; repeatable"
        command.add_argument(
            option,
            dest="columns",
            action=_Columns,
            default=[],
            metavar=form,
            help=text + repeatable,
        )


def columns_of(arguments: argparse.Namespace) -> ColumnChanges:
    """Return the changes that `add_columns` takes.

    Raises: InvalidInputError: INVALID_ARGUMENT: not of the form, or one column twice.
    """
    add: dict[str, tuple[str, object]] = {}
    rename: dict[str, str] = {}
    change_type: dict[str, str] = {}
    drop: list[str] = []
    order: list[str] = []
    for option, text in arguments.columns:
        if option == "--drop-column":
            drop.append(text)
        elif option == "--column-order":
            order = text.split(",")
        elif option == "--rename-column":
            old, new = _halves(text, "=", f"{option} OLD=NEW")
            _once(old, rename)
            rename[old] = new
        elif option == "--change-column":
            name, kind = _halves(text, ":", f"{option} NAME:TYPE, such as total:long")
            _once(name, change_type)
            change_type[name] = kind
        else:
            named, equals, value = text.partition("=")
            name, kind = _halves(named, ":", f"{option} NAME:TYPE=VALUE, such as total:long=0")
            _once(name, add)
            add[name] = (kind, value if equals and value != "null" else None)
    return ColumnChanges(add=add, drop=drop, rename=rename, change_type=change_type, order=order)


def _halves(text: str, separator: str, form: str) -> tuple[str, str]:
    first, _, second = text.partition(separator)
    if not first or not second:
        raise InvalidInputError(
            f"{text!r} is not of the form of its option",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=f"Write {form}.",
        )
    return first, second


def _once(name: str, there: Mapping[str, object]) -> None:
    if name in there:
        raise InvalidInputError(
            f"column {name!r} is named twice",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name each column once.",
        )


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


def add_options(command: argparse.ArgumentParser) -> None:
    """Add --option."""
    command.add_argument(
        "--option",
        "-o",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "an option for the storages, such as storage.s3.endpoint=http://host:9000; keys come"
            " from boto3's environment; repeatable"
        ),
    )


def options_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the options that the arguments `--option` give, for the storages of the command.

    Raises: InvalidInputError.
    """
    given: dict[str, object] = {}
    for text in getattr(arguments, "option", ()):  # some commands open no storage
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(
                f"--option {text}: expected NAME=VALUE",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Write -o storage.s3.region=eu-west-1; `millpond options` lists the names.",
            )
        given[name] = value
    return given
