"""Finds the Spark checkpoints and savepoints that the pages show."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from millpond.errors import ErrorKind, InvalidInputError, MillpondError
from millpond.format import layout, spark_names
from millpond.storage import LocalStorage, open_storage, root_of
from millpond.storage.local import translate

_DEPTH = 2  # folders below a given one


@dataclass(frozen=True, slots=True)
class Place:
    """A Spark checkpoint or a savepoint.

    problem, code, hint: why a path that was given cannot be shown, and what helps.
    """

    id: str  # of the path; pages name places by it, never by path
    path: str
    kind: Literal["query", "savepoint", "unreadable"]
    problem: str = ""
    code: str = ""
    hint: str = ""


def find_places(paths: Iterable[str | os.PathLike[str]]) -> list[Place]:
    """Return what is at the paths, and in directories up to two levels below them, by path.

    A path with nothing, or one that may not be listed, is there as unreadable, with the reason. On
    an object storage all keys below a directory are listed.
    """
    found: dict[str, Place] = {}
    for path in paths:
        try:
            root = root_of(path)
            below = list(_below(root))
            if not below:
                raise InvalidInputError(
                    "neither a Spark checkpoint nor a savepoint is here, nor two levels below",
                    hint="Give a checkpointLocation, a savepoint, or a directory of them.",
                )
        except MillpondError as e:
            below = [_unreadable(str(path), e)]
        found.update((place.path, place) for place in below)
    return [found[path] for path in sorted(found)]


def _place(path: str, kind: Literal["query", "savepoint", "unreadable"]) -> Place:
    name = path.encode("utf-8", "surrogateescape")  # its bytes need not be text
    return Place(hashlib.sha256(name).hexdigest()[:12], path, kind)


def _unreadable(path: str, e: MillpondError) -> Place:
    place = _place(path, "unreadable")
    return replace(place, problem=e.message, code=e.kind.value, hint=e.hint)


def _below(root: str) -> Iterator[Place]:
    storage = open_storage(root)
    if isinstance(storage, LocalStorage):
        if not os.path.isdir(storage.root):
            raise InvalidInputError(
                "no such directory",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Give a checkpointLocation, a savepoint, or a directory of them.",
            )
        try:
            yield from _in_folder(storage.root, _DEPTH)
        except OSError as e:
            raise translate(e, f"listing {storage.root}") from e
        return
    kinds: dict[str, Literal["query", "savepoint"]] = {}
    for info in storage.list(""):
        parts = info.key.split("/")
        for depth in range(min(_DEPTH, len(parts) - 1) + 1):
            kind = _kind("/".join(parts[depth:]))
            if kind is not None:
                folder = "/".join(parts[:depth])
                kinds[folder] = "savepoint" if "savepoint" in (kind, kinds.get(folder)) else kind
    for folder, kind in sorted(kinds.items()):
        if not any(folder != other and _is_within(folder, other) for other in kinds):
            yield _place(f"{root.rstrip('/')}/{folder}".rstrip("/"), kind)


def _kind(key: str) -> Literal["query", "savepoint"] | None:
    if key == layout.SAVEPOINT_KEY:
        return "savepoint"
    folder, _, name = key.rpartition("/")
    is_log = folder in (spark_names.OFFSETS_DIR, spark_names.COMMITS_DIR)
    return "query" if is_log and spark_names.parse_batch(name) is not None else None


def _is_within(folder: str, other: str) -> bool:
    return other == "" or folder.startswith(other + "/")


def _in_folder(folder: str, depth: int) -> Iterator[Place]:
    """Yield what is in a folder. Raises: OSError: the folder itself cannot be listed."""
    if os.path.isfile(os.path.join(folder, layout.SAVEPOINT_KEY)):
        yield _place(folder, "savepoint")
    elif os.path.isdir(os.path.join(folder, spark_names.OFFSETS_DIR)):
        yield _place(folder, "query")
    elif depth:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
        for name in names:
            with suppress(OSError):  # somebody else's, as in /tmp; or it has just been deleted
                yield from _in_folder(os.path.join(folder, name), depth - 1)
