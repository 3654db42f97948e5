"""Tells that a rescale, or Spark's own repartition, has not ended, and how a user ends it."""

from __future__ import annotations

import shlex

from millpond.errors import (
    ErrorKind,
    FormatError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
    error,
)
from millpond.format import layout
from millpond.format.rescale_journal import Journal, decode_journal
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import Storage


def read_journal(storage: Storage) -> Journal | None:
    """Return the journal of a rescale that runs or was interrupted; None: there is none.

    Raises: FormatError: FORMAT_DAMAGED, UNSAFE_PATH. UnsupportedError. UnavailableError: storage.
    """
    try:
        return decode_journal(storage.read(layout.RESCALE_JOURNAL_KEY))
    except NotFoundError:
        return None


def unfinished_rescale(storage: Storage, checkpoint: str) -> MillpondError | None:
    """Return the error that says that a rescale runs or was interrupted; None: there is none.

    Args:
        checkpoint: name of the Spark checkpoint, for the commands in the hint.
    Raises: UnavailableError: storage.
    """
    try:
        journal = read_journal(storage)
    except (FormatError, UnsupportedError) as e:
        # Half a rescale is there, whether its journal can be read or not.
        found = error(
            ErrorKind.RESCALE_UNFINISHED,
            "a rescale is under way, or was interrupted, and its journal cannot be read:"
            f" {e.message}",
        )
        found.__cause__ = e
        return found
    return rescale_error(journal, checkpoint) if journal is not None else None


def left_by_spark(storage: Storage) -> int | None:
    """Return the batch that Spark's own repartition began and did not end; None: there is none.

    Half a rescale of Millpond's looks alike: this is for a query without a journal.

    Raises: UnavailableError: storage.
    """
    spark = read_spark_metadata(storage, batches=(), operators=(), damaged=[])
    committed = spark.last_committed_batch
    if committed is None or spark.last_batch == committed:
        return None
    both = read_spark_metadata(storage, batches=(committed,), operators=(), damaged=[])
    return both.repartition_left


def repartition_error(batch: int, partitions: int | None, checkpoint: str) -> MillpondError:
    """Return the error that says that Spark's own repartition, to `partitions`, began `batch` and
    did not end it.

    Args:
        checkpoint: name of the Spark checkpoint, for the commands in the hint.
    """
    command = shlex.join(["millpond", "rescale", checkpoint])
    return error(
        ErrorKind.RESCALE_UNFINISHED,
        f"Spark's own repartition began batch {batch} with {partitions} partitions and did not"
        " end it: it refuses Millpond's stores, and no query starts now",
        hint=(
            f"`{command} --partitions {partitions}` takes that batch away and rescales;"
            f" `{command} --undo` only takes it away."
        ),
    )


def rescale_error(journal: Journal, checkpoint: str) -> MillpondError:
    """Return the error that says that this rescale runs or was interrupted."""
    command = shlex.join(["millpond", "rescale", checkpoint])
    return error(
        ErrorKind.RESCALE_UNFINISHED,
        f"a rescale from {journal.current} to {journal.partitions} partitions is under way, or was"
        " interrupted",
        hint=(
            "If it runs, wait for its end. If it was killed, finish it with"
            f" `{command} --partitions {journal.partitions}` and the options that it had, or take"
            f" it back with `{command} --undo`."
        ),
    )
