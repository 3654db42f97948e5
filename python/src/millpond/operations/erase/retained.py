"""The retained batches of a query, as an erasure needs them."""

from __future__ import annotations

from dataclasses import replace

from millpond.errors import ErrorKind, MillpondError, UnavailableError
from millpond.query.from_checkpoint import Listed, look
from millpond.query.image import Image
from millpond.query.survey import Survey, survey
from millpond.state.selection import Opened
from millpond.storage import Storage

_NOT_KEPT = (ErrorKind.VERSION_EXPIRED, ErrorKind.BATCH_NOT_COMMITTED)


def retained_images(
    storage: Storage, root: str, wanted: int | str | None, *, erasing: bool
) -> list[Image]:
    """Return the images of the retained batches, ascending: of the newest all, of the others the
    versions of the stores of the operator that is meant.

    Raises: as `query.from_checkpoint.look`, and `Opened.operator`.
    """
    found = survey(storage, root, erasing=erasing)
    images: list[Image] = []
    operator: int | None = None
    listed: Listed = {}
    for batch in reversed(found.spark.kept_batches if found.spark is not None else ()):
        try:
            if not images:
                image = look(storage, found, root, batch, erasing=erasing)
            else:
                image = _look_back(storage, found, root, batch, operator, listed, erasing=erasing)
        except MillpondError as e:
            if e.kind not in _NOT_KEPT:
                raise
            continue
        if not images:
            opened = Opened(storage=storage, place=root, image=image, index=None)
            operator = opened.operator(wanted).operator
        images.append(image)
    if not images:  # none is committed, or the query has gone on, and removed them all
        images.append(look(storage, found, root, erasing=erasing))
    return images[::-1]


def _look_back(
    storage: Storage,
    found: Survey,
    root: str,
    batch: int,
    operator: int | None,
    listed: Listed,
    *,
    erasing: bool,
) -> Image:
    """Return the image of an operator at a batch that is not the newest, without texts and files:
    each batch has a text of every store.

    Raises: as `look`.
    """
    try:
        image = look(storage, found, root, batch, erasing=erasing, operator=operator, listed=listed)
    except UnavailableError:
        raise
    except MillpondError as e:
        if e.kind in _NOT_KEPT:
            raise
        # Beside a dry run a query may go on, and remove what was listed.
        image = look(storage, found, root, batch, erasing=erasing, operator=operator)
    return replace(image, texts={}, files=())
