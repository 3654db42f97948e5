"""Builds Spark checkpoints without a JVM whose keys and values are rows of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from millpond.format import spark_names
from millpond.model.ids import StoreId
from millpond.model.key_groups import KeyGroups
from millpond.rows.arrow_types import struct_type
from millpond.rows.encode import encode_rows
from millpond.rows.hashing import groups_of, hash_rows
from millpond.spark.types import Array, Atom, Field, SparkType, Struct
from tests.checkpoints import CheckpointBuilder, utf

KEY = Struct((Field("k", Atom("long")),))
VALUE = Struct((Field("n", Atom("string")),))


def _as_spark(kind: SparkType) -> Any:
    """Return a type as Spark's JSON has it."""
    if isinstance(kind, Struct):
        fields = [{"name": field.name, "type": _as_spark(field.type)} for field in kind.fields]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, Array):
        return {"type": "array", "elementType": _as_spark(kind.element), "containsNull": True}
    assert isinstance(kind, Atom)
    return "interval day to second" if kind.name == "day_time_interval" else kind.name


def schema_file(key: Struct, value: Struct) -> bytes:
    """Return a state schema file, version 2."""
    texts = [json.dumps(_as_spark(kind), separators=(",", ":")) for kind in (key, value)]
    return utf("v2") + b"".join((1).to_bytes(4, "big") + utf(text) for text in texts)


class RowsBuilder(CheckpointBuilder):
    """Versions 1, 2, ... of partition p each add the key of the number `100 * p + version`.

    Each third version instead writes the key of the version before it again.
    """

    key_type = KEY

    def key_row(self, number: int) -> dict[str, Any]:
        """Return the columns of a key by their names in Arrow."""
        return {"k": number}

    def _number(self, store: StoreId, version: int) -> int:
        return 100 * store.partition + version - (1 if version % 3 == 0 else 0)

    def schema(self) -> bytes:
        return schema_file(self.key_type, VALUE)

    def keys(self, version: int) -> int:
        return version - version // 3

    def key(self, store: StoreId, version: int) -> bytes:
        slot = self.groups.slot_ranges(store.partition, self.partitions)[0][0]
        keys = self._rows([self._number(store, version)])
        (row,) = encode_rows(keys, self.key_type).to_pylist()
        return slot.to_bytes(2, "big") + b"\0\0\0" + bytes(row)

    def _rows(self, numbers: Iterable[int]) -> Any:
        return pa.array([self.key_row(n) for n in numbers], struct_type(self.key_type))

    def value(self, store: StoreId, version: int) -> bytes:
        (row,) = encode_rows(pa.array([{"n": f"of {version}"}]), VALUE).to_pylist()
        return b"\0" + bytes(row)


class HashedBuilder(RowsBuilder):
    """As RowsBuilder, with keys that lie where their hashes say. Batch b began at `begun_ms(b)`."""

    candidates = 200  # keys are below it; each partition needs as many as it has versions

    def _number(self, store: StoreId, version: int) -> int:
        return self._numbers(store)[version - (1 if version % 3 == 0 else 0)]

    def _numbers(self, store: StoreId) -> list[int]:
        groups = enumerate(self._groups())
        return [k for k, group in groups if group % self.partitions == store.partition]

    def _groups(self) -> list[int]:
        hashes = hash_rows(self._rows(range(self.candidates)), self.key_type)
        groups: list[int] = groups_of(hashes, self.groups.max_parallelism).tolist()
        return groups

    def key(self, store: StoreId, version: int) -> bytes:
        number = self._number(store, version)
        slot = self.groups.slot(self._groups()[number])
        return slot.to_bytes(2, "big") + super().key(store, version)[2:]

    def spark_logs(self, batches: int) -> None:
        super().spark_logs(batches)
        for batch in range(batches):
            text = self.storage.read(spark_names.offsets_key(batch))
            told = text.replace(b"1700000000000", str(begun_ms(batch)).encode())
            self.storage.put_bytes(spark_names.offsets_key(batch), told)

    def hide(self, first: int, last: int) -> dict[int, dict[str, bytes]]:
        """Take the entries of batches out of Spark's logs. Return them: `show` commits one."""
        hidden = {}
        for batch in range(first, last + 1):
            keys = (spark_names.offsets_key(batch), spark_names.commits_key(batch))
            hidden[batch] = {key: self.storage.read(key) for key in keys}
            self.storage.delete(keys)
        return hidden

    def show(self, entries: dict[str, bytes]) -> None:
        """Write the entries of one batch: that of the commit log comes last."""
        for key, text in entries.items():
            self.storage.put_bytes(key, text)


class ManyPartitions(HashedBuilder):
    """As HashedBuilder, for 40 partitions, or 4 of them."""

    candidates = 1000

    def __post_init__(self) -> None:
        self.groups = KeyGroups(40, 5)
        super().__post_init__()
        self._hashed = super()._groups()

    def _groups(self) -> list[int]:
        return self._hashed


class DistinctBuilder(HashedBuilder):
    """As HashedBuilder, but each version adds a key of its own."""

    def _number(self, store: StoreId, version: int) -> int:
        return self._numbers(store)[version]

    def keys(self, version: int) -> int:
        return version


def begun_ms(batch: int) -> int:
    """Return when a batch of HashedBuilder began, in ms since the epoch."""
    return 1_700_000_000_000 + 1000 * batch


def expected(version: int) -> list[dict[str, Any]]:
    """Return the rows at `version`."""
    rows = []
    for partition in range(2):
        found = {
            100 * partition + v - (1 if v % 3 == 0 else 0): f"of {v}" for v in range(1, version + 1)
        }
        rows += [
            {"partition": partition, "key": {"k": k}, "value": {"n": n}} for k, n in found.items()
        ]
    return rows
