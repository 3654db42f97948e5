"""What a user types for a place: a URI, or a path relative to the working directory."""

from __future__ import annotations

import os

from millpond import layout


def absolute(location: str | os.PathLike[str]) -> str:
    """Return `location` as an absolute path or a URI. Raises: InvalidInputError: INVALID_ARGUMENT: neither."""
    text = os.fspath(location)
    root = text if ":" in text.partition("/")[0] else os.path.abspath(text)
    layout.parse_root(root)
    return root


def uri_below(root: str, key: str) -> str:
    """Return the URI of `key` below `root`, in the form in which Spark writes it (`file:/x/state/...`)."""
    uri = layout.parse_root(root)
    authority = f"//{uri.authority}" if uri.authority else ""
    return f"{uri.scheme}:{authority}{uri.path.rstrip('/')}/{key}"
