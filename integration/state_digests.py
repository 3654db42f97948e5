"""Digests of state by key group. A rescale must not change them."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from millpond.errors import UnsupportedError
from millpond.operations.repartition.pipeline import plan_repartition
from millpond.operations.repartition.plan import plan_partitions
from millpond.operations.rescale import REHASH, RescaleReport, rescale
from millpond.query.row_source import NativeRows, Rows
from millpond.query.whole import checkpoint_image
from millpond.storage import Storage, open_storage

# operator, store, column family, key group -> sum of the digests of its rows
Digests = dict[tuple[int, str, str, int], int]


def digests(storage: Storage, root: str) -> Digests:
    """Return the digests of the state on storage."""
    image = checkpoint_image(storage, root)
    source = NativeRows(storage, image)
    found: Counter[tuple[int, str, str, int]] = Counter()
    for store in source.stores():
        for rows in source.rows(store):
            _add(found, store.store.operator, store.store.name, rows)
    return dict(found)


def digests_as(storage: Storage, root: str, partitions: int, max_parallelism: int) -> Digests:
    """Return the digests that the state must have after a rescale.

    Each row's key group follows from its key alone.
    """
    image = checkpoint_image(storage, root)
    source = NativeRows(storage, image)
    new = plan_partitions(
        image, partitions, None if max_parallelism == image.max_parallelism else max_parallelism
    )
    numbers = {op.operator: op.operator for op in image.operators}
    found: Counter[tuple[int, str, str, int]] = Counter()
    what = plan_repartition(lambda: source, image, new, numbers)
    for writer in what.writers():
        for _, rows in writer.routed(source, writer.stores):
            _add(found, writer.operator, writer.store.name, rows)
    return dict(found)


def _add(found: Counter[tuple[int, str, str, int]], operator: int, store: str, rows: Rows) -> None:
    for group, key, value in zip(rows.groups, rows.keys, rows.values, strict=True):
        row = hashlib.blake2b(len(key).to_bytes(4, "big") + key + value, digest_size=8).digest()
        found[operator, store, rows.family.name, group] += int.from_bytes(row, "big")


def rescale_and_compare(checkpoint: Path, partitions: int) -> RescaleReport | None:
    """Rescale. Compare the state before and after, by key group.

    Return None if Millpond refuses: only Spark can hash keys in Avro anew. Then nothing changed.
    """
    root = str(checkpoint)
    storage = open_storage(root)
    planned = rescale(storage, root, partitions, dry_run=True)
    before = digests(storage, root)
    try:
        expected = digests_as(storage, root, partitions, planned.max_parallelism)
    except UnsupportedError:
        assert planned.way == REHASH
        try:
            rescale(storage, root, partitions)
        except UnsupportedError:
            assert digests(storage, root) == before
            return None
        raise AssertionError("a rescale that must be refused succeeded") from None
    report = rescale(storage, root, partitions)
    assert (report.partitions, report.way) == (partitions, planned.way)
    after = digests(storage, root)
    assert after == expected
    assert planned.way == REHASH or after == before
    return report
