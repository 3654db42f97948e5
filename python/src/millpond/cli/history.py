"""`millpond checkpoint history`."""

from __future__ import annotations

import argparse

from millpond import checkpoint as checkpoints
from millpond.cli.output import Output, bytes_text
from millpond.operations.notebook import time_text
from millpond.spark.progress import BatchProgress

_HEAD = (
    *("batch", "began", "ms", "rows in", "state rows", "updated", "removed", "late"),
    *("commit ms", "snapshots", "moved", "memory"),
)


def history_command(arguments: argparse.Namespace, output: Output) -> int:
    """Print what the last batches did. Exit code 1 if a file could not be read whole."""
    found = checkpoints.history(arguments.checkpoint, last=arguments.last)
    if arguments.json:
        output.json(found.to_json())
    elif found.batches:
        right = (0, *range(2, len(_HEAD)))
        output.table(_HEAD, (_row(batch) for batch in found.batches), right=right)
    else:
        output.message("no batch is kept: none has ended yet, or history.batches is 0")
    for problem in found.problems:
        output.message(problem)
    return 1 if found.problems else 0


def _row(batch: BatchProgress) -> tuple[str, ...]:
    ops = batch.operators
    return (
        str(batch.batch),
        time_text(batch.at_ms),
        f"{batch.duration_ms:,}",
        f"{batch.input_rows:,}",
        *(
            f"{sum(counts):,}"
            for counts in (
                [op.rows for op in ops],
                [op.rows_updated for op in ops],
                [op.rows_removed for op in ops],
                [op.rows_late for op in ops],
                [op.commit_ms for op in ops],
                [op.metrics.get("millpondSnapshotCount", 0) for op in ops],
            )
        ),
        str(len(batch.moves)),
        bytes_text(sum(op.memory_bytes for op in ops)),
    )
