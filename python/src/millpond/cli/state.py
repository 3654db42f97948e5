"""`millpond state list`, `read`, `get`, `history`, `blame` and `erase`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from millpond import api, state
from millpond.cli.arguments import (
    add_batch,
    add_engine,
    add_family,
    add_json,
    add_options,
    new_command,
    number,
    session_of,
)
from millpond.cli.output import Output, bytes_text
from millpond.cli.progress import progress_bar, status_line
from millpond.errors import (
    ErrorKind,
    InvalidInputError,
    MillpondError,
    UnsupportedError,
    error,
)
from millpond.format.layout import new_staging_name
from millpond.model.command_texts import path_text
from millpond.operations.notebook import time_text
from millpond.rows import require_tools
from millpond.state.selection import open_state
from millpond.storage.local import translate_restored

_TABLE_ROWS = 20
_PATH = (
    "checkpoint of a query, running or stopped, of Millpond's or of one of Spark's own stores; or a"
    " savepoint: a directory or a URI"
)
_PATH_OF_READ = f"{_PATH}; with --engine spark only of Millpond's"
_OF_MILLPOND = (
    "checkpoint of a query of Millpond's, running or stopped; or a savepoint: a directory or a URI"
)
_FORMATS = ("table", "csv", "json", "parquet")

_KEY = (
    "a column of the key and its value (nested: key.k); all columns, or the first ones by"
    " which keys are sorted; repeatable"
)

_SOME = (
    "only rows with that value in that column of the key (nested: key.k); all that are given must"
    " hold; repeatable"
)


def add_commands(commands: Any) -> None:
    """Add the commands to the root's subparsers."""
    group = commands.add_parser("state", help="read the state of a query")
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command = new_command(
        actions,
        "list",
        list_,
        "list what a query keeps: operators, stores, column families, columns, rows",
    )
    command.add_argument("path", help=_PATH)
    add_options(command)
    add_batch(command)
    command.add_argument(
        "--no-count",
        dest="count",
        action="store_false",
        help="read schemas alone: no count of rows, no names for the columns of a join's key",
    )
    add_json(command)
    command = new_command(
        actions, "read", read, "print the state of a query, or write it to a file"
    )
    _add_place(command, _SOME, path=_PATH_OF_READ)
    command.add_argument("--raw", action="store_true", help="add the bytes of keys and values")
    command.add_argument(
        "--format",
        choices=_FORMATS,
        default="table",
        help="json: an object a line (default: table)",
    )
    command.add_argument(
        "--limit",
        type=number,
        metavar="N",
        help=f"at most so many rows (default: {_TABLE_ROWS} for a table, else all)",
    )
    command.add_argument(
        "--output",
        metavar="FILE",
        help="write to this file, which must not exist (needed for parquet)",
    )
    add_engine(command, "read it, and write the directory --output of Parquet files,")
    command = new_command(
        actions,
        "get",
        get,
        "look up a key: reads the partition of the key, and no more of it than it must",
    )
    _add_place(command, _KEY)
    add_json(command, "print a JSON object a row")
    command = new_command(
        actions,
        "history",
        history,
        "print how a key changed, over all batches whose state is retained",
    )
    _add_place(command, _KEY, path=_OF_MILLPOND, batch=False)
    command.add_argument(
        "--savepoint",
        action="append",
        default=[],
        metavar="PATH",
        help="a savepoint of the query, which shows the key at its batch; repeatable",
    )
    add_json(command)
    command = new_command(actions, "blame", blame, "print which batch last wrote each row")
    _add_place(command, _SOME, path=_OF_MILLPOND)
    command.add_argument(
        "--limit",
        type=number,
        default=None,
        metavar="N",
        help=f"at most so many rows (default: {_TABLE_ROWS} for a table, else all)",
    )
    add_json(command, "print a JSON object a row")
    command = new_command(
        actions,
        "erase",
        erase,
        "erase a key from the state of stopped queries, and from savepoints",
        ". Every retained version that holds the key is written anew without it; then all files"
        " that are left are searched. If it is interrupted, run it again. Try it with --dry-run"
        " first.",
    )
    command.add_argument(
        "paths", nargs="+", metavar="path", help="checkpoint of a stopped query, or a savepoint"
    )
    command.add_argument(
        "--operator", metavar="O", help="operator: number or name; may be left out if there is one"
    )
    command.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="a column by which the operator groups, joins or deduplicates, and its value (nested:"
        " w.start); some of the columns are enough; repeatable",
    )
    command.add_argument("--dry-run", action="store_true", help="write nothing")
    add_options(command)
    add_json(command)


