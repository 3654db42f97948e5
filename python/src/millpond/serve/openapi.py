"""The description of what is served, in OpenAPI 3.1. A test holds it to the routes."""

from __future__ import annotations

from typing import Any

from millpond import __version__
from millpond.errors import ErrorKind
from millpond.serve.lookups import ARROW, JSON, Limits

_PLACE = (
    ("operator", "number or name of the stateful operator; may be left out if there is one"),
    ("store", "name of the store; may be left out if there is one"),
    ("column_family", "name of the column family; may be left out if there is one"),
)
_STATUSES = {
    "400": "the request or a key makes no sense; the hint tells the key's columns, and an example",
    "401": "the token is missing or wrong",
    "404": "the state that was asked for is not there any more",
    "413": "more keys, bytes or rows than the server allows",
    "421": "the request is for another host name",
    "429": "too many requests at the same time",
    "500": "a file is damaged, or Millpond has a defect",
    "503": "the storage does not answer",
}


def document(limits: Limits) -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millpond: state of a streaming query",
            "version": __version__,
            "description": "Each answer is the state after one committed batch, and names it.",
        },
        "security": [{"token": []}],
        "paths": {
            "/v1/lookup": {
                "get": _operation(
                    "look up one key, or the keys that begin with its first columns",
                    _rows(),
                    parameters=[
                        *(_parameter(name, text) for name, text in _PLACE),
                        _parameter(
                            "key",
                            "COLUMN=VALUE, once for each column of the key; nested columns with"
                            " dots",
                            many=True,
                        ),
                    ],
                ),
                "post": _operation(
                    "look up many keys",
                    _rows(),
                    requestBody={
                        "required": True,
                        "content": {JSON: {"schema": _question(limits)}},
                    },
                ),
            },
            "/v1/tables": {"get": _operation("what can be looked up", _json("Tables"))},
            "/healthz": {
                "get": _operation(
                    "the newest batch, and how old it is",
                    _json("Health"),
                    others={"503": ("the newest batch may not be the query's", "Health")},
                )
            },
            "/openapi.json": {
                "get": _operation("this document", {JSON: {"schema": {"type": "object"}}})
            },
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _SCHEMAS,
        },
    }


def _operation(
    summary: str,
    content: dict[str, Any],
    *,
    others: dict[str, tuple[str, str]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    told = {status: (text, "Error") for status, text in _STATUSES.items()} | (others or {})
    responses = {"200": {"description": "the answer", "content": content}}
    responses |= {
        status: {"description": text, "content": _json(schema)}
        for status, (text, schema) in told.items()
    }
    return {"summary": summary, "responses": responses, **more}


def _parameter(name: str, text: str, *, many: bool = False) -> dict[str, Any]:
    one = {"type": "string"}
    return {
        "name": name,
        "in": "query",
        "description": text,
        "schema": {"type": "array", "items": one} if many else one,
        **({"explode": True} if many else {}),
    }


def _question(limits: Limits) -> dict[str, Any]:
    place = {name: {"type": "string", "description": text} for name, text in _PLACE}
    place["operator"] = {**place["operator"], "type": ["integer", "string"]}  # type: ignore[dict-item]
    keys = {
        "type": "array",
        "maxItems": limits.keys,
        "items": {"type": "object", "description": "columns of the key and their values"},
    }
    return {
        "type": "object",
        "required": ["keys"],
        "additionalProperties": False,
        "properties": {**place, "keys": keys},
    }


def _rows() -> dict[str, Any]:
    return {**_json("Rows"), ARROW: {"schema": {"type": "string", "format": "binary"}}}


def _json(schema: str) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_INTEGER = {"type": "integer"}
_TEXT = {"type": "string"}
_COLUMNS = {"type": "array", "items": _object(name=_TEXT, type=_TEXT)}
_TIME = {"type": "integer", "description": "when the batch began, in ms since the epoch"}
_TOLD = _object(
    code={"type": "string", "enum": [kind.value for kind in ErrorKind]}, message=_TEXT, hint=_TEXT
)

_SCHEMAS: dict[str, Any] = {
    "Error": _object(error=_TOLD),
    "Rows": _object(
        batch=_INTEGER,
        batch_time_ms=_TIME,
        rows_per_key={
            "type": "array",
            "items": _INTEGER,
            "description": "how many of the rows each key has, in the order of the keys",
        },
        rows={
            "type": "array",
            "items": _object(partition=_INTEGER, key={"type": "object"}, value={"type": "object"}),
        },
    ),
    "Tables": _object(
        batch=_INTEGER,
        batch_time_ms=_TIME,
        tables={
            "type": "array",
            "items": _object(
                operator=_INTEGER,
                operator_name=_TEXT,
                store=_TEXT,
                column_family=_TEXT,
                internal={"type": "boolean", "description": "Spark keeps it for itself"},
                key=_COLUMNS,
                value=_COLUMNS,
                prefix={
                    "type": "array",
                    "items": _TEXT,
                    "description": "first columns that do for a look-up; empty: all are needed",
                },
                example={"type": "object", "description": "a key, to show its form"},
            ),
        },
    ),
    "Health": _object(
        status={"type": "string", "enum": ["ok", "stale"]},
        batch=_INTEGER,
        batch_time_ms=_TIME,
        age_ms={"type": "integer", "description": "since the batch began"},
        looked_ms_ago={"type": "integer", "description": "since the last look for a new batch"},
        follows={"type": "boolean", "description": "whether there will be other batches"},
        problem={"oneOf": [_TOLD, {"type": "null"}]},
    ),
}
