"""What users call as `millpond.<name>`: the functions of the commands, on locations instead of open storage."""

from __future__ import annotations

import os

from millpond.rescaling import RescaleReport
from millpond.rescaling import rescale as _rescale
from millpond.storage import open_root


def rescale(
    checkpoint: str | os.PathLike[str],
    partitions: int,
    *,
    max_parallelism: int | None = None,
    dry_run: bool = False,
    skip_uncommitted: bool = False,
    file_sink: str | os.PathLike[str] | None = None,
) -> RescaleReport:
    """Give the state of a stopped query another number of partitions; the next start of the query uses it.

    Args:
        checkpoint: what `checkpointLocation` was set to: a path or a URI.
        partitions: 1 to 65,536. If it divides the max parallelism no row moves, else every row is written anew.
        max_parallelism: number of key groups from now on, a multiple of `partitions`; None: as many as there are, or, if that
            cannot be, the default for `partitions`.
        dry_run: plan everything, write nothing.
        skip_uncommitted: leave out a batch that was begun and not committed; its output may come twice.
        file_sink: the directory that the query writes to by a file format, or `none`; None: as its last start said.
    Raises: MillpondError: as `millpond.rescaling.rescale`.
    """
    storage, root = open_root(checkpoint)
    return _rescale(
        storage,
        root,
        partitions,
        max_parallelism=max_parallelism,
        dry_run=dry_run,
        skip_uncommitted=skip_uncommitted,
        file_sink=file_sink,
    )
