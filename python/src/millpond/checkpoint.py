"""Spark checkpoints seen from outside: no JVM, no query, and nothing is changed.

    from millpond import checkpoint
    checkpoint.show("/data/checkpoint").last_committed_batch
    checkpoint.verify("/data/checkpoint").ok

The command `millpond checkpoint` calls the same functions, and prints what they return.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from millpond.config import resolve
from millpond.operations import inspect
from millpond.operations.inspect import Overview, Problem, VerifyReport
from millpond.operations.inspect.cost import StoreCost, tariff_for
from millpond.operations.inspect.history import History
from millpond.operations.inspect.history import history as _history
from millpond.operations.inspect.overview import OperatorView, SnapshotView, StoreView
from millpond.operations.inspect.skew import Load, OperatorSkew, SkewReport
from millpond.operations.inspect.skew import skew as _skew
from millpond.operations.inspect.store_check import Checked
from millpond.spark.progress import BatchProgress, OperatorProgress, StoreMove
from millpond.storage import open_root
from millpond.storage.given import given, takes_options

__all__ = [
    "BatchProgress",
    "Checked",
    "History",
    "Load",
    "OperatorProgress",
    "OperatorSkew",
    "OperatorView",
    "Overview",
    "Problem",
    "SkewReport",
    "SnapshotView",
    "StoreCost",
    "StoreMove",
    "StoreView",
    "VerifyReport",
    "history",
    "show",
    "skew",
    "verify",
]


@takes_options
def show(
    checkpoint: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    options: Mapping[str, object] | None = None,
) -> Overview:
    """Return batches, operators, partitions, versions, snapshots, sizes and key groups.

    Reads listings, manifests and one changelog header a store. A query may run meanwhile. A file
    that cannot be read is named in `problems`, and raises nothing.

    Args:
        checkpoint: what `checkpointLocation` was set to: a path or a URI.
        operator: show this one alone, by number or name; None: all.
        options: options of the storage by name, `{"storage.s3.endpoint": "http://host:9000"}`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, OPERATOR_UNKNOWN, UNKNOWN_OPTION, INVALID_OPTION.
        UnsupportedError: FOREIGN_CHECKPOINT. UnavailableError: the storage fails.
    """
    storage, root = open_root(checkpoint)
    tariff = tariff_for(storage, resolve(given().options))
    found = inspect.overview(storage, root, tariff)
    return found if operator is None else found.of(operator)


@takes_options
def verify(
    checkpoint: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Read everything back, and list all that is wrong with it. A query may run meanwhile.

    Needs space on the local disk where SSTs cannot be linked: that of one store at a time.

    Args:
        checkpoint, options: as for `show`.
        progress: called after each store with the stores that are read and the stores in all.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, UNKNOWN_OPTION, INVALID_OPTION.
        UnsupportedError: FOREIGN_CHECKPOINT; UNSUPPORTED: rocksdict is not installed.
        UnavailableError: the storage or the local disk fails.
    """
    storage, root = open_root(checkpoint)
    return inspect.verify(storage, root, progress)


@takes_options
def skew(
    checkpoint: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> SkewReport:
    """Read all rows, and count keys and bytes of partitions and key groups.

    Args:
        checkpoint, options: as for `show`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, UNKNOWN_OPTION, INVALID_OPTION.
        NotFoundError: BATCH_NOT_COMMITTED. FormatError: a file is damaged.
        UnsupportedError: FOREIGN_CHECKPOINT. UnavailableError: the storage fails.
    """
    storage, root = open_root(checkpoint)
    return _skew(storage, root)


@takes_options
def history(
    checkpoint: str | os.PathLike[str],
    *,
    last: int | None = None,
    options: Mapping[str, object] | None = None,
) -> History:
    """Return what the query did in its last batches: rows, times, state. It may run meanwhile.

    The driver of a query keeps about the last thousand batches (option `history.batches`), and
    writes them a second after they end.

    Args:
        last: the last so many batches; None: all that are kept.
        checkpoint, options: as for `show`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, INVALID_ARGUMENT, UNKNOWN_OPTION, INVALID_OPTION.
        UnsupportedError: FOREIGN_CHECKPOINT. UnavailableError: the storage fails.
    """
    storage, root = open_root(checkpoint)
    return _history(storage, root, last)
