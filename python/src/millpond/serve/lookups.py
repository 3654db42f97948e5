"""What a look-up asks for, and its answer as JSON or Arrow. Nothing here knows of HTTP.

Needs the extra `tools`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, InvalidInputError, error
from millpond.serve.following import Following, Held, Table
from millpond.spark.types import Struct, type_text
from millpond.state.join_counts import enough_columns
from millpond.state.key_examples import columns_text, example
from millpond.state.key_reader import Found, KeyReader
from millpond.state.selection import choices_of
from millpond.state.writing import json_rows
from millpond.store.point_reads import Most

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
_FIELDS = ("operator", "store", "column_family", "keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may ask for.

    Args:
        keys: of one request.
        body_bytes: of one request.
        rows: of one answer.
        answer_bytes: of the rows of one answer, as the state has them.
        requests: that are answered at the same time.
    """

    keys: int = 1000
    body_bytes: int = 1024 * 1024
    rows: int = 10_000
    answer_bytes: int = 32 * 1024 * 1024
    requests: int = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A look-up: where, and which keys."""

    table: Table
    keys: list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of keys after one batch.

    Args:
        content: JSON or an Arrow IPC stream.
    """

    batch: int
    batch_time_ms: int
    content: bytes


def question_of_body(body: bytes, limits: Limits) -> Question:
    """Return what a body asks for: `{"operator", "store", "column_family", "keys": [{...}]}`.

    Raises: InvalidInputError: INVALID_ARGUMENT, REQUEST_TOO_LARGE.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise _wrong("the body is no JSON") from e
    if not isinstance(asked, dict) or not isinstance(asked.get("keys"), list):
        raise _wrong("the body is no JSON object with a list `keys`")
    unknown = sorted(set(asked) - set(_FIELDS))
    if unknown:
        raise _wrong(f"the body has {', '.join(map(repr, unknown))}, which no look-up takes")
    operator, store, family = (asked.get(name) for name in _FIELDS[:3])
    if isinstance(operator, bool) or not isinstance(operator, int | str | None):
        raise _wrong("`operator` is a number or a name")
    if not isinstance(store, str | None) or not isinstance(family, str | None):
        raise _wrong("`store` and `column_family` are names")
    keys = asked["keys"]
    if not all(isinstance(key, dict) for key in keys):
        raise _wrong("each of `keys` is a JSON object: columns of the key and their values")
    if len(keys) > limits.keys:
        raise error(
            ErrorKind.REQUEST_TOO_LARGE,
            f"{len(keys)} keys in a request; the server allows {limits.keys}",
            hint="Ask for fewer keys at once; `millpond serve --max-keys` sets the limit.",
        )
    return Question((operator, store, family), keys)


def question_of_query(parameters: Sequence[tuple[str, str]]) -> Question:
    """Return what the parameters of an address ask for: one key, a `key=COLUMN=VALUE` a column.

    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    place: dict[str, str] = {}
    key: dict[str, str] = {}
    for name, value in parameters:
        column, equals, text = value.partition("=")
        if name == "key" and equals and column not in key:
            key[column] = text
        elif name in _FIELDS[:3] and name not in place:
            place[name] = value
        else:
            told = name if name in _FIELDS else "an unknown parameter"
            raise _wrong(f"the address has {told} twice, or not of its form")
    table = (place.get("operator"), place.get("store"), place.get("column_family"))
    return Question(table, [key])


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(
        message,
        kind=ErrorKind.INVALID_ARGUMENT,
        hint='POST {"keys": [{"<column>": <value>}]}, or GET ?key=<column>=<value>; /openapi.json'
        " says more.",
    )


def answer(held: Held, question: Question, limits: Limits, form: str) -> Answer:
    """Return the rows of keys after the batch that is held.

    Args:
        form: JSON or ARROW.
    Raises: InvalidInputError: INVALID_ARGUMENT: tells the key's columns, and an example;
        REQUEST_TOO_LARGE. Others: as `KeyReader`.
    """
    reader = held.reader(question.table)
    try:
        found = reader.find(question.keys, Most(limits.rows, limits.answer_bytes))
    except InvalidInputError as e:
        if e.kind is ErrorKind.REQUEST_TOO_LARGE:
            more = (
                "Ask for fewer keys; `--max-rows` and `--max-answer-bytes` of `millpond serve` set"
                " the limits."
            )
            raise error(e.kind, e.message, hint=more) from e
        raise error(e.kind, e.message, hint=_what_keys_are(reader)) from e
    encode = _arrow if form == ARROW else _json
    return Answer(held.batch, held.batch_time_ms, encode(held, found))


def _json(held: Held, found: Found) -> bytes:
    told = {
        "batch": held.batch,
        "batch_time_ms": held.batch_time_ms,
        "rows_per_key": found.counts,
        "rows": json_rows(found.rows.to_batches()),
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _arrow(held: Held, found: Found) -> bytes:
    about = {
        "millpond.batch": str(held.batch),
        "millpond.batch_time_ms": str(held.batch_time_ms),
        "millpond.rows_per_key": json.dumps(found.counts),
    }
    table = found.rows.replace_schema_metadata(about)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def tables(following: Following) -> dict[str, Any]:
    """Return what can be looked up: operators, stores, column families, their columns."""
    with following.held() as held:
        image = held.opened.image
        return {
            "batch": held.batch,
            "batch_time_ms": held.batch_time_ms,
            "tables": [
                {
                    "operator": choice.operator,
                    "operator_name": choice.name,
                    "store": choice.store,
                    "column_family": choice.schema.name,
                    "internal": choice.schema.name.startswith("$"),
                    "key": _columns(choice.schema.key),
                    "value": _columns(choice.schema.value),
                    "prefix": list(
                        choice.schema.key.distinct_names[
                            : enough_columns(choice.name, choice.store, choice.schema)
                        ]
                    ),
                    "example": example(choice.schema.key),
                }
                for operator in image.operators
                for choice in choices_of(image, operator.operator)
            ],
        }


def _columns(struct: Struct) -> list[dict[str, str]]:
    return [{"name": name, "type": type_text(kind)} for name, kind in struct.columns]


def _what_keys_are(reader: KeyReader) -> str:
    """Return a hint: the columns of the key, and an example."""
    key = reader.family.key
    shown = json.dumps(example(key), ensure_ascii=False)
    first = key.distinct_names[: reader.enough]
    enough = f" The columns {', '.join(first)} alone will do." if first else ""
    return f"A key here is: {columns_text(key, {})}. For example {shown}.{enough}"