def _add_place(
    command: argparse.ArgumentParser, keys: str, *, path: str = _PATH, batch: bool = True
) -> None:
    """Add the arguments that name a column family and keys of it. `keys` and `path` help with
    them.
    """
    command.add_argument("path", help=path)
    add_options(command)
    add_family(command)
    if batch:
        add_batch(command)
    command.add_argument("--key", action="append", default=[], metavar="COLUMN=VALUE", help=keys)


def list_(arguments: argparse.Namespace, output: Output) -> int:
    """Print what the query keeps. What Spark keeps for itself is named, and has no columns."""
    with _readable(arguments, output) as path:
        found = state.list(path, batch=arguments.batch, count=arguments.count)
    found = replace(found, path=arguments.path)
    if arguments.json:
        output.json(found.to_json())
        return 0
    output.line(f"{'path':<6} {found.path}")
    output.line(f"{'batch':<6} {found.batch}")
    for family in found.families:
        if family.internal:
            continue
        output.line()
        rows = f"  {family.rows:,} rows" if family.rows >= 0 else ""
        output.line(f"{family.name}{rows}")
        for label, columns in (("key", family.key), ("value", family.value)):
            text = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            output.line(f"  {label:<5} {text or 'none'}")
        output.line(f"  read  millpond state read {path_text(found.path)} {family.arguments}")
    hidden = [family for family in found.families if family.internal]
    if hidden:
        output.line()
        names = ", ".join(family.column_family for family in hidden)
        output.line(f"Spark keeps beside them, and `--column-family` reads: {names}")
    return 0


def _check_output(path: str, *, by_spark: bool) -> None:
    """Raise InvalidInputError unless a file can be made at `path`. Spark makes directories itself,
    and takes URIs.
    """
    if os.path.lexists(path):
        raise InvalidInputError(
            f"{path} is there already",
            kind=ErrorKind.TARGET_NOT_EMPTY,
            hint="Name a file that does not exist: Millpond overwrites nothing.",
        )
    directory = os.path.dirname(os.path.abspath(path))
    if not by_spark and not os.path.isdir(directory):
        raise InvalidInputError(
            f"there is no directory {directory}", hint="Name a file in a directory that is there."
        )


def read(arguments: argparse.Namespace, output: Output) -> int:
    """Print or write the state."""
    require_tools()

    if arguments.format == "parquet" and arguments.output is None:
        raise InvalidInputError(
            "parquet is not for reading on a terminal: name a file with --output",
            hint="Add --output state.parquet.",
        )
    if arguments.output is not None:
        _check_output(arguments.output, by_spark=arguments.engine == "spark")
    wanted = _wanted(arguments)
    chosen: dict[str, Any] = {
        "operator": arguments.operator,
        "store": arguments.store,
        "column_family": arguments.column_family,
        "batch": arguments.batch,
        "keys": wanted or None,
        "raw": arguments.raw,
    }
    if arguments.engine == "spark":
        if arguments.format != "parquet":
            raise InvalidInputError(
                "--engine spark writes Parquet: --format parquet --output DIRECTORY",
                hint="Add --format parquet --output DIRECTORY, or leave out --engine spark.",
            )
        from millpond.state.with_spark import read_with_spark  # start-up time: pyarrow

        spark = session_of(arguments)
        frame = read_with_spark(spark, arguments.path, limit=arguments.limit, **chosen)
        # Parquet has no structs without fields: a key without columns is left out.
        empty = [f.name for f in frame.schema if f.dataType.simpleString() == "struct<>"]
        frame.drop(*empty).write.parquet(arguments.output)
        output.message(f"written to {arguments.output}")
        return 0
    session_of(arguments)  # refuses --conf
    with _readable(arguments, output) as path:
        _print(path, chosen, arguments, output)
    return 0


