"""Tells what a query did in its last batches, from what the driver kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.query.survey import survey
from millpond.spark.progress import BatchProgress, read_progress
from millpond.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The last batches of a query, by time. A batch that was run again is there for each run.

    `to_json` is the contract of `millpond checkpoint history --json`: fields are added, never
    renamed.
    """

    checkpoint: str
    batches: tuple[BatchProgress, ...]
    problems: tuple[str, ...]  # files that cannot be read whole

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def history(storage: Storage, checkpoint: str, last: int | None = None) -> History:
    """Return the last batches of the query whose Spark checkpoint is in `storage`.

    Args:
        checkpoint: its name, for messages.
        last: the last so many; None: all that are kept.
    Raises: InvalidInputError: INVALID_ARGUMENT; NOT_A_CHECKPOINT. UnsupportedError:
        FOREIGN_CHECKPOINT. UnavailableError: the storage fails.
    """
    if last is not None and last < 1:
        raise InvalidInputError(
            f"the last {last} batches: expected a number from 1 on",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Leave it out for all that are kept.",
        )
    batches, problems = read_progress(storage, last)
    if not batches and not problems:
        survey(storage, checkpoint)  # raises if it is none
    return History(checkpoint=checkpoint, batches=tuple(batches), problems=tuple(problems))
