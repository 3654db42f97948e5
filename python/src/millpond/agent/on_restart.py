"""The option rescale.onRestart: the driver's agent rescales a query that starts with another number
of partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from millpond.agent.context import handed_over, request_error
from millpond.agent.starting import refuse_unfinished
from millpond.config import resolve
from millpond.model.json_fields import JsonFields
from millpond.storage import Storage, StorageSettings, open_storage
from millpond.storage.given import Given, reached_by
from millpond.storage.settings import storage_settings

log = logging.getLogger(__name__)

# A driver that was killed, perhaps on another host, counts as alive for this long.
_ENDING_S = 16.0


def rescale_on_restart(
    request: dict[str, Any], opener: Callable[[str, StorageSettings], Storage]
) -> dict[str, Any]:
    """Answer the call `rescale` of the protocol.

    Args:
        opener: opens the storage of a Spark checkpoint, given its URI and how to reach it.
    Raises: MillpondError: the rescale was refused, or failed; CHECKPOINT_UNFINISHED: a command has
        not made the Spark checkpoint to its end.
    """
    fields = JsonFields(request, request_error)
    options = request.get("options")
    if not isinstance(options, dict):
        raise request_error("options is no object")
    root, partitions = fields.string("checkpoint"), fields.integer("partitions", 1)
    resolved = resolve(options)
    requested = resolved["maxParallelism"]
    settings = storage_settings(resolved, handed_over(request.get("hadoop")))
    sink = fields.string("file_sink")
    most = requested if isinstance(requested, int) else None
    refuse_unfinished(open_storage(root, settings), root)
    with reached_by(Given(settings, {})):
        return _rescale(opener(root, settings), root, partitions, most, sink)


def _rescale(
    storage: Storage,
    root: str,
    partitions: int,
    max_parallelism: int | None,
    file_sink: str,
) -> dict[str, Any]:
    # Start-up time: the agents of executors never need these.
    from millpond.operations.rescale import rescale, undo
    from millpond.query.rescaling import left_by_spark, read_journal
    from millpond.spark.heartbeats import refuse_running
    from millpond.spark.metadata import read_spark_metadata

    refuse_running(storage, root, _ENDING_S)
    unfinished = read_journal(storage) is not None or left_by_spark(storage) is not None
    if unfinished and undo(storage, root):
        log.warning("took back an interrupted rescale of %s", root)
    if read_spark_metadata(storage, batches=(), operators=()).partitions == partitions:
        return {}
    report = rescale(
        storage,
        root,
        partitions,
        max_parallelism=max_parallelism,
        ending_s=_ENDING_S,
        file_sink=file_sink,
    )
    log.info(
        "rescaled %s from %d to %d partitions (%s)", root, report.current, partitions, report.way
    )
    return {"from": report.current, "way": report.way, "seconds": report.seconds}