def get(arguments: argparse.Namespace, output: Output) -> int:
    """Print the rows of a key."""
    require_tools()
    from millpond.state import writing  # start-up time: pyarrow

    with ExitStack() as stack:
        chosen: dict[str, Any] = {
            "operator": arguments.operator,
            "store": arguments.store,
            "column_family": arguments.column_family,
            "batch": arguments.batch,
        }
        try:
            opened = state.lookup(arguments.path, **chosen)
        except UnsupportedError as e:
            if e.kind is not ErrorKind.FOREIGN_CHECKPOINT:
                raise
            path = stack.enter_context(_readable(arguments, output))
            opened = state.lookup(path, **chosen)
        reader = stack.enter_context(opened)
        found = reader.table([_wanted(arguments)])
    if arguments.json:
        writing.write_json(found.to_batches(), output.data, ascii=bool(output.lacking()))
    elif found.num_rows:
        writing.write_table(found.schema, found.to_batches(), output.table)
    else:
        output.message(f"after batch {reader.batch} the state has no such key")
    return 0


def history(arguments: argparse.Namespace, output: Output) -> int:
    """Print how a key changed. Exit code 1 if a batch could not be read."""
    require_tools()
    from millpond.state.writing import cell  # start-up time: pyarrow

    found = state.history(
        arguments.path,
        key=_wanted(arguments),
        operator=arguments.operator,
        store=arguments.store,
        column_family=arguments.column_family,
        savepoint=arguments.savepoint,
    )
    if arguments.json:
        output.json(found.to_json())
    else:
        rows = [_change_row(change, cell) for change in found.changes]
        output.table(("batch", "began", "what", "afterwards", "seen in the savepoint"), rows)
        read = f"{found.batches[0]} to {found.batches[-1]}"
        output.message(f"{len(found.batches)} batches were read: {read}")
    for batch_, why in found.unreadable:
        output.message(f"batch {batch_} cannot be read: {why}")
    return 1 if found.unreadable else 0


def _change_row(change: state.Change, cell: Callable[[Any], str]) -> tuple[str, ...]:
    batch, since = str(change.batch), change.since_batch
    if since is not None and since + 1 < change.batch:
        batch = f"{since + 1} to {change.batch}"  # those in between are not retained
    rows = change.after
    shown = "" if not rows else cell(rows[0]["value"] if len(rows) == 1 else list(rows))
    return batch, time_text(change.at_ms), change.what, shown, change.savepoint


def blame(arguments: argparse.Namespace, output: Output) -> int:
    """Print which batch last wrote each row."""
    require_tools()
    from millpond.state import writing  # start-up time: pyarrow

    limit = arguments.limit
    if limit is None and not arguments.json:
        limit = _TABLE_ROWS
    found = state.blame(
        arguments.path,
        operator=arguments.operator,
        store=arguments.store,
        column_family=arguments.column_family,
        batch=arguments.batch,
        keys=_wanted(arguments) or None,
        limit=limit,
    )
    if arguments.json:
        writing.write_json(found.to_batches(), output.data, ascii=bool(output.lacking()))
    elif found.num_rows:
        times = [None if at is None else at.as_py() for at in found.column("began")]
        texts = ["" if t is None else time_text(int(t.timestamp() * 1000)) for t in times]
        shown = found.set_column(found.schema.get_field_index("began"), "began", [texts])
        writing.write_table(shown.schema, shown.to_batches(), output.table)
        if found.num_rows == limit:
            output.message(f"the first {limit} rows (--limit)")
    else:
        output.message("there is no such row")
    return 0


def erase(arguments: argparse.Namespace, output: Output) -> int:
    """Erase a key."""
    with progress_bar(arguments.json) as progress:
        report = api.erase(
            arguments.paths,
            key=_wanted(arguments),
            operator=arguments.operator,
            dry_run=arguments.dry_run,
            progress=progress,
        )
    if arguments.json:
        output.json(report.to_json())
        return 0
    for place in report.places:
        for name, text in _erased(place):
            output.line(f"{name:<9} {text}")
    if report.dry_run:
        output.message("nothing was erased (--dry-run)")
    return 0


def _erased(place: api.ErasedPlace) -> Iterator[tuple[str, str]]:
    stores = " ".join(f"{operator}/{part}/{name}" for operator, part, name in place.stores)
    yield "path", place.path
    yield "rows", f"{place.rows:,} of the newest batch; {place.entries:,} entries in files"
    yield "batches", f"{place.batches[0]} to {place.batches[-1]}"
    yield "stores", stores or "none has the key"
    yield "files", f"{place.files:,} written anew, {place.deleted:,} deleted"
    yield "before", place.digest_before
    yield "after", place.digest_after
    if place.proof is not None:
        searched = f"{place.proof.files:,} files, {bytes_text(place.proof.raw_bytes)}"
        yield "proof", f"{searched} of rows were searched: none is the key's"
        for file, _ in place.proof.elsewhere:
            yield "", f"rows with other keys have some of its bytes: {file}"
        for file in place.proof.unread:
            yield "", f"not searched, it is damaged: {file}"


