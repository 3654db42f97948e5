"""Validation of keys, shared by the storage implementations."""

from __future__ import annotations

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
