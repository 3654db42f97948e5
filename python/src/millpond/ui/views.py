"""What the pages show of a place, as JSON values. Each function reads, and none writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millpond import api, checkpoint, savepoint
from millpond.config import resolve
from millpond.errors import MillpondError
from millpond.format import layout
from millpond.model.ids import StoreId
from millpond.operations.inspect.anatomy import anatomy, group_counts
from millpond.spark.heartbeats import heartbeats
from millpond.spark.metadata import logged_batches
from millpond.storage import Storage, open_root
from millpond.storage.settings import storage_settings
from millpond.ui.places import Place

Json = dict[str, Any]
Options = Mapping[str, object]


def newest_batch(place: Place, options: Options) -> int | None:
    """Return the last committed batch of a query; None: none is. One listing."""
    storage, _ = _open(place, options)
    return max(logged_batches(storage, layout.COMMITS_DIR), default=None)


def query(place: Place, options: Options) -> Json:
    """Return the overview of a query, and whether it runs."""
    storage, _ = _open(place, options)
    found = checkpoint.show(place.path, options=options).to_json()
    found["running"] = [asdict(beat) for beat in heartbeats(storage)]
    return found


def history(place: Place, options: Options, last: int) -> Json:
    """Return the last batches."""
    return checkpoint.history(place.path, last=last, options=options).to_json()


def groups(place: Place, options: Options) -> Json:
    """Return the live keys of all key groups."""
    storage, root = _open(place, options)
    return {"stores": [asdict(counts) for counts in group_counts(storage, root)]}


def store(place: Place, options: Options, operator: int, partition: int, name: str) -> Json:
    """Return the files of one store."""
    storage, root = _open(place, options)
    return anatomy(storage, root, StoreId(operator, partition, name)).to_json()


def skew(place: Place, options: Options) -> Json:
    """Return how evenly state lies. Reads all rows."""
    return checkpoint.skew(place.path, options=options).to_json()


def verified(place: Place, options: Options) -> Json:
    """Read everything back, and return all problems."""
    if place.kind == "savepoint":
        return savepoint.verify(place.path).to_json()
    return checkpoint.verify(place.path, options=options).to_json()


def rescale(place: Place, options: Options, partitions: int) -> Json:
    """Return what a rescale would do. Writes nothing."""
    return api.rescale(place.path, partitions, dry_run=True, options=options).to_json()


def saved(place: Place, others: Sequence[Place], options: Options) -> Json:
    """Return what a savepoint holds, and what its files share with other places.

    Files are the same if their names below `state/` and their check sums are. A query's files are
    compared by name and size: their sums are in its manifests.
    """
    view = savepoint.show(place.path)
    mine = {key: entry.size_bytes for key, entry in view.index.files.items() if _is_sst(key)}
    shared = []
    for other in others:
        if other.path == place.path or other.kind == "unreadable":
            continue
        try:
            theirs = _ssts(other, options)
        except MillpondError:
            continue  # its own page says what is wrong with it
        common = sum(size for key, size in mine.items() if theirs.get(key) == size)
        if common:
            shared.append({"path": other.path, "id": other.id, "bytes": common})
    return {**view.to_json(), "sst_bytes": sum(mine.values()), "shared": shared}


def _is_sst(key: str) -> bool:
    parsed = layout.parse_key(key)
    return parsed is not None and isinstance(parsed.file, layout.SstFile)


def _ssts(place: Place, options: Options) -> dict[str, int]:
    """Return the sizes of the SSTs of a place, by key."""
    if place.kind == "savepoint":
        files = savepoint.show(place.path).index.files
        return {key: entry.size_bytes for key, entry in files.items() if _is_sst(key)}
    storage, _ = _open(place, options)
    listed = storage.list(f"{layout.STATE_DIR}/")
    return {info.key: info.size_bytes for info in listed if _is_sst(info.key)}


def _open(place: Place, options: Options) -> tuple[Storage, str]:
    return open_root(place.path, storage_settings(resolve(options)))