def _wanted(arguments: argparse.Namespace) -> dict[str, str]:
    """Return columns of the key and their values."""
    wanted = [text.partition("=") for text in arguments.key]
    if not all(equals for _, equals, _ in wanted):
        raise InvalidInputError(
            "--key wants COLUMN=VALUE",
            hint="Write --key order_id=17; `millpond state list` shows the columns of the key.",
        )
    names = [name for name, _, _ in wanted]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInputError(
            f"--key gives column {twice[0]!r} twice: no key has both values",
            hint="Give each column once. For several keys run the command for each.",
        )
    return {name: value for name, _, value in wanted}


@contextmanager
def _readable(arguments: argparse.Namespace, output: Output) -> Iterator[str]:
    """Yield the path to read: the user's, or a copy of it if Spark's own store has the state."""
    try:
        open_state(arguments.path, arguments.batch)
    except UnsupportedError as e:
        if e.kind is not ErrorKind.FOREIGN_CHECKPOINT:
            raise
    else:
        yield arguments.path
        return
    output.message("the state is in one of Spark's own stores: reading a temporary copy")
    with progress_bar(False) as progress, ExitStack() as stack:
        copy = stack.enter_context(
            api.adopted(arguments.path, batch=arguments.batch, progress=progress)
        )
        try:
            yield copy
        except MillpondError as e:
            hint = e.hint.replace(copy, arguments.path)
            raise error(e.kind, e.message.replace(copy, arguments.path), hint=hint) from e


def _print(
    path: str, chosen: dict[str, Any], arguments: argparse.Namespace, output: Output
) -> None:
    from millpond.state import tables, writing  # start-up time: pyarrow

    # In a file the columns keep the names that `savepoint edit --table` takes.
    in_file = arguments.output is not None
    limit = arguments.limit
    if not in_file and arguments.format == "table" and limit is None:
        limit = _TABLE_ROWS + 1  # the last one tells that there are more
    schema, batches = tables.scan_state(path, join_names=not in_file, limit=limit, **chosen)
    if in_file:
        with status_line() as draw:
            rows = _counted(batches, draw)
            count = _to_file(arguments.output, arguments.format, schema, rows)
        output.message(f"{count:,} rows written to {arguments.output}")
    elif arguments.format == "json":
        writing.write_json(batches, output.data, ascii=bool(output.lacking()))
    elif arguments.format == "csv":
        output.check_all_texts("CSV")
        writing.write_csv(schema, batches, output.data)
    else:
        found = list(batches)
        most = arguments.limit if arguments.limit is not None else _TABLE_ROWS
        writing.write_table(schema, writing.limited(found, most), output.table)
        if sum(batch.num_rows for batch in found) > most:
            output.message(f"the first {most} rows; --limit N for more")


def _counted(batches: Iterable[Any], draw: Callable[[str], None] | None) -> Iterable[Any]:
    count = 0
    for batch in batches:
        yield batch
        count += batch.num_rows
        if draw is not None:
            draw(f"{count:,} rows")


def _to_file(path: str, form: str, schema: Any, batches: Iterable[Any]) -> int:
    """Write the file so that it is there whole or not at all. Return how many rows it has."""
    from millpond.state import writing  # start-up time: pyarrow

    unfinished = os.path.join(os.path.dirname(os.path.abspath(path)), new_staging_name())
    try:
        if form == "parquet":
            count = writing.write_parquet(schema, batches, unfinished)
        else:
            with open(unfinished, "x", encoding="utf-8", newline="") as file:
                if form == "json":
                    count = writing.write_json(batches, file)
                elif form == "csv":
                    count = writing.write_csv(schema, batches, file)
                else:
                    count = writing.write_table(schema, batches, Output(file).table)
        _check_output(path, by_spark=False)  # somebody may have made it meanwhile
        os.rename(unfinished, path)
    except OSError as e:
        raise translate_restored(e, f"writing {path}") from e
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
    return count
