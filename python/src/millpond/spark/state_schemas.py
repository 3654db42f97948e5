"""Parses Spark's state schema files: the columns of keys and values, the encoding of keys. Gives
values another schema. Pure.

    state/<op>/0/[<store>/]_metadata/schema          v1, v2: one column family
    state/<op>/_stateSchema/<store>/<batch>_<uuid>   v3: all column families of the store

Spark writes them with Java's DataOutputStream. Source: Spark 4.3.0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.spark.types import Struct, parse_schema

_SPECS = {
    "NoPrefixKeyStateEncoderSpec": "point",
    "PrefixKeyScanStateEncoderSpec": "prefix",
    "RangeKeyScanStateEncoderSpec": "range",
    "TimestampAsPrefixKeyStateEncoderSpec": "time-first",
    "TimestampAsPostfixKeyStateEncoderSpec": "time-last",
}

_CHUNK = 10_000  # characters; one has 6 bytes at most in Java's modified UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySchema:
    """The rows of one column family."""

    name: str
    key: Struct
    value: Struct
    kind: str  # how keys are encoded, in the words of manifests
    prefix_columns: int = 0  # kind `prefix`: how many columns are the prefix
    ordinals: tuple[int, ...] = ()  # kind `range`: the columns that order the keys
    value_id: int = 0  # number of the schema of values
    # For state in Avro: all schemas that values ever had, by number.
    values: Mapping[int, Struct] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyText:
    """The rows of one column family, with schemas in Spark's JSON. So any type is allowed."""

    name: str
    key: str
    value: str
    kind: str
    prefix_columns: int = 0
    ordinals: tuple[int, ...] = ()
    value_id: int = 0

    @property
    def key_columns(self) -> list[str]:
        """The names of the columns of keys."""
        return [str(field["name"]) for field in json.loads(self.key)["fields"]]


def parse_schema_file(data: bytes, *, prefix_columns: int, name: str) -> tuple[FamilySchema, ...]:
    """Return the column families that a schema file describes.

    Args:
        data: the bytes of the file.
        prefix_columns: from operator metadata; files of v1 and v2 do not say it themselves.
        name: of the file, for messages.
    Raises: FormatError: FORMAT_DAMAGED. UnsupportedError: FORMAT_TOO_NEW.
    """
    return tuple(
        FamilySchema(
            name=family.name,
            key=parse_schema(family.key, name=name),
            value=parse_schema(family.value, name=name),
            kind=family.kind,
            prefix_columns=family.prefix_columns,
            ordinals=family.ordinals,
            value_id=family.value_id,
        )
        for family in family_texts(data, prefix_columns=prefix_columns, name=name)
    )


def family_texts(data: bytes, *, prefix_columns: int, name: str) -> tuple[FamilyText, ...]:
    """Return the column families that a schema file describes, with schemas as texts.

    Args, Raises: as `parse_schema_file`.
    """
    return tuple(text for text, _ in _families(data, prefix_columns=prefix_columns, name=name))


def with_value_schema(
    data: bytes, family: str, value: str, *, prefix_columns: int, name: str
) -> bytes:
    """Return a schema file in which the values of one column family have another schema.

    Args:
        data: the bytes of the file.
        family: the column family. All others stay, byte by byte.
        value: the new schema, in Spark's JSON.
        prefix_columns, name: as `parse_schema_file`.
    Raises: as `parse_schema_file`. FormatError: FORMAT_DAMAGED: there is no such column family.
    """
    for text, place in _families(data, prefix_columns=prefix_columns, name=name):
        if text.name != family:
            continue
        if place is None:
            # A text of v1 may have 64 KiB at most. Spark reads v2 wherever it reads v1.
            return _utf("v2") + _chunked(text.key) + _chunked(value)
        return data[: place.start] + _chunked(value) + data[place.stop :]
    raise FormatError(f"{name}: no column family {family!r}", kind=ErrorKind.FORMAT_DAMAGED)


