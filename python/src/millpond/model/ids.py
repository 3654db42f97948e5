"""Names of stores and of versions. No I/O."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError

DEFAULT_STORE = "default"

_ID = re.compile(r"[0-9a-f]{16}")
# Spark's names of stores: "default", "left-keyToNumValues", ... Each is one path segment. None can
# be mistaken for another file.
_STORE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,127}")


def new_id() -> str:
    """Return a fresh id for one attempt to write a version: 16 lower-case hex digits.

    All 64 bits are random: the cut leaves out the fixed bits of the UUID.
    """
    return uuid.uuid4().hex[:8] + uuid.uuid4().hex[-8:]


def valid_id(text: str) -> bool:
    """Return whether `text` is 16 lower-case hex digits."""
    return _ID.fullmatch(text) is not None


def valid_store_name(text: str) -> bool:
    """Return whether `text` can name a store: one safe path segment, neither `sst` nor a number."""
    return _STORE_NAME.fullmatch(text) is not None and text != "sst" and not text.isdigit()


@dataclass(frozen=True, slots=True, order=True)
class StoreId:
    """One state store of a query: operator, partition, store name.

    Raises: InvalidInputError: a number is negative, or the name is no safe path segment.
    """

    operator: int
    partition: int
    name: str = DEFAULT_STORE

    def __post_init__(self) -> None:
        if self.operator < 0 or self.partition < 0 or not valid_store_name(self.name):
            raise InvalidInputError(
                f"no store id: operator {self.operator}, partition {self.partition}, name"
                f" {self.name!r}",
                kind=ErrorKind.INVALID_ARGUMENT,
            )

    def __str__(self) -> str:
        return f"{self.operator}/{self.partition}" + (
            "" if self.name == DEFAULT_STORE else f"/{self.name}"
        )


@dataclass(frozen=True, slots=True, order=True)
class VersionId:
    """A version of a store, and the id of the attempt that wrote it.

    The id is "" for version 0, and where nobody knows it.

    Raises: InvalidInputError: the version is negative, the id is neither empty nor 16 hex digits,
        or version 0 has an id.
    """

    version: int
    id: str = ""

    def __post_init__(self) -> None:
        if (
            self.version < 0
            or (self.id != "" and not valid_id(self.id))
            or (self.version == 0 and self.id != "")
        ):
            raise InvalidInputError(
                f"no version id: version {self.version}, id {self.id!r}",
                kind=ErrorKind.INVALID_ARGUMENT,
            )

    def __str__(self) -> str:
        return f"{self.version}_{self.id}" if self.id else str(self.version)
