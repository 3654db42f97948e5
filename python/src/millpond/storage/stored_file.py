"""Opens an object as a file, whether it lies on a local disk or not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from millpond.storage.base import Storage
from millpond.storage.local import translate, translate_restored


@contextmanager
def stored_file(storage: Storage, key: str, *, copy: str | None = None) -> Iterator[BinaryIO]:
    """Open an object, to be read from its beginning to its end.

    Args:
        copy: path of a local file to fetch the object to, if it is on no local disk; None: read it
            into memory.
    Raises: NotFoundError: OBJECT_NOT_FOUND. UnavailableError: the storage or the disk fails.
    """
    path = storage.local_path(key)
    if path is not None:
        storage.stat(key)  # raises Millpond's error if the file cannot be read
        try:
            with open(path, "rb") as file:
                yield file
        except OSError as e:
            raise translate(e, f"reading {key}") from e
        return
    if copy is None:
        yield io.BytesIO(storage.read(key))
        return
    storage.get_to_file(key, copy)
    try:
        with open(copy, "rb") as file:
            yield file
    except OSError as e:
        raise translate_restored(e, f"reading {copy}") from e
