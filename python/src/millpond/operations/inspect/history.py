"""Tells what a query did in its last batches, from what the driver kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.operations.notebook import NUMBER, TEXT, TIME, Notebook, Sheet, Table, Value
from millpond.query.survey import survey
from millpond.spark.progress import BatchProgress, read_progress
from millpond.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Notebook):
    """The last batches of a query, by time. A batch that was run again is there for each run. In a
    notebook it shows itself; `to_arrow()` and `to_pandas()` return a row for each batch.

    `to_json` is the contract of `millpond checkpoint history --json`: fields are added, never
    renamed.
    """

    checkpoint: str
    batches: tuple[BatchProgress, ...]
    problems: tuple[str, ...]  # files that cannot be read whole

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _sheet(self) -> Sheet:
        return Sheet(
            title=f"Last batches of {self.checkpoint}",
            facts=(),
            table=Table("batches", _COLUMNS, [_row(batch) for batch in self.batches]),
            problems=self.problems,
            newest=True,
        )


_COLUMNS = (
    ("batch", NUMBER),
    ("began", TIME),
    ("duration_ms", NUMBER),
    ("input_rows", NUMBER),
    ("output_rows", NUMBER),
    ("watermark", TEXT),
    ("state_rows", NUMBER),
    ("updated_rows", NUMBER),
    ("removed_rows", NUMBER),
    ("late_rows", NUMBER),
    ("commit_ms", NUMBER),
    ("memory_bytes", NUMBER),
    ("run_id", TEXT),
)


def _row(batch: BatchProgress) -> tuple[Value, ...]:
    """Return a batch; what operators count is summed up."""
    ops = batch.operators
    return (
        batch.batch,
        batch.at_ms,
        batch.duration_ms,
        batch.input_rows,
        batch.output_rows,
        batch.watermark,
        sum(op.rows for op in ops),
        sum(op.rows_updated for op in ops),
        sum(op.rows_removed for op in ops),
        sum(op.rows_late for op in ops),
        sum(op.commit_ms for op in ops),
        sum(op.memory_bytes for op in ops),
        batch.run_id,
    )


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
