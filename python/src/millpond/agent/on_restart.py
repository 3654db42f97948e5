"""The option rescale.onRestart: the driver's agent rescales a query that is just being started with another number of partitions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from millpond.agent.context import handed_over, request_error
from millpond.config import resolve
from millpond.json_fields import JsonFields
from millpond.storage import Storage, StorageSettings
from millpond.storage.settings import storage_settings

log = logging.getLogger(__name__)

# An answer in time, whatever the shim waits for one: it asks again while there is nothing to tell.
_ANSWER_S = 10.0
# A driver that was killed, perhaps on another host, is counted as alive so long.
_ENDING_S = 16.0


class RestartRescales:
    """Rescales that were asked for at starts of queries. Thread-safe.

    Args: opener: makes the storage of a Spark checkpoint from its URI and how to reach it.
    """

    def __init__(self, opener: Callable[[str, StorageSettings], Storage]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], Future[dict[str, Any]]] = {}  # Spark checkpoint, run

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the protocol's `rescale`. Raises: MillpondError: the rescale was refused, or failed."""
        fields = JsonFields(request, request_error)
        options = request.get("options")
        if not isinstance(options, dict):
            raise request_error("options is no object")
        root, partitions = fields.string("checkpoint"), fields.integer("partitions", 1)
        resolved, key = resolve(options), (root, fields.string("run_id"))
        requested = resolved["maxParallelism"]
        settings = storage_settings(resolved, handed_over(request.get("hadoop")))
        with self._lock:
            found = self._running.get(key)
            if found is None:
                found = self._running[key] = Future()
                threading.Thread(
                    target=self._run,
                    args=(found, root, settings, partitions, requested if isinstance(requested, int) else None),
                    daemon=True,
                ).start()
        wait([found], timeout=_ANSWER_S)
        if not found.done():
            return {"done": False}
        with self._lock:
            self._running.pop(key, None)
        return {"done": True, **found.result()}

    def _run(
        self,
        future: Future[dict[str, Any]],
        root: str,
        settings: StorageSettings,
        partitions: int,
        max_parallelism: int | None,
    ) -> None:
        try:
            future.set_result(_rescale(self._opener(root, settings), root, partitions, max_parallelism))
        except BaseException as e:  # it is raised where the answer is waited for
            future.set_exception(e)


def _rescale(storage: Storage, root: str, partitions: int, max_parallelism: int | None) -> dict[str, Any]:
    # Here and not above: the agents of executors never need it.
    from millpond.rescaling import rescale, undo
    from millpond.rescaling.write import read_journal
    from millpond.running import refuse_running
    from millpond.spark_metadata import read_spark_metadata

    refuse_running(storage, root, _ENDING_S)
    if read_journal(storage) is not None and undo(storage, root):
        log.warning("a rescale of %s that was interrupted has been taken back", root)
    if read_spark_metadata(storage, batches=(), operators=()).partitions == partitions:
        return {}
    report = rescale(storage, root, partitions, max_parallelism=max_parallelism, ending_s=_ENDING_S)
    log.info("rescaled %s from %d to %d partitions (%s)", root, report.current, partitions, report.way)
    return {"from": report.current, "way": report.way, "seconds": report.seconds}
