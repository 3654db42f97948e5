"""Checks a user's offsets for the sources of a query, and puts them in the form of Spark's log.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from millpond.errors import ErrorKind, InvalidInputError


def offset_texts(offsets: Mapping[int, object] | Mapping[str, object]) -> dict[int, str]:
    """Return the offsets as lines of JSON, by number of the source, from 0.

    Args:
        offsets: by number of the source, an int or its text. Each offset is JSON text, or its
            parsed value, such as `{"topic": {"0": 23}}`.
    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    if not isinstance(offsets, Mapping):
        raise _invalid("offsets are a mapping of the number of a source, from 0, to its offset")
    texts: dict[int, str] = {}
    for key, offset in offsets.items():
        number = _number(key)
        if number in texts:
            raise _invalid(f"offsets name source {number} twice")
        texts[number] = _text(number, offset)
    return texts


def check_offsets(offsets: Mapping[int, str], sources: int, of_files: Sequence[bool]) -> None:
    """Raise InvalidInputError (INVALID_ARGUMENT) if a source does not exist or takes no offset.

    Args:
        offsets: by number of the source.
        sources: how many sources the query has.
        of_files: whether the source reads files, for each of `offsets`, in their order.
    """
    for number, files in zip(offsets, of_files, strict=True):
        if number >= sources:
            there = (
                "none"
                if not sources
                else "number 0 only"
                if sources == 1
                else f"numbers 0 to {sources - 1}"
            )
            raise _invalid(f"there is no source {number}; the query has {there}")
        if files:
            raise InvalidInputError(
                f"source {number} reads files and keeps a log of them: an offset says nothing"
                " about that log",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint=(
                    "Let it begin as in a new query, over a directory that holds only what is still"
                    " to be read."
                ),
            )


def _number(key: object) -> int:
    if isinstance(key, str) and key.isdecimal() and key.isascii():
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return key
    raise _invalid(
        f"{key!r} is no number of a source: they are numbered from 0, in the order of the"
        " offset log"
    )


def _text(number: int, offset: object) -> str:
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as e:
        raise _invalid(f"the offset of source {number} is no JSON: {e}") from e
    if value is None:
        raise _invalid(
            f"the offset of source {number} is null: leave the source out, and it begins as in a"
            " new query"
        )
    return text


def _invalid(message: str) -> InvalidInputError:
    return InvalidInputError(
        message,
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Give each source its offset by number, from 0, as the plan of the job counts them.",
    )
