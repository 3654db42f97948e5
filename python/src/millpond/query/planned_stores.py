"""Plans how the stores of a query are restored, many at once: a query that runs goes on removing
the oldest changelogs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from millpond.errors import ErrorKind, MillpondError, error
from millpond.format import layout
from millpond.model.ids import VersionId
from millpond.store.files import StoreFiles
from millpond.store.restore.plan import RestorePlan, plan_restore

_REQUESTS = 16  # at once; each mostly waits for the object storage
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class PlannedStore:
    """How to restore a store. texts: of the plan's manifest, if it has one, by key."""

    files: StoreFiles
    plan: RestorePlan
    texts: Mapping[str, bytes]


def plan_store(files: StoreFiles, target: VersionId) -> PlannedStore:
    """Plan how to restore a version.

    Args:
        files: as they are listed.
    Raises: as `restore.plan.plan_restore`; NotFoundError: VERSION_EXPIRED, too.
    """
    plan = _plan(files, target)
    if plan.manifest is None:
        return PlannedStore(files, plan, {})
    key = layout.manifest_key(files.store, plan.manifest.version_id, files.spark_format)
    return PlannedStore(files, plan, {key: files.storage.read(key)})


def _plan(files: StoreFiles, target: VersionId) -> RestorePlan:
    try:
        return plan_restore(files, target)
    except MillpondError as e:
        snapshots = files.manifest_versions()
        if e.kind is ErrorKind.CHANGELOG_MISSING and snapshots and target.version < min(snapshots):
            raise error(
                ErrorKind.VERSION_EXPIRED,
                f"store {files.store}: the state of batch {target.version - 1} has expired: the"
                f" oldest that is kept is that of batch {min(snapshots) - 1}",
            ) from e
        raise


def each(call: Callable[[_Item], _Result], items: Sequence[_Item], *, local: bool) -> list[_Result]:
    """Return the results of a call for each item, in their order.

    Args:
        local: it reads from a disk of this machine: one after the other. Else many at once.
    Raises: the error of the first item in the order that fails.
    """
    if local:
        return [call(item) for item in items]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(call, items))
