"""How Spark writes the URI of a file."""

from __future__ import annotations

from millpond.format import roots

# Millpond's own client takes both. To Hadoop `s3:` is a scheme that it does not know.
_SCHEMES = {"s3": "s3a"}


def uri_below(root: str, key: str) -> str:
    """Return the URI of `key` below `root` in Spark's form: `file:/x/state/...`, `s3a://b/x/...`,
    also where `root` says `s3:`.
    """
    uri = roots.parse_root(root)
    scheme = _SCHEMES.get(uri.scheme, uri.scheme)
    authority = f"//{uri.authority}" if uri.authority else ""
    return f"{scheme}:{authority}{uri.path.rstrip('/')}/{key}"
