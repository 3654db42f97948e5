"""Says what a rescale writes.

Without a rehash no row moves: each new partition gets a composed manifest, which names files of the
old partitions.
"""

from __future__ import annotations

import time
from itertools import chain

from millpond.format import layout, spark_names
from millpond.format.manifest import encode_manifest
from millpond.model.ids import new_id
from millpond.operations.rescale.plan import NewVersion, compose
from millpond.operations.rescale.read import Before, operator_metadata
from millpond.operations.rescale.write import Writing, pin
from millpond.spark.log_edit import commit_with_state_ids, offsets_left_out, offsets_with_partitions
from millpond.storage import Storage


def state_bytes(before: Before) -> int:
    """Return the size of the SSTs and changelogs that a restore reads, each counted once."""
    sizes: dict[str, int] = {}  # by key: composed manifests name the same files
    for by_name in before.stores.values():
        for old in chain.from_iterable(by_name.values()):
            if old.plan.manifest is not None:
                sizes |= old.plan.manifest.sizes(old.store)
            for name, size_bytes in old.changelog_files.values():
                sizes[layout.store_key(old.store, name)] = size_bytes
    return sum(sizes.values())


def composed(storage: Storage, before: Before, partitions: int) -> Writing:
    """Return what a rescale to `partitions` writes. That number divides the max parallelism, and
    the old partitions number their column families alike.
    """
    batch, created_ms = before.started + 1, time.time_ns() // 1_000_000
    new = NewVersion(partitions=partitions, version=batch + 1, created_ms=created_ms)
    files: dict[str, bytes] = {}
    manifests: dict[str, bytes] = {}
    ids: dict[int, list[list[str]]] = {}
    for operator, by_name in before.stores.items():
        pinned: list[str] = []
        ids[operator] = []
        for name in before.names[operator]:
            fresh = [new_id() for _ in range(1 if operator in before.single else partitions)]
            made = compose(by_name[name], before.format.key_groups, before.partitions, new, fresh)
            for partition, manifest in enumerate(made):
                key = layout.manifest_key(manifest.store, manifest.version_id, before.spark_format)
                manifests[key] = encode_manifest(manifest)
                pinned += manifest.changelog_keys()
                if len(ids[operator]) <= partition:
                    ids[operator].append([])
                ids[operator][partition].append(manifest.id)
        if pinned:
            files[layout.rescale_pin_key(operator, batch)] = pin(pinned, created_ms)
    files.update(manifests)
    return writing_of(storage, before, partitions, files, ids, created_ms)


def writing_of(
    storage: Storage,
    before: Before,
    partitions: int,
    files: dict[str, bytes],
    ids: dict[int, list[list[str]]],
    created_ms: int,
) -> Writing:
    """Return what a rescale writes: `files`, entries of Spark's logs and operator metadata.

    Args:
        ids: of the new state: operator -> partition -> an id per store.
    """
    batch, files = before.started + 1, dict(files)
    offsets, commit = (
        spark_names.offsets_key(before.committed),
        spark_names.commits_key(before.committed),
    )
    entry = storage.read(offsets)
    left_out = left_out_before = None
    if before.started != before.committed:
        # The batch that is left out counts as committed, and did nothing. Nor did it read anything:
        # the entry of the rescale begins where the last committed batch ended, and a file source
        # refuses to go back.
        files[spark_names.commits_key(before.started)] = storage.read(commit)
        key = spark_names.offsets_key(before.started)
        left_out_before = storage.read(key)
        left_out = offsets_left_out(
            left_out_before.decode("utf-8"), entry.decode("utf-8"), name=key
        ).encode("utf-8")
    for operator in before.stores:
        metadata = operator_metadata(storage, operator, before.committed, partitions)
        if metadata is not None:
            files[f"{spark_names.operator_metadata_v2_prefix(operator)}{batch}"] = metadata
    return Writing(
        current=before.partitions,
        partitions=partitions,
        batch=batch,
        offsets=offsets_with_partitions(entry.decode("utf-8"), partitions, name=offsets).encode(
            "utf-8"
        ),
        left_out=left_out,
        left_out_before=left_out_before,
        files=files,
        stale=before.stale,
        commit=commit_with_state_ids(storage.read(commit).decode("utf-8"), ids, name=commit).encode(
            "utf-8"
        ),
        created_ms=created_ms,
    )
