"""What users call as `millpond.<name>`: one function for each command that has no group.

    import millpond
    millpond.rescale("/data/checkpoint", 16)

`millpond.savepoint` and `millpond.checkpoint` have the functions of those groups. The commands
call the same functions, and print what they return.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from millpond.operations import rescale as _rescaling
from millpond.operations import take_over as _owners
from millpond.operations.erase.report import ErasedPlace, EraseReport, Proof
from millpond.operations.migrate import MigrationReport, adopt, release
from millpond.operations.migrate.reading import adopted
from millpond.operations.rescale import RescaleReport
from millpond.operations.savepoint.restore import RestoreReport, fork
from millpond.operations.take_over import TakeOverReport
from millpond.spark import session as _session
from millpond.storage import open_root
from millpond.storage.given import takes_options
from millpond.storage.steps import Step
from millpond.testing import storage_check as _storages
from millpond.testing.storage_check import CheckResult, StorageReport

__all__ = [
    "MASTERS",
    "CheckResult",
    "EraseReport",
    "ErasedPlace",
    "MigrationReport",
    "Proof",
    "RescaleReport",
    "RestoreReport",
    "Step",
    "StorageReport",
    "TakeOverReport",
    "UndoReport",
    "adopt",
    "adopted",
    "check_storage",
    "conf",
    "erase",
    "fork",
    "release",
    "rescale",
    "take_over",
    "undo_rescale",
]

MASTERS = {
    "local": "local[*]",
    "standalone": "spark://host:7077",
    "yarn": "yarn",
    "k8s": "k8s://https://host:443",
}
"""The kinds of cluster that `conf` knows, and a master URL of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """What `undo_rescale` did. `to_json` is the contract of `millpond rescale --undo --json`."""

    checkpoint: str
    undone: bool  # False: there was no rescale to take back

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@takes_options
def rescale(
    checkpoint: str | os.PathLike[str],
    partitions: int,
    *,
    max_parallelism: int | None = None,
    dry_run: bool = False,
    skip_uncommitted: bool = False,
    file_sink: str | os.PathLike[str] | None = None,
    options: Mapping[str, object] | None = None,
    announce: Callable[[RescaleReport], None] | None = None,
) -> RescaleReport:
    """Give the state of a stopped query another number of partitions. Its next start uses it.

    If it is interrupted at any moment, the same call finishes it, or `undo_rescale` takes it back.

    Args:
        checkpoint: what `checkpointLocation` was set to: a path or a URI.
        partitions: 1 to 65,536. If it divides the max parallelism no row moves, else every row is
            written anew.
        max_parallelism: number of key groups from now on, a multiple of `partitions`. None: keep
            the number; if `partitions` does not divide it, the default for `partitions`.
        dry_run: plan everything, write nothing.
        skip_uncommitted: leave out a batch that has begun and is not committed. Its output may
            come twice.
        file_sink: the directory that the query writes to by a file format, or `none`. None: the
            one that its last start wrote down.
        options: options of the storage by name, `{"storage.s3.endpoint": "http://host:9000"}`.
        announce: called with what a dry run would return, before anything is written.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, PARTITIONS_INVALID, MAX_PARALLELISM_INVALID,
            STATE_OWNED, FILE_SINK_INVALID, FILE_SINK_MISMATCH, UNKNOWN_OPTION, INVALID_OPTION.
        ConflictError: QUERY_RUNNING, COMMAND_RUNNING; RESCALE_UNFINISHED: another one was
            interrupted.
        NotFoundError: BATCH_NOT_COMMITTED. FormatError: a file is damaged.
        UnsupportedError: STORE_UNSCALABLE, FOREIGN_CHECKPOINT.
        UnavailableError: STORAGE_FULL, LOCAL_DISK_FULL; the storage fails.
    """
    storage, root = open_root(checkpoint)
    return _rescaling.rescale(
        storage,
        root,
        partitions,
        max_parallelism=max_parallelism,
        dry_run=dry_run,
        skip_uncommitted=skip_uncommitted,
        file_sink=file_sink,
        announce=announce,
    )


