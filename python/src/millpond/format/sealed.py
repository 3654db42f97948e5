"""Sealed JSON: one line with kind, format, CRC-32 and length, then the body, a JSON object.

    MILLPOND <kind> <format> <crc32 of the body, 8 hex> <body length in bytes, decimal>\\n<body>

Source: docs/reference/format.md.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from millpond.errors import ErrorKind, UnsupportedError, error
from millpond.model.json_fields import JsonFields

FORMAT = 1

_HEAD = re.compile(rb"MILLPOND ([a-z]+) ([0-9]{1,9}) ([0-9a-f]{8}) (0|[1-9][0-9]{0,17})")
_MAX_HEAD_BYTES = 80


def seal(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a sealed JSON file of `kind` (`format` or `manifest`)."""
    # sort_keys stays off: the fields have the order of the documentation.
    data = (
        json.dumps(body, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")
        + b"\n"
    )
    return f"MILLPOND {kind} {FORMAT} {zlib.crc32(data):08x} {len(data)}\n".encode("ascii") + data


def unseal(
    kind: str, data: bytes, *, name: str, damaged: ErrorKind, features: Iterable[str] = ()
) -> JsonFields:
    """Check the seal of `data` and return its body.

    Args:
        kind: the kind that is expected.
        name: of the file, for messages.
        damaged: kind of the error if the file is not whole.
        features: the `required_features` that the caller can handle.
    Raises:
        MillpondError: `damaged`: the file is not whole, or of another kind.
        UnsupportedError: FORMAT_TOO_NEW: the file's format or one of its required features is
            unknown.
    """

    def fail(message: str) -> Exception:
        return error(damaged, f"{name}: {message}")

    end = data.find(b"\n", 0, _MAX_HEAD_BYTES)
    match = _HEAD.fullmatch(data, 0, end) if end >= 0 else None
    if match is None:
        raise fail("no seal in its first line")
    if match[1].decode("ascii") != kind:
        raise fail(f"is a {match[1].decode('ascii')}, not a {kind}")
    file_format = int(match[2])
    if file_format > FORMAT:
        raise UnsupportedError(
            f"{name}: {kind} of format {file_format}, this version reads {FORMAT}",
            kind=ErrorKind.FORMAT_TOO_NEW,
        )
    body = data[end + 1 :]
    if file_format != FORMAT or len(body) != int(match[4]):
        raise fail(
            f"{len(body)} bytes after its first line, which announces {match[4].decode('ascii')}"
        )
    if zlib.crc32(body) != int(match[3], 16):
        raise fail("its check sum does not match")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise fail("its body is no JSON") from e
    fields = JsonFields(value, lambda message: error(damaged, f"{name}: {message}"))
    unknown = sorted(set(fields.strings("required_features")) - set(features))
    if unknown:
        raise UnsupportedError(
            f"{name}: needs features that this version does not know: {', '.join(unknown)}",
            kind=ErrorKind.FORMAT_TOO_NEW,
        )
    return fields
