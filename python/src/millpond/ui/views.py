"""What the pages show of a place, as JSON values. Each function reads, and none writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from millpond import api, checkpoint, savepoint
from millpond.errors import MillpondError
from millpond.format import layout, spark_names
from millpond.model.ids import StoreId
from millpond.operations.inspect.anatomy import anatomy, group_counts
from millpond.spark.heartbeats import heartbeats
from millpond.spark.metadata import logged_batches, read_spark_metadata
from millpond.storage import open_root
from millpond.store.files import list_state
from millpond.ui.places import Place

Json = dict[str, Any]

_MOST_POINTS = 200  # of a line over time
_OF_STORES: dict[type, str] = {
    layout.ChangelogFile: "changelogs",
    layout.ManifestFile: "manifests",
    layout.SstFile: "SSTs",
    layout.StagingFile: "not published yet",
}
_KINDS = (*_OF_STORES.values(), "Spark's logs", "history", "other")


def newest_batch(place: Place) -> int | None:
    """Return the last committed batch of a query; None: none is. One listing."""
    storage, _ = open_root(place.path)
    return max(logged_batches(storage, spark_names.COMMITS_DIR), default=None)


def query(place: Place) -> Json:
    """Return the overview of a query, and whether it runs."""
    storage, _ = open_root(place.path)
    found = checkpoint.show(place.path).to_json()
    found["running"] = [asdict(beat) for beat in heartbeats(storage)]
    return found


def history(place: Place, last: int) -> Json:
    """Return the last batches."""
    return checkpoint.history(place.path, last=last).to_json()


def glance(place: Place) -> Json:
    """Return what the list of places tells of one. Of a query: two listings."""
    if place.kind == "savepoint":
        index = savepoint.show(place.path).index
        return {
            "batch": index.image.batch,
            "created_ms": index.created_ms,
            "format": index.format,
            "size_bytes": index.size_bytes,
        }
    storage, _ = open_root(place.path)
    return {"batch": newest_batch(place), "running": bool(heartbeats(storage))}


def storage(place: Place) -> Json:
    """Return the files of a query by kind, and how their bytes add up over time. One listing."""
    root, _ = open_root(place.path)
    found: Counter[str] = Counter()
    size_bytes: Counter[str] = Counter()
    written: Counter[int] = Counter()
    for info in list_state(root, ""):  # what is a link to another disk belongs to the query
        kind = _kind(info.key)
        found[kind] += 1
        size_bytes[kind] += info.size_bytes
        written[info.modified_ms] += info.size_bytes
    times = sorted(written)
    every = max(1, len(times) // _MOST_POINTS)
    sums = list(zip(times, accumulate(written[at] for at in times), strict=True))
    return {
        "kinds": [
            {"kind": kind, "files": found[kind], "bytes": size_bytes[kind]} for kind in _KINDS
        ],
        "written": [*sums[:-1:every], *sums[-1:]],
    }


def _kind(key: str) -> str:
    file = layout.file_of(key)
    if file is not None:
        return _OF_STORES[type(file)]
    if spark_names.is_of_logs(key):
        return "Spark's logs"
    return "history" if key.startswith(layout.HISTORY_PREFIX) else "other"


def groups(place: Place) -> Json:
    """Return the live keys of all key groups."""
    storage, root = open_root(place.path)
    return {"stores": [asdict(counts) for counts in group_counts(storage, root)]}


def store(place: Place, operator: int, partition: int, name: str) -> Json:
    """Return the files of one store."""
    storage, root = open_root(place.path)
    return anatomy(storage, root, StoreId(operator, partition, name)).to_json()


def skew(place: Place) -> Json:
    """Return how evenly state lies. Reads all rows."""
    return checkpoint.skew(place.path).to_json()


def verified(place: Place) -> Json:
    """Read everything back, and return all problems."""
    if place.kind == "savepoint":
        return savepoint.verify(place.path).to_json()
    return checkpoint.verify(place.path).to_json()


def rescale(place: Place, partitions: int) -> Json:
    """Return what a rescale would do. Writes nothing. A query that runs has begun a batch."""
    report = api.rescale(place.path, partitions, dry_run=True, skip_uncommitted=True)
    return report.to_json()


def saved(place: Place, others: Sequence[Place]) -> Json:
    """Return what a savepoint holds, and how many bytes of SSTs it shares with each other place."""
    view = savepoint.show(place.path)
    mine = _ssts(place)
    shared = [
        {"path": other.path, "id": other.id, "bytes": common}
        for other in others
        if other.path != place.path
        if (common := _shared_bytes(mine, _ssts(other)))
    ]
    return {**view.to_json(), "sst_bytes": sum(mine.values()), "shared": shared}


def savepoints(place: Place, others: Sequence[Place]) -> Json:
    """Return the savepoints of a query among the places, and those that share files with it."""
    storage, _ = open_root(place.path)
    query_id = read_spark_metadata(storage, batches=(), operators=(), damaged=[]).query_id
    mine = _ssts(place)
    found = []
    for other in others:
        if other.kind != "savepoint":
            continue
        try:
            index = savepoint.show(other.path).index
        except MillpondError:
            continue  # its own page says what is wrong with it
        theirs = _ssts(other)
        shared = _shared_bytes(mine, theirs)
        if shared or index.image.query_id == query_id:
            found.append(
                {
                    **glance(other),
                    "path": other.path,
                    "id": other.id,
                    "sst_bytes": sum(theirs.values()),
                    "shared_bytes": shared,
                }
            )
    return {"savepoints": found}


def _shared_bytes(mine: Mapping[str, int], theirs: Mapping[str, int]) -> int:
    """Return the bytes of SSTs that are the same: their names are random."""
    return sum(size for key, size in mine.items() if theirs.get(key) == size)


def _is_sst(key: str) -> bool:
    return isinstance(layout.file_of(key), layout.SstFile)


def _ssts(place: Place) -> dict[str, int]:
    """Return the sizes of the SSTs of a place, by key; none of one that cannot be read."""
    try:
        if place.kind == "savepoint":
            files = savepoint.show(place.path).index.files
            return {key: entry.size_bytes for key, entry in files.items() if _is_sst(key)}
        storage, _ = open_root(place.path)
        listed = list_state(storage, layout.STATE_PREFIX)
        return {info.key: info.size_bytes for info in listed if _is_sst(info.key)}
    except MillpondError:
        return {}  # its own page says what is wrong with it