@takes_options
def erase(
    paths: Sequence[str | os.PathLike[str]],
    *,
    key: Mapping[str, object],
    operator: int | str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    options: Mapping[str, object] | None = None,
) -> EraseReport:
    """Erase a key from the state of stopped queries, and from savepoints.

    Each retained version that holds the key is written anew without it, and all files that are left
    are read: none has a row of the key. If it is interrupted at any moment, the same call finishes
    it; until then nobody else can use the place.

    Args:
        paths: Spark checkpoints of stopped queries, and savepoints: paths or URIs.
        key: columns by which the operator groups, joins or deduplicates, and their values; some of
            them are enough. Nested ones are `"w.start"`.
        operator: number, or name; None: the only one.
        dry_run: read and plan everything, write nothing.
        progress: called with how many changelogs are written, and of how many.
        options: as for `rescale`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, OPERATOR_UNKNOWN, STATE_OWNED; INVALID_ARGUMENT: no
            such column, a value of another type, files of Spark's own store.
        ConflictError: QUERY_RUNNING, COMMAND_RUNNING, RESCALE_UNFINISHED; ERASE_UNFINISHED: the
            erasure of another key was interrupted.
        NotFoundError: BATCH_NOT_COMMITTED. FormatError: a retained batch is damaged.
        UnsupportedError: UNSUPPORTED: the operator has no key, or the extra `tools` is missing.
        UnavailableError: LOCAL_DISK_FULL, STORAGE_FULL; the storage fails.
    """
    from millpond.rows import require_tools  # start-up time

    require_tools()
    from millpond.operations.erase.run import erase as run  # start-up time: pyarrow

    return run(paths, key, operator, dry_run=dry_run, progress=progress)


@takes_options
def undo_rescale(
    checkpoint: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> UndoReport:
    """Take back a rescale that was interrupted: `millpond rescale --undo`.

    Args:
        checkpoint, options: as for `rescale`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, STATE_OWNED, UNKNOWN_OPTION, INVALID_OPTION.
        ConflictError: QUERY_RUNNING, COMMAND_RUNNING. UnavailableError: the storage fails.
    """
    storage, root = open_root(checkpoint)
    return UndoReport(checkpoint=root, undone=_rescaling.undo(storage, root))


@takes_options
def take_over(
    checkpoint: str | os.PathLike[str],
    *,
    even_if_there: bool = False,
    options: Mapping[str, object] | None = None,
) -> TakeOverReport:
    """Give the state at the option storage.uri to a Spark checkpoint that was moved.

    From then on Millpond refuses the Spark checkpoint at its old place. This is `millpond storage
    take-over`.

    Args:
        checkpoint: what `checkpointLocation` is set to now: a path or a URI.
        even_if_there: give up the old place although it is still there, or cannot be looked at
            from here.
        options: as for `rescale`.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT; INVALID_ARGUMENT: its state is in itself;
            STATE_OWNED: the old place is still there; UNKNOWN_OPTION, INVALID_OPTION.
        ConflictError: QUERY_RUNNING, COMMAND_RUNNING: on one of the two.
        UnavailableError: the storage fails.
    """
    return _owners.take_over(checkpoint, even_if_there=even_if_there)


@takes_options
def check_storage(
    uri: str | os.PathLike[str],
    *,
    quick: bool = False,
    options: Mapping[str, object] | None = None,
) -> StorageReport:
    """Try all that Millpond does with a storage, below a prefix of its own that it removes.

    This is `millpond storage check`. The report tells what fails; a failure raises nothing.

    Args:
        uri: where state would go: `s3://bucket/prefix`, a path, or a URI of `file:`, `hdfs:` or
            another scheme of Hadoop's.
        quick: leave out the contract, some hundred requests, which needs pytest.
        options: as for `rescale`.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: no path and no URI; UNKNOWN_OPTION, INVALID_OPTION.
        UnsupportedError: STORAGE_UNSUPPORTED, STORAGE_PACKAGE_MISSING.
    """
    return _storages.check_storage(uri, quick=quick)


def conf(master: str = "local") -> tuple[str, ...]:
    """Return the lines of a spark-defaults.conf that switch Millpond on.

    Args:
        master: kind of cluster, `local`, `standalone`, `yarn` or `k8s`; or a master URL.
    Raises:
        UnsupportedError: SHIM_MISSING: no jar for the Spark that would start.
    """
    return tuple(_session.conf_lines(MASTERS.get(master, master)))
