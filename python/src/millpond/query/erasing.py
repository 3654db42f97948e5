"""Notices an erasure of a key that comes, or comes and goes, while state is read or copied. Some
files of before it, and others of after it, may have rows that the query had deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

from millpond.errors import ErrorKind, MillpondError, UnavailableError, error
from millpond.format import layout
from millpond.format.format_file import decode_format
from millpond.storage import Storage, open_checkpoint, read_if_there, root_of
from millpond.store.collection.announcements import erasures

_Read = TypeVar("_Read", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Erasures:
    """The erasures of a Spark checkpoint that have begun so far.

    announced: stays for a day. journal: of one that works, or was killed.
    """

    announced: frozenset[str]
    journal: bytes | None


def read_erasures(storage: Storage) -> Erasures:
    """Return the erasures so far. To be called before the image of the query is looked at.

    An erasure writes its journal, then the announcement, then the mark.
    """
    return Erasures(erasures(storage), read_if_there(storage, layout.ERASE_JOURNAL_KEY))


def refuse_erased(
    storage: Storage, root: str, before: Erasures, *, announced: bool = False
) -> None:
    """Raise ConflictError (ERASE_UNFINISHED) if a key was, or is being, erased since `before`.

    Args:
        announced: `root` is a Spark checkpoint, no savepoint: what erases there announces itself.
            Then mostly one request tells that nothing has.
    """
    if announced and before.journal is None and erasures(storage) == before.announced:
        return
    text = read_if_there(storage, layout.FORMAT_KEY)
    if text is not None:
        decode_format(text)  # raises if it has the mark
    now = read_erasures(storage)
    if now.announced - before.announced or now.journal != before.journal:
        raise error(
            ErrorKind.ERASE_UNFINISHED,
            f"{root}: a key was erased meanwhile",
            hint="Nothing was made of it. Run this command again.",
        )


@contextmanager
def unerased(
    storage: Storage, root: str, before: Erasures, *, announced: bool = False
) -> Iterator[None]:
    """Raise ConflictError (ERASE_UNFINISHED) at the end of the block if a key was, or is being,
    erased since `before`: what it read may be a mixture, and what failed in it may be whole.

    Args:
        announced: as for `refuse_erased`.
    """
    try:
        yield
    except UnavailableError:
        raise
    except MillpondError:
        refuse_erased(storage, root, before, announced=announced)
        raise
    refuse_erased(storage, root, before, announced=announced)


@contextmanager
def whole(storage: Storage, root: str) -> Iterator[None]:
    """Let a block that reads the state in `storage` be `unerased` from its beginning on."""
    with unerased(storage, root, read_erasures(storage)):
        yield


def whole_read(read: _Read) -> _Read:
    """Let a function that reads the state at a path do so in a block of `whole`.

    Args:
        read: its first argument is the path, of that name.
    """

    @wraps(read)
    def checked(path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        root = root_of(path)
        with whole(open_checkpoint(root), root):
            return read(path, *args, **kwargs)

    return cast(_Read, checked)
