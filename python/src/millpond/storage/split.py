"""A Spark checkpoint in two places: Spark's own logs in one, Millpond's state in the other.

Callers see one storage.
"""

from __future__ import annotations

import builtins
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from millpond.format import spark_names
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.keys import check_key, check_prefix
from millpond.storage.paging import list_by_pages
from millpond.storage.usage import usage_of


class SplitStorage:
    """Routes each key to the one place where it belongs. Ignores such an object in the other place.

    Args:
        spark: the Spark checkpoint: metadata, offsets, commits, operator metadata,
            `millpond/storage.json`.
        state: everything else: format.json, collections, pins, the stores' files.
    """

    def __init__(self, spark: Storage, state: Storage) -> None:
        self.spark = spark
        self.state = state
        self.usage = usage_of(state)

    def __repr__(self) -> str:
        return f"SplitStorage({self.spark!r}, {self.state!r})"

    def side_of(self, key: str) -> Storage:
        """Return the storage that keeps the object `key`."""
        return self.spark if spark_names.is_sparks(check_key(key)) else self.state

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        self.side_of(key).put_file(key, local_path, if_absent=if_absent, link=link)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self.side_of(key).put_bytes(key, data, if_absent=if_absent)

    def read(self, key: str) -> bytes:
        return self.side_of(key).read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self.side_of(key).read_range(key, start, length)

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int | None:
        return self.side_of(key).get_to_file(key, local_path, link=link)

    def stat(self, key: str) -> ObjectInfo:
        return self.side_of(key).stat(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        places = self._listed(prefix, lambda place: place.list(prefix))
        return heapq.merge(*places, key=lambda info: info.key)

    def list_by_pages(self, prefix: str) -> Iterator[ObjectInfo]:
        return itertools.chain(*self._listed(prefix, lambda place: list_by_pages(place, prefix)))

    def _listed(
        self, prefix: str, listing: Callable[[Storage], Iterator[ObjectInfo]]
    ) -> builtins.list[Iterator[ObjectInfo]]:
        """Return what belongs to each place that can have objects with the prefix."""
        check_prefix(prefix)
        side = spark_names.side_of_prefix(prefix)
        if side is not None:
            return [listing(self.spark if side else self.state)]
        return [
            (info for info in listing(self.state) if not spark_names.is_sparks(info.key)),
            (info for info in listing(self.spark) if spark_names.is_sparks(info.key)),
        ]

    def delete(self, keys: Iterable[str]) -> None:
        spark: list[str] = []
        state: list[str] = []
        for key in keys:
            (spark if spark_names.is_sparks(check_key(key)) else state).append(key)
        if state:
            self.state.delete(state)
        if spark:
            self.spark.delete(spark)

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        return self.side_of(key).copy_from(source, source_key, key)

    def local_path(self, key: str) -> str | None:
        return self.side_of(key).local_path(key)


def side_of(storage: Storage, key: str) -> Storage:
    """Return the storage that keeps the object `key`: `storage`, or one of its two places."""
    return storage.side_of(key) if isinstance(storage, SplitStorage) else storage
