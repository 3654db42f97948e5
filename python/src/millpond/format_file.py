"""`millpond/format.json`: what a Spark checkpoint was born with. Source: docs/reference/format.md."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError
from millpond.keygroups import KeyGroups
from millpond.sealed import seal, unseal

KIND = "format"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """Key groups of a Spark checkpoint, fixed for its life."""

    max_parallelism: int
    base: int
    created_by: str
    created_ms: int  # since the epoch

    @property
    def key_groups(self) -> KeyGroups:
        return KeyGroups(self.max_parallelism, self.base)


def encode_format(value: CheckpointFormat) -> bytes:
    """Return the bytes of the file."""
    body = {
        "max_parallelism": value.max_parallelism,
        "base": value.base,
        "required_features": [],
        "created_by": value.created_by,
        "created_ms": value.created_ms,
    }
    return seal(KIND, body)


def decode_format(data: bytes, *, name: str = "millpond/format.json") -> CheckpointFormat:
    """Return what the file holds.

    Raises:
        FormatError: FORMAT_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    fields = unseal(KIND, data, name=name, damaged=ErrorKind.FORMAT_DAMAGED)
    value = CheckpointFormat(
        max_parallelism=fields.integer("max_parallelism", 1, 65_536),
        base=fields.integer("base", 1, 65_536),
        created_by=fields.string("created_by"),
        created_ms=fields.integer("created_ms"),
    )
    try:
        KeyGroups(value.max_parallelism, value.base)
    except InvalidInputError as e:
        raise fields.fail(str(e)) from e
    return value
