"""Opens an object as a file, whether it lies on a local disk or not.

Here alone it is decided whether an error of the operating system tells of a stored object or of a
copy of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from millpond.local.scratch import scratch_directory
from millpond.storage.base import Storage
from millpond.storage.local import translate, translate_restored


@contextmanager
def stored_path(storage: Storage, key: str, copy: str, *, fetched: bool = False) -> Iterator[str]:
    """Yield the path of a file with an object: the object itself on a local disk, else a copy.

    An OSError of the block is told as one of the storage, or of this machine's own disk, whichever
    is read.

    Args:
        copy: path of the local file to fetch the object to, if it is on no local disk.
        fetched: the copy is there already.
    Raises: NotFoundError: OBJECT_NOT_FOUND. UnavailableError: the storage or the disk fails.
    """
    path = None if fetched else storage.local_path(key)
    if path is not None:
        storage.stat(key)  # raises Millpond's error if the file cannot be read
    elif not fetched:
        storage.get_to_file(key, copy)
    try:
        yield copy if path is None else path
    except OSError as e:
        if path is None:
            raise translate_restored(e, f"reading {copy}, a copy of {key}") from e
        raise translate(e, f"reading {key}") from e


@contextmanager
def stored_file(storage: Storage, key: str, *, copy: str | None = None) -> Iterator[BinaryIO]:
    """Open an object, to be read from its beginning to its end.

    Args:
        copy: as for `stored_path`; None: in a temporary directory of its own.
    Raises: as `stored_path`, and as `scratch_directory`.
    """
    with ExitStack() as stack:
        if copy is None and storage.local_path(key) is None:
            copy = os.path.join(stack.enter_context(scratch_directory("reading")), "copy")
        path = stack.enter_context(stored_path(storage, key, copy or ""))
        yield stack.enter_context(open(path, "rb"))
