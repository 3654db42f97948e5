"""Opens a state for look-ups of single keys, without a look at the files of stores that nobody asks
for. Works without Arrow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
)
from millpond.query.erasing import read_erasures
from millpond.query.glance import glance, savepoint_glance
from millpond.state.selection import Opened, index_of, opened_in
from millpond.storage import Storage, open_checkpoint, root_of


def open_for_lookups(
    path: str | os.PathLike[str], batch: int | None, operator: int | str | None
) -> Opened:
    """Open the Spark checkpoint or savepoint at `path`.

    If anything is unusual, this looks at the whole query, as `selection.open_state` does.

    Args:
        batch: a committed one; None: the last.
        operator: the one that is wanted; None: there is only one.
    Raises: as `selection.select`.
    """
    place = root_of(path)
    storage = open_checkpoint(place)
    index = index_of(storage, place)
    erasures = None
    text = str(operator)
    number = int(text) if text.isdecimal() else None
    try:
        if index is None:
            image, erasures = glance(storage, batch, number)
        elif batch in (None, index.image.batch) and storage.local_path("state") is None:
            image = savepoint_glance(storage, index, number)
        else:
            return opened_in(storage, place, batch)  # it refuses symbolic links
    except UnavailableError:
        raise
    except MillpondError:
        if index is None:
            erasures = read_erasures(storage)
        return replace(opened_in(storage, place, batch), erasures=erasures)
    return Opened(
        storage=storage, place=place, image=image, index=index, glanced=True, erasures=erasures
    )


@contextmanager
def telling_more(opened: Opened) -> Iterator[None]:
    """If the state was only glanced at, errors about stored files become those of a look at the
    whole query: they tell what is wrong, and what is still whole.
    """
    if not opened.glanced:
        yield
        return
    with looking_again(opened.storage, opened.place, opened.image.batch):
        yield


@contextmanager
def looking_again(storage: Storage, place: str, batch: int) -> Iterator[None]:
    """Let errors about stored files become those of a look at the whole state after a batch."""
    try:
        yield
    except (FormatError, NotFoundError, InvalidInputError) as e:
        if e.kind is not ErrorKind.INVALID_ARGUMENT:
            opened_in(storage, place, batch)
        raise
