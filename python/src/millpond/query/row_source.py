"""All rows of a savepoint or of a Spark checkpoint as bytes, store by store. Canonical savepoints
and repartitioning are made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from millpond.errors import FormatError
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.model.physical_key import FAMILY, PHYSICAL_PREFIX_BYTES, RESERVED_SLOT, SLOT_BYTES
from millpond.query.image import Image
from millpond.storage import Storage
from millpond.store.entries import Entry, entry_chunks, open_version
from millpond.store.files import StoreFiles

UNKNOWN_GROUP = -1


@dataclass(slots=True)
class Rows:
    """Some rows of one column family: their key groups (-1: their place does not tell it), their
    keys without slot and column family, their values.
    """

    family: ColumnFamily
    groups: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRows:
    """One store: its column families, and whether the key of each row determines where it lies."""

    store: StoreId
    families: tuple[ColumnFamily, ...]
    scalable: bool
    reason: str  # why not; "" if scalable


class RowSource(Protocol):
    """Where rows are read from."""

    @property
    def key_groups(self) -> KeyGroups:
        """The key groups of what is read."""

    def stores(self) -> list[StoreRows]:
        """All stores, ascending."""

    def rows(self, store: StoreRows) -> Iterator[Rows]:
        """Yield the rows of one store, some at a time. Rows of one column family come in the order
        of their physical keys.
        """


def leading_group(slot: int, groups: KeyGroups) -> int:
    """Return the key group of a slot that leads a key; `UNKNOWN_GROUP`: it is the reserved one, and
    that of no group.
    """
    if slot == RESERVED_SLOT and slot >= groups.max_parallelism:
        return UNKNOWN_GROUP
    return groups.group(slot)


class _Places(dict[bytes, tuple[int, int]]):
    """First bytes of a physical key -> column family, key group."""

    def __init__(self, groups: KeyGroups) -> None:
        super().__init__()
        self._groups = groups

    def __missing__(self, prefix: bytes) -> tuple[int, int]:
        slot = int.from_bytes(prefix[:SLOT_BYTES], "big")
        place = (int.from_bytes(prefix[FAMILY], "big"), leading_group(slot, self._groups))
        self[prefix] = place
        return place


def _split(
    chunk: list[Entry], known: dict[int, ColumnFamily], places: _Places, groups: KeyGroups
) -> Iterator[Rows]:
    """Sort entries by column family. Leaves out families that the job has dropped."""
    keys = [key for key, _ in chunk]
    prefixes = [key[:PHYSICAL_PREFIX_BYTES] for key in keys]
    numbers = {places[prefix][0] for prefix in set(prefixes)}
    if len(numbers) == 1 and not any(known[n].spans_key_groups for n in numbers if n in known):
        # Most stores have one column family: take all rows at once.
        (number,) = numbers
        if number in known:
            yield Rows(
                known[number],
                [places[prefix][1] for prefix in prefixes],
                [key[PHYSICAL_PREFIX_BYTES:] for key in keys],
                [value for _, value in chunk],
            )
        return
    parts: dict[int, Rows] = {}
    for prefix, (key, value) in zip(prefixes, chunk, strict=True):
        number, group = places[prefix]
        rows = parts.get(number)
        if rows is None:
            if number not in known:
                continue
            rows = parts[number] = Rows(known[number])
        if rows.family.spans_key_groups:
            rows.groups.append(groups.group(rows.family.slot_of(key)))
            rows.keys.append(key[PHYSICAL_PREFIX_BYTES:-SLOT_BYTES])
        else:
            rows.groups.append(group)
            rows.keys.append(key[PHYSICAL_PREFIX_BYTES:])
        rows.values.append(value)
    yield from parts.values()


class NativeRows:
    """The rows of the stores that `image` names, read from changelogs and SSTs."""

    def __init__(self, storage: Storage, image: Image) -> None:
        self._storage, self._image = storage, image
        # The index of a savepoint has the checksums of all files. A Spark checkpoint only has
        # those of SSTs, in manifests.
        self._sums = {file.source: file.crc32 for file in image.files if file.crc32 is not None}

    @cached_property
    def _targets(self) -> dict[StoreId, VersionId]:
        spark_format = self._image.spark_checkpoint_format
        return {
            StoreId(op.operator, one.partition, one.name): one.version_id(spark_format)
            for op in self._image.operators
            for one in op.stores
        }

    def _files(self, store: StoreId) -> StoreFiles:
        return StoreFiles(self._storage, store, self._image.spark_checkpoint_format)

    def stores(self) -> list[StoreRows]:
        found: list[StoreRows] = []
        for store, target in self._targets.items():
            version = open_version(self._files(store), target)
            last = version.plan.newest
            if last is None:
                raise FormatError(f"store {store} has no version")
            groups = last.key_groups
            found.append(
                StoreRows(
                    store=store,
                    families=version.families,
                    scalable=groups.scalable,
                    reason=groups.reason,
                )
            )
        return sorted(found, key=lambda rows: rows.store)

    def rows(self, store: StoreRows) -> Iterator[Rows]:
        for chunk in self.chunks(store):
            yield from self.split(chunk, store)

    def split(self, chunk: list[Entry], store: StoreRows) -> Iterator[Rows]:
        """Sort some entries by column family. Leaves out families that the job has dropped."""
        groups = self.key_groups
        return _split(
            chunk, {family.id: family for family in store.families}, _Places(groups), groups
        )

    def chunks(self, store: StoreRows) -> Iterator[list[Entry]]:
        """Yield the same rows as physical keys and values, of all column families, ascending by
        key.
        """
        version = open_version(self._files(store.store), self._targets[store.store], self._sums)
        with entry_chunks(version) as chunks:
            yield from chunks

    @property
    def key_groups(self) -> KeyGroups:
        """The key groups of what is read."""
        image = self._image
        if image.max_parallelism is None or image.key_group_base is None:
            raise FormatError("millpond/format.json is not there: nothing tells the key groups")
        return KeyGroups(image.max_parallelism, image.key_group_base)
