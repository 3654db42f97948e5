"""What the driver asks before the first task of a query: can the state be kept at its place?"""

from __future__ import annotations

import logging

from millpond.agent.context import handed_over, request_error
from millpond.config import resolve
from millpond.errors import ErrorKind, error
from millpond.format import layout, roots
from millpond.storage import Storage, is_there, open_storage
from millpond.storage.owner import check_owner
from millpond.storage.place import settle_place
from millpond.storage.prices import parse_prices
from millpond.storage.settings import storage_settings
from millpond.storage.split import SplitStorage
from millpond.storage.steps import probe

log = logging.getLogger(__name__)


def check_start(root: str, options: object, hadoop: object) -> str:
    """Check that the state can be kept where the options say. Records nothing: a query that cannot
    start may be given another place.

    Args:
        root: Spark's checkpointRootLocation, `<checkpoint>/state`.
        options, hadoop: as in the protocol's `store`.
    Returns: URI of the Spark checkpoint, or of the place of its state if that is elsewhere.
    Raises: MillpondError: as `open_checkpoint` and `storage.steps.probe`; STATE_OWNED: the state
        belongs to another Spark checkpoint; CHECKPOINT_UNFINISHED: a command has not made the Spark
        checkpoint to its end.
    """
    if not isinstance(options, dict):
        raise request_error("options is no object")
    resolved = resolve(options)
    parse_prices(str(resolved["storage.prices"]))
    settings = storage_settings(resolved, handed_over(hadoop))
    uri = roots.checkpoint_of_state(root)
    spark = open_storage(uri, settings)
    refuse_unfinished(spark, uri)
    place = settle_place(spark, settings.uri, uri, write=False)
    state = spark if place is None else open_storage(place, settings)
    probe(state)
    if place is not None:
        check_owner(SplitStorage(spark, state), uri)
    by = type(state).__name__
    log.info("storage is usable checkpoint=%s state=%s by=%s", uri, place or uri, by)
    return place or uri


def refuse_unfinished(spark: Storage, uri: str) -> None:
    """Raise ConflictError (CHECKPOINT_UNFINISHED) if a command has not made the Spark checkpoint in
    `spark` to its end.

    Without Spark's logs a query begins at batch 0. Spark has written `metadata` by now, so only the
    claim tells.
    """
    if is_there(spark, layout.CLAIM_KEY):
        raise error(
            ErrorKind.CHECKPOINT_UNFINISHED, f"{uri} is being made by a command, or one has died"
        )
