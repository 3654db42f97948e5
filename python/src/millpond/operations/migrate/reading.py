"""Lets the state of Spark's own stores be read before anything is adopted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from millpond.local.scratch import scratch_directory
from millpond.operations.migrate.migrate import Progress, adopt


@contextmanager
def adopted(
    checkpoint: str | os.PathLike[str],
    *,
    batch: int | None = None,
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
) -> Iterator[str]:
    """Yield the path of a temporary copy, with Millpond's state, of a Spark checkpoint whose state
    is in one of Spark's own stores. Whatever reads state reads it there.

        with millpond.adopted("/data/checkpoint") as copy:
            millpond.read_state(copy)

    The copy is on this machine's disk, and is deleted when the block ends. The query may run
    meanwhile: the copy is that of a committed batch.

    Args:
        checkpoint, batch, conf, progress, options: as for `adopt`.
    Raises: as `adopt`; UnavailableError: LOCAL_DISK_FULL.
    """
    with scratch_directory("reading") as directory:
        copy = os.path.join(directory, "checkpoint")
        adopt(
            checkpoint,
            copy,
            batch=batch,
            new_query_id=True,  # a copy to look at: nothing goes on from it
            conf=conf,
            progress=progress,
            options=options,
        )
        yield copy
