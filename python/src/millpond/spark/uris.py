"""How Spark writes the URI of a file."""

from __future__ import annotations

from millpond.format import roots


def uri_below(root: str, key: str) -> str:
    """Return the URI of `key` below `root` in Spark's form: `file:/x/state/...`."""
    uri = roots.parse_root(root)
    authority = f"//{uri.authority}" if uri.authority else ""
    return f"{uri.scheme}:{authority}{uri.path.rstrip('/')}/{key}"
