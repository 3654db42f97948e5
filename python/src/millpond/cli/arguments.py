"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse


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
