"""Builds Spark checkpoints without a JVM whose keys and values are rows of Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millpond.model.ids import StoreId
from millpond.rows.encode import encode_rows
from millpond.spark.types import Atom, Field, Struct
from tests.checkpoints import CheckpointBuilder, utf

KEY = Struct((Field("k", Atom("long")),))
VALUE = Struct((Field("n", Atom("string")),))


class RowsBuilder(CheckpointBuilder):
    """Versions 1, 2, ... of partition p each add the key `100 * p + version`.

    Each third version instead writes the key of the version before it again.
    """

    def _number(self, store: StoreId, version: int) -> int:
        return 100 * store.partition + version - (1 if version % 3 == 0 else 0)

    def schema(self) -> bytes:
        fields = (("k", "long"), ("n", "string"))
        texts = [
            f'{{"type":"struct","fields":[{{"name":"{name}","type":"{kind}"}}]}}'
            for name, kind in fields
        ]
        return utf("v2") + b"".join((1).to_bytes(4, "big") + utf(text) for text in texts)

    def keys(self, version: int) -> int:
        return version - version // 3

    def key(self, store: StoreId, version: int) -> bytes:
        slot = self.groups.slot_ranges(store.partition, self.partitions)[0][0]
        (row,) = encode_rows(pa.array([{"k": self._number(store, version)}]), KEY).to_pylist()
        return slot.to_bytes(2, "big") + b"\0\0\0" + bytes(row)

    def value(self, store: StoreId, version: int) -> bytes:
        (row,) = encode_rows(pa.array([{"n": f"of {version}"}]), VALUE).to_pylist()
        return b"\0" + bytes(row)


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
