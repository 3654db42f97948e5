"""The folder in which a rescale makes its files, beside the state."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from millpond.format import layout
from millpond.local.scratch import make_locked, remove_abandoned, scratch_directory
from millpond.storage import LocalStorage, Storage
from millpond.storage.local import translate

_STAGING = ".rescale-"


def remove_leftovers(storage: Storage) -> None:
    """Remove the folders of earlier rescales that were killed."""
    if isinstance(storage, LocalStorage):
        parent = os.path.join(storage.root, layout.MILLPOND_DIR)
        if os.path.isdir(parent):
            remove_abandoned(parent, _STAGING)


@contextmanager
def staging(storage: Storage) -> Iterator[str]:
    """Yield a folder to write to.

    If the state is on a local disk, the folder is there too: its files become part of the state
    without a copy.
    """
    if not isinstance(storage, LocalStorage):
        with scratch_directory("rescale") as directory:
            yield directory
        return
    parent = os.path.join(storage.root, layout.MILLPOND_DIR)
    try:
        directory, locked = make_locked(lambda: tempfile.mkdtemp(prefix=_STAGING, dir=parent))
    except OSError as e:
        raise translate(e, f"writing to {storage.root}") from e
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # the next rehash removes what is left
        os.close(locked)
