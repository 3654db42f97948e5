"""Validation of arguments, shared by the storage implementations."""

from __future__ import annotations

import os

from millpond.errors import ErrorKind, FormatError, InvalidInputError
from millpond.format.layout import check_relative


def check_key(key: str) -> str:
    """Return `key` if it is a plain relative path. Raises: InvalidInputError: INVALID_ARGUMENT."""
    try:
        return check_relative(key)
    except FormatError as e:
        # Paths from manifests obey the same rule. Here the caller is wrong, not a stored file.
        raise InvalidInputError(f"not a key: {key!r}", kind=ErrorKind.INVALID_ARGUMENT) from e


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it is empty or begins like a key, with or without a slash at the end."""
    if prefix:
        check_key(prefix[:-1] if prefix.endswith("/") else prefix)
    return prefix


def check_range(key: str, start: int, length: int) -> None:
    """Raise InvalidInputError if a range of bytes begins or ends before the object."""
    if start < 0 or length < 0:
        raise InvalidInputError(f"negative range [{start}, +{length}) of {key}")


def check_is_file(local_path: str) -> None:
    """Raise `no_file` if there is no regular file at `local_path`."""
    if not os.path.isfile(local_path):
        raise no_file(local_path)


def no_file(local_path: str) -> InvalidInputError:
    """Return the error of a put for which there is no local file."""
    return InvalidInputError(f"no file to store at {local_path}", kind=ErrorKind.INVALID_ARGUMENT)
