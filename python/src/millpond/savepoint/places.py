"""How Spark writes places."""

from __future__ import annotations

from millpond import layout


def uri_below(root: str, key: str) -> str:
    """Return the URI of `key` below `root`, in the form in which Spark writes it (`file:/x/state/...`)."""
    uri = layout.parse_root(root)
    authority = f"//{uri.authority}" if uri.authority else ""
    return f"{uri.scheme}:{authority}{uri.path.rstrip('/')}/{key}"
