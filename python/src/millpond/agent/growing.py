"""The changelogs of running batches that go to the storage before their commits.

The shim names each by the path of its staged file. The commit takes the put that has begun. An
agent that has none, because another one died meanwhile, puts the whole file.
"""

from __future__ import annotations

import threading

from millpond.agent.changelogs import check_staged
from millpond.agent.context import StoreContext
from millpond.format import layout
from millpond.model.ids import VersionId
from millpond.storage.growing import GrowingPut, begin_growing


class GrowingChangelogs:
    """The puts that have begun. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By path of the staged file. None: the commit has taken it.
        self._puts: dict[str, GrowingPut | None] = {}

    def grown(
        self,
        context: StoreContext,
        version: VersionId,
        staged: str,
        local_dir: str,
        *,
        fixed_from: int,
        size_bytes: int,
    ) -> bool:
        """Note how far a changelog is written. Returns at once.

        Args:
            version: what the batch will make.
            fixed_from: what the file has from this byte on never changes.
        Returns: False: the storage takes only files that are complete.
        Raises: InvalidInputError: `staged` is not a staging file of this store.
        """
        check_staged(context, staged, local_dir)
        # In format 1 attempts share a name, and S3 may prefer an upload that another one began
        # later.
        if context.directory is not None or context.spark_format == 1:
            return False
        with self._lock:
            if staged not in self._puts:
                key = layout.changelog_key(context.store, version, context.spark_format)
                begun = begin_growing(context.storage, key, staged, fixed_from)
                if begun is None:
                    return False
                self._puts[staged] = begun
            put = self._puts[staged]
        if put is not None:
            put.grown(size_bytes)
        return True

    def take(self, staged: str) -> GrowingPut | None:
        """Return the put of a file that is complete: the caller ends it. None: there is none.

        Until `drop`, no other put of this file begins: a call of `grown` may be under way.
        """
        with self._lock:
            put = self._puts.get(staged)
            if put is not None:
                self._puts[staged] = None
            return put

    def drop(self, staged: str) -> None:
        """The batch has ended. If its commit did not take the put, throw it away."""
        with self._lock:
            put = self._puts.pop(staged, None)
        if put is not None:
            put.abandon()
