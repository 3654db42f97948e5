"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from millpond.errors import InvalidInputError


def number(text: str) -> int:
    """Return a whole number that is not negative. Raises: argparse.ArgumentTypeError."""
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
        raise InvalidInputError("--conf wants NAME=VALUE")
    return {name: value for name, _, value in parts}
