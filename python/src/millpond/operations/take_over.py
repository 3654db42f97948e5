"""`take_over`: gives the state at storage.uri to another Spark checkpoint.

That one was moved, or it is a copy whose original is given up.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, MillpondError, error
from millpond.format import layout, spark_names
from millpond.spark.heartbeats import refuse_running
from millpond.storage import Storage, is_there, open_storage, root_of
from millpond.storage.owner import owner_record, read_owner
from millpond.storage.place import read_place
from millpond.storage.same_place import is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverReport:
    """What `take_over` did. `to_json` is the contract of `millpond storage take-over --json`."""

    checkpoint: str
    state: str  # where the state is
    before: str | None  # the Spark checkpoint that had it; None: no record named one

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def take_over(
    checkpoint: str | os.PathLike[str],
    *,
    even_if_there: bool = False,
) -> TakeOverReport:
    """Record that the state at storage.uri belongs to this Spark checkpoint. Millpond refuses the
    old owner from its next start on.

    Args:
        checkpoint: path or URI of the Spark checkpoint that gets the state.
        even_if_there: give up the old owner although it is still there, or cannot be read from
            here.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT; INVALID_ARGUMENT: its state is in itself; STATE_OWNED:
            the old owner is still there.
        ConflictError: QUERY_RUNNING, COMMAND_RUNNING: on one of the two. UnavailableError: storage.
    """
    root = root_of(checkpoint)
    spark = open_storage(root)
    if not is_there(spark, spark_names.QUERY_METADATA_KEY):
        raise error(
            ErrorKind.NOT_A_CHECKPOINT,
            f"{root} has no {spark_names.QUERY_METADATA_KEY}: it is no Spark checkpoint",
        )
    place = read_place(spark)
    if place is None:
        raise InvalidInputError(
            f"{root} keeps its state in itself: there is nothing to take over",
            hint="The query can be started with it as it is.",
        )
    refuse_running(spark, root)
    state = open_storage(place)
    before, old = read_owner(state), None
    if before is not None and not is_same(before, root):
        old = _given_up(before, even_if_there)
    state.put_bytes(layout.OWNER_KEY, owner_record(root))
    if before is not None and old is not None:
        # What begins there later meets the record. What began before has a heartbeat by now.
        try:
            refuse_running(old, before)
        except BaseException:
            state.put_bytes(layout.OWNER_KEY, owner_record(before))
            raise
    return TakeOverReport(checkpoint=root, state=place, before=before)


def _given_up(owner: str, even_if_there: bool) -> Storage | None:
    """Return the storage of the Spark checkpoint `owner`, which may lose its state; None: it is not
    there, or cannot be looked at. Raise if it may not.
    """
    try:
        spark = open_storage(owner)
        there = is_there(spark, spark_names.QUERY_METADATA_KEY)
    except MillpondError as e:
        if even_if_there:
            return None
        raise error(
            ErrorKind.STATE_OWNED,
            f"the state is that of {owner}, which cannot be looked at from here: {e.message}",
            hint="If no query runs on it, and none will, add --even-if-there.",
        ) from e
    if not there:
        return None
    refuse_running(spark, owner)
    if not even_if_there:
        raise error(
            ErrorKind.STATE_OWNED,
            f"the state is that of {owner}, which is still there",
            hint=(
                "For a copy beside it: `millpond fork <checkpoint> <new checkpoint>`. To"
                " give the old one up, so that no query can start with it again: add"
                " --even-if-there."
            ),
        )
    return spark
