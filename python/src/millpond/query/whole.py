"""Says how much of a damaged query is whole: its newest whole batch, and the command that goes back
to it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from millpond.errors import ErrorKind, MillpondError, UnavailableError
from millpond.query.from_checkpoint import Plans, look, look_with_plans
from millpond.query.image import Image
from millpond.query.survey import survey
from millpond.storage import Storage

_DAMAGE = {
    ErrorKind.FORMAT_DAMAGED,
    ErrorKind.CHANGELOG_MISSING,
    ErrorKind.CHANGELOG_DAMAGED,
    ErrorKind.MANIFEST_DAMAGED,
    ErrorKind.SST_MISSING,
    ErrorKind.SST_DAMAGED,
    ErrorKind.OBJECT_NOT_FOUND,
    ErrorKind.PARTITIONS_CHANGED,
    ErrorKind.UNSAFE_PATH,
}
UNFINISHED = {
    ErrorKind.RESCALE_UNFINISHED,
    ErrorKind.ERASE_UNFINISHED,
    ErrorKind.CHECKPOINT_UNFINISHED,
}
"""A command is half way. Nobody can tell what is whole before it has ended."""
_MOST_BATCHES = 100  # Spark keeps this many entries of its logs


def checkpoint_image(storage: Storage, checkpoint: str, batch: int | None = None) -> Image:
    """Return the image of the query in `storage`, as `look` does.

    Errors about damage tell what is still whole.
    """
    with telling_what_is_left(storage, checkpoint, batch):
        return look(storage, survey(storage, checkpoint), checkpoint, batch)


def check_whole(storage: Storage, checkpoint: str) -> tuple[Image | None, Plans]:
    """Check that nothing is lost that the state after the last committed batch needs.

    Returns: its image and the restore plan of each store; (None, {}) if no batch is committed.
    Raises: as `checkpoint_image`.
    """
    found = survey(storage, checkpoint)
    if found.spark is not None and (found.spark.commit_batches or found.lost):
        with telling_what_is_left(storage, checkpoint, None):
            return look_with_plans(storage, found, checkpoint)
    return None, {}


def newest_whole_batch(
    storage: Storage, checkpoint: str, damaged: Collection[str] = ()
) -> int | None:
    """Return the newest committed batch that has all of its files; None: no batch has.

    Args:
        damaged: keys of files that are known to be damaged.
    Raises: UnavailableError: the storage does not answer.
    """
    try:
        found = survey(storage, checkpoint)
    except UnavailableError:
        raise
    except MillpondError:
        return None
    batches = found.spark.kept_batches if found.spark is not None else ()
    for batch in batches[: -_MOST_BATCHES - 1 : -1]:
        try:
            image = look(storage, found, checkpoint, batch)
        except UnavailableError:
            raise
        except MillpondError:
            continue
        if not {*image.texts, *(file.source for file in image.files)} & set(damaged):
            return batch
    return None


def what_is_left(checkpoint: str, batch: int | None) -> str:
    """Return a sentence that names the newest whole batch, and the command that goes back to it.

    Args:
        batch: the newest whole batch; None: there is none.
    """
    if batch is None:
        return (
            "No committed batch is whole: bring back from a copy what is lost, or start from a"
            " savepoint."
        )
    command = f"millpond fork {shlex.quote(checkpoint)} <new checkpoint> --batch {batch}"
    return f"Batch {batch} is the newest that is whole, and `{command}` goes back to it."


@contextmanager
def telling_what_is_left(storage: Storage, checkpoint: str, batch: int | None) -> Iterator[None]:
    """Make errors about damage name the batch, and tell what is still whole.

    Args:
        batch: the one that the caller wants; None: the last.
    """
    try:
        yield
    except MillpondError as e:
        if e.kind not in _DAMAGE:
            raise
        which = "the last committed batch" if batch is None else f"batch {batch}"
        hint = f"{what_is_left(checkpoint, newest_whole_batch(storage, checkpoint))} {e.hint}"
        raise type(e)(
            f"{checkpoint}: {which} cannot be had: {e.message}", kind=e.kind, hint=hint
        ) from e
