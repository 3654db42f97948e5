"""The URI of a root: what Hadoop prints for the directory of a Spark checkpoint, parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.format.layout import STATE_DIR

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RootUri:
    """A parsed root."""

    scheme: str  # in lower case; "file" for a plain path
    authority: str
    path: str  # absolute, without a slash at the end


def parse_root(root: str) -> RootUri:
    """Parse the URI of a Spark checkpoint, in the form of Hadoop's `Path`, or a plain path.

    Hadoop neither encodes nor decodes: a space stays a space, and `%20` is three characters of a
    name. This function does the same. If it decoded, it would look at another directory than the
    query writes to.

    Args:
        root: `file:/x`, `file:///x`, `s3a://bucket/x`, or `/x`.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: it is empty, has `..` segments, or is a plain path
            that is not absolute.
    """
    scheme, rest = "file", root
    if (match := _SCHEME.fullmatch(root)) and "/" not in match[1]:
        scheme, rest = match[1].lower(), match[2]
    authority = ""
    if rest.startswith("//") and (match is not None):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path if slash or not authority else "/"
    segments = [part for part in rest.split("/") if part not in ("", ".")]
    if not rest.startswith("/") or ".." in segments or "\0" in rest:
        raise InvalidInputError(
            f"no absolute path or URI of a Spark checkpoint: {root!r}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Write /data/checkpoint, file:/data/checkpoint, or s3://bucket/prefix.",
        )
    return RootUri(scheme, authority, "/" + "/".join(segments))


def local_root(root: str) -> str:
    """Return the local path of a `file:` root.

    Raises:
        UnsupportedError: STORAGE_UNSUPPORTED: another scheme, or another host.
        InvalidInputError: see `parse_root`.
    """
    uri = parse_root(root)
    if uri.scheme != "file" or uri.authority not in ("", "localhost"):
        raise UnsupportedError(
            f"this version does not support Spark checkpoints on {uri.scheme}://{uri.authority}",
            kind=ErrorKind.STORAGE_UNSUPPORTED,
        )
    return uri.path


def checkpoint_of_state(state_root: str) -> str:
    """Return the root of the Spark checkpoint.

    Args:
        state_root: Spark's checkpointRootLocation: `<checkpoint>/state`.
    Raises: InvalidInputError: the last segment is not `state`.
    """
    uri = parse_root(state_root)
    parent, _, last = uri.path.rpartition("/")
    if last != STATE_DIR:
        raise InvalidInputError(f"not Spark's state directory (<checkpoint>/state): {state_root!r}")
    authority = f"//{uri.authority}" if uri.authority else ""
    return f"{uri.scheme}:{authority}{parent or '/'}"