def key_columns(data: bytes, *, name: str) -> tuple[str, ...] | None:
    """Return the names of the key's columns from a schema file of one column family (v1, v2).

    The columns may have any type. None for a later version of the file.

    Args:
        data: the bytes of the file.
        name: of the file, for messages.
    Raises: FormatError: FORMAT_DAMAGED.
    """
    reader = _Reader(data, name)
    version = reader.utf()
    if version not in ("v1", "v2"):
        return None
    try:
        fields = json.loads(reader.utf() if version == "v1" else reader.chunked())["fields"]
        return tuple(str(field["name"]) for field in fields)
    except (ValueError, KeyError, TypeError) as e:
        raise FormatError(
            f"{name}: no schema that Spark writes", kind=ErrorKind.FORMAT_DAMAGED
        ) from e


def _families(
    data: bytes, *, prefix_columns: int, name: str
) -> list[tuple[FamilyText, slice | None]]:
    """Return the column families, and where the schema of each one's values is; None: v1 or v2."""
    reader = _Reader(data, name)
    version = reader.utf()
    if version in ("v1", "v2"):
        text = reader.utf if version == "v1" else reader.chunked
        key, value = text(), text()
        kind = "prefix" if prefix_columns else "point"
        only = FamilyText(
            name="default", key=key, value=value, kind=kind, prefix_columns=prefix_columns
        )
        return [(only, None)]
    if version != "v3":
        raise UnsupportedError(
            f"{name}: state schema {version!r}, this version reads v1 to v3",
            kind=ErrorKind.FORMAT_TOO_NEW,
        )
    return [_family(reader, name) for _ in range(reader.number(">i"))]


def _family(reader: _Reader, name: str) -> tuple[FamilyText, slice]:
    family = reader.utf()
    reader.number(">h")  # the number of the key schema, which cannot change
    key = reader.chunked()
    value_id = reader.number(">h")
    start = reader.at
    value = reader.chunked()
    place = slice(start, reader.at)
    spec_text = reader.chunked()
    reader.chunked()  # the user's key of a map state; `key` has it too
    try:
        spec = json.loads(spec_text)
        kind = _SPECS.get(spec["keyStateEncoderType"])
        columns, ordinals = (
            int(spec.get("numColsPrefixKey", 0)),
            tuple(map(int, spec.get("orderingOrdinals", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FormatError(
            f"{name}: no encoder of keys: {spec_text!r}", kind=ErrorKind.FORMAT_DAMAGED
        ) from e
    if kind is None:
        raise UnsupportedError(
            f"{name}: keys of column family {family!r} are encoded by {spec['keyStateEncoderType']}"
        )
    found = FamilyText(
        name=family,
        key=key,
        value=value,
        kind=kind,
        prefix_columns=columns,
        ordinals=ordinals,
        value_id=value_id,
    )
    return found, place


class _Reader:
    """Reads as Java's DataInputStream does."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._at, self._name = data, 0, name

    @property
    def at(self) -> int:
        """How many bytes are read."""
        return self._at

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if count < 0 or len(taken) != count:
            raise FormatError(f"{self._name}: ends early", kind=ErrorKind.FORMAT_DAMAGED)
        self._at += count
        return taken

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(value)

    def utf(self) -> str:
        return modified_utf8(self._take(self.number(">H")), name=self._name)

    def chunked(self) -> str:
        return "".join(self.utf() for _ in range(self.number(">i")))


def modified_utf8(data: bytes, *, name: str) -> str:
    """Decode Java's modified UTF-8.

    It writes NUL as two bytes, and a character beyond the basic plane as two surrogates.
    """
    try:
        text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as e:
        raise FormatError(f"{name}: no text of Java's", kind=ErrorKind.FORMAT_DAMAGED) from e


def _utf(text: str) -> bytes:
    """Encode as Java's DataOutputStream.writeUTF does."""
    data = b"".join(
        b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass")
        for unit in _utf16(text)
    )
    return struct.pack(">H", len(data)) + data


def _utf16(text: str) -> tuple[int, ...]:
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


def _chunked(text: str) -> bytes:
    """Encode a long text. Each of Spark's chunks has at most 64 KiB, whatever its characters."""
    chunks = [text[i : i + _CHUNK] for i in range(0, len(text), _CHUNK)]
    return struct.pack(">i", len(chunks)) + b"".join(map(_utf, chunks))
