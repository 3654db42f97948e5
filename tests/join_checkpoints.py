"""Builds Spark checkpoints of a join without a JVM."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from millpond.format import spark_names
from millpond.model.ids import StoreId
from millpond.rows.encode import encode_rows
from millpond.spark.types import Atom, Field, Struct
from tests.row_checkpoints import HashedBuilder, schema_file

ROWS, COUNTS = "left-keyWithIndexToValue", "left-keyToNumValues"
_KEY = Struct((Field("field0", Atom("long")),))
_NUMBERED = Struct((*_KEY.fields, Field("index", Atom("long"))))
_ROW = Struct((Field("id", Atom("long")), Field("n", Atom("string"))))
_COUNT = Struct((Field("value", Atom("long")),))


class JoinBuilder(HashedBuilder):
    """The left side of a join by `id`, in state format 1: a row for each key, and its count.

    Spark calls the key's column `field0`.
    """

    key_type = _KEY

    def key_row(self, number: int) -> dict[str, Any]:
        return {"field0": number}

    def stores(self) -> list[StoreId]:
        return [StoreId(0, n, name) for n in range(self.partitions) for name in (ROWS, COUNTS)]

    def key(self, store: StoreId, version: int) -> bytes:
        whole = super().key(store, version)
        if store.name == COUNTS:
            return whole
        keys = pa.array([{"field0": self._number(store, version), "index": 0}])
        (row,) = encode_rows(keys, _NUMBERED).to_pylist()
        return whole[:5] + bytes(row)

    def value(self, store: StoreId, version: int) -> bytes:
        if store.name == COUNTS:
            (row,) = encode_rows(pa.array([{"value": 1}]), _COUNT).to_pylist()
        else:
            values = pa.array([{"id": self._number(store, version), "n": f"of {version}"}])
            (row,) = encode_rows(values, _ROW).to_pylist()
        return b"\0" + bytes(row)

    def spark_logs(self, batches: int) -> None:
        super().spark_logs(batches)
        described = [
            {"storeName": name, "numColsPrefixKey": 0, "numPartitions": self.partitions}
            for name in (ROWS, COUNTS)
        ]
        operator = {
            "operatorInfo": {"operatorId": 0, "operatorName": "symmetricHashJoin"},
            "stateStoreInfo": described,
        }
        put = self.storage.put_bytes
        put(spark_names.operator_metadata_v1_key(0), f"v1\n{json.dumps(operator)}".encode())
        for name, key, value in ((ROWS, _NUMBERED, _ROW), (COUNTS, _KEY, _COUNT)):
            put(spark_names.state_schema_key(StoreId(0, 0, name)), schema_file(key, value))
