"""Which URIs lead to one place. Whoever compares two places asks here.

A user may write the same place in several ways, and so may two sessions of one query: with another
scheme for the same storage, by a symbolic link, or with a port that is the usual one anyway.
"""

from __future__ import annotations

import os

from millpond.format.roots import local_root, parse_root

# Several connectors, or the same one with and without TLS, and one place.
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
_USUAL_PORTS = {"hdfs": ":8020"}


def canonical(root: str) -> str:
    """Return the URI of a place in its one canonical form, which looks at no storage.

    Raises: InvalidInputError: no absolute path or URI.
    """
    uri = parse_root(root)
    scheme = _SAME_SCHEMES.get(uri.scheme, uri.scheme)
    host = uri.authority.removesuffix(_USUAL_PORTS.get(scheme, ""))
    authority = f"//{host}" if host and scheme != "file" else ""
    return f"{scheme}:{authority}{uri.path}"


def real_root(root: str) -> str:
    """Return `root` with its symbolic links resolved, if it is on a file system.

    Two names may lead to one directory. This returns the same name for both.

    Raises: as `local_root`.
    """
    return os.path.realpath(local_root(root)) if parse_root(root).scheme == "file" else root


def one_name(root: str) -> str:
    """Return the same name for all URIs of a place: its canonical form, with symbolic links
    resolved.

    Raises: InvalidInputError: no absolute path or URI.
    """
    name = canonical(root)
    return f"file:{os.path.realpath(_path(name))}" if _is_local(name) else name


def is_same(one: str, other: str) -> bool:
    """Return whether two URIs lead to one place. There need be nothing yet.

    Raises: InvalidInputError: one is no absolute path or URI.
    """
    one, other = one_name(one), one_name(other)
    if one == other:
        return True
    if not (_is_local(one) and _is_local(other)):
        return False
    try:
        return os.path.samefile(_path(one), _path(other))  # it may be mounted twice
    except OSError:
        return False  # one of them is not there, or not on this host


def _is_local(name: str) -> bool:
    return name.startswith("file:")


def _path(name: str) -> str:
    return name.removeprefix("file:")
