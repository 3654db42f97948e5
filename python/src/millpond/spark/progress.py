"""Reads what the driver kept of the progress of a query's last batches.

    millpond/history/<start>-<run id>-<part>-<batches>.jsonl.gz    a line a batch: Spark's progress

The driver writes a file with more batches, and then deletes the one that it replaces. Nothing but
reports depends on these files: what cannot be read in them is named, and left out.
"""

from __future__ import annotations

import datetime as dt
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from millpond.errors import MillpondError, NotFoundError, UnavailableError
from millpond.format import layout
from millpond.storage import Storage

# One for each store; the files tell the same.
_LEFT_OUT = "SnapshotLastUploaded."
_PREFIX = layout.HISTORY_PREFIX
_ATTEMPTS = 5
_MOST_BYTES = 64 * 1024 * 1024  # of one file, inflated: the driver ends a part at a megabyte


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProgress:
    """What one stateful operator did in one batch. Times are sums over its tasks."""

    name: str
    rows: int
    rows_updated: int
    rows_removed: int
    rows_late: int
    memory_bytes: int
    update_ms: int
    removal_ms: int
    commit_ms: int
    partitions: int
    stores: int
    metrics: dict[str, int] = field(default_factory=dict)  # the store's own, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMove:
    """Stores of one partition that the driver gave another executor before a batch."""

    operators: tuple[int, ...]
    partition: int
    source: str  # ids of executors
    target: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """What Spark said of one batch, and what Millpond did before it.

    duration_ms: of the whole batch. phases: parts of it by Spark's names of them, ms.
    watermark: in ISO 8601, as the batch used it; None: it had none.
    output_rows: None: the sink does not count them.
    """

    batch: int
    run_id: str
    at_ms: int
    duration_ms: int
    phases: dict[str, int]
    input_rows: int
    output_rows: int | None
    watermark: str | None
    operators: tuple[OperatorProgress, ...]
    moves: tuple[StoreMove, ...] = ()


def read_progress(
    storage: Storage, last: int | None = None
) -> tuple[list[BatchProgress], list[str]]:
    """Return what was kept, by time, and problems: files of which a part could not be read.

    A batch that was run again is there for each run.

    Args:
        last: the last so many; None: all.
    Raises: UnavailableError: the storage fails.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _read_all(storage, last)
        except NotFoundError:
            continue  # the driver replaced a file after it was listed
    return _read_all(storage, last)


def _read_all(storage: Storage, last: int | None) -> tuple[list[BatchProgress], list[str]]:
    listed = ((layout.parse_history(info.key), info.key) for info in storage.list(_PREFIX))
    files = sorted(((of, key) for of, key in listed if of is not None), reverse=True)
    found: list[BatchProgress] = []
    problems: list[str] = []
    runs: set[str] = set()  # whose newest part was read: the driver may be writing that one
    for (_, run_id, _), part in groupby(
        files, key=lambda file: (file[0].start_ms, file[0].run_id, file[0].part)
    ):
        if last is not None and len(found) >= last:
            break
        batches: list[BatchProgress] = []
        for _, key in part:
            lines, whole, problem = _file(storage, key)
            if not whole and run_id in runs:
                problem = problem or "it is not whole"
            if problem:
                problems.append(f"{key}: {problem}")
            # of a file that is being written: the one that it replaces may have more
            batches = max(batches, lines, key=len)
            if whole:
                break
        runs.add(run_id)
        found[:0] = batches
    return found if last is None else found[max(0, len(found) - last) :], problems


def _file(storage: Storage, key: str) -> tuple[list[BatchProgress], bool, str]:
    """Return the batches of a file, whether it is whole, and what is wrong with it."""
    inflate = zlib.decompressobj(wbits=31)
    try:
        text = inflate.decompress(storage.read(key), _MOST_BYTES)
    except (NotFoundError, UnavailableError):
        raise
    except MillpondError as e:
        return [], False, e.message
    except zlib.error:
        return [], False, "it is damaged"
    *lines, _ = text.split(b"\n")
    batches = []
    try:
        for line in lines:
            batches.append(_batch(json.loads(line)))
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        return batches, False, f"a line is no progress of a batch: {type(e).__name__}"
    return batches, inflate.eof, ""


def _batch(value: Any) -> BatchProgress:
    phases = {str(k): int(v) for k, v in _mapping(value, "durationMs").items()}
    sink = _mapping(value, "sink").get("numOutputRows", -1)
    return BatchProgress(
        batch=int(value["batchId"]),
        run_id=str(value["runId"]),
        at_ms=_time_ms(str(value["timestamp"])),
        duration_ms=int(value.get("batchDuration", phases.get("triggerExecution", 0))),
        phases=phases,
        input_rows=int(value.get("numInputRows", 0)),
        output_rows=int(sink) if int(sink) >= 0 else None,
        watermark=_mapping(value, "eventTime").get("watermark"),
        operators=tuple(_operators(value.get("stateOperators", []))),
        moves=tuple(_moves(value.get("millpondMoves") or [])),
    )


def _moves(values: Any) -> Iterator[StoreMove]:
    for value in values:
        yield StoreMove(
            operators=tuple(int(n) for n in value["operators"]),
            partition=int(value["partition"]),
            source=str(value["from"]),
            target=str(value["to"]),
            reason=str(value["reason"]),
        )


def _operators(values: Any) -> Iterator[OperatorProgress]:
    for value in values:
        metrics = _mapping(value, "customMetrics").items()
        yield OperatorProgress(
            name=str(value["operatorName"]),
            rows=int(value.get("numRowsTotal", 0)),
            rows_updated=int(value.get("numRowsUpdated", 0)),
            rows_removed=int(value.get("numRowsRemoved", 0)),
            rows_late=int(value.get("numRowsDroppedByWatermark", 0)),
            memory_bytes=int(value.get("memoryUsedBytes", 0)),
            update_ms=int(value.get("allUpdatesTimeMs", 0)),
            removal_ms=int(value.get("allRemovalsTimeMs", 0)),
            commit_ms=int(value.get("commitTimeMs", 0)),
            partitions=int(value.get("numShufflePartitions", 0)),
            stores=int(value.get("numStateStoreInstances", 0)),
            metrics={str(k): int(v) for k, v in metrics if not str(k).startswith(_LEFT_OUT)},
        )


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    found = value.get(name) or {}
    if not isinstance(found, Mapping):
        raise TypeError(name)
    return found


def _time_ms(text: str) -> int:
    """Return milliseconds since the epoch of Spark's text, `2026-11-23T15:43:51.688Z`."""
    return round(dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
