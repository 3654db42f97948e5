"""Writes what Spark's driver writes: the query's id, operator metadata, schemas, the two logs."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from integration.harness import Schema
from integration.jvm import MILLPOND
from integration.simulation.families import Kind, Shape
from millpond.format import spark_names
from millpond.storage import Storage

_SCHEMA_KEY = "state/0/_stateSchema/default/0_11111111-1111-1111-1111-111111111111"
_TYPES = {
    "string": "string",
    "bigint": "long",
    "boolean": "boolean",
    "void": "void",
    "double": "double",
}


def write_metadata(storage: Storage, root: str, shape: Shape, partitions: int) -> None:
    """Write the files that exist before the first batch."""
    storage.put_bytes(
        spark_names.QUERY_METADATA_KEY, b'{"id":"8a3b7c9e-0000-4000-8000-000000000001"}'
    )
    store: dict[str, Any] = {
        "storeName": "default",
        "numColsPrefixKey": 0,
        "numPartitions": partitions,
    }
    body: dict[str, Any] = {
        "operatorInfo": {"operatorId": 0, "operatorName": shape.operator},
        "stateStoreInfo": [store],
    }
    if not shape.has_families:
        storage.put_bytes(
            spark_names.operator_metadata_v1_key(0), f"v1\n{json.dumps(body)}".encode()
        )
        data = (
            _text("v2")
            + _chunked(_columns(shape.schema.key))
            + _chunked(_columns(shape.schema.value))
        )
        storage.put_bytes("state/0/0/_metadata/schema", data)
        return
    variables = [{"stateName": n, "stateVariableType": t} for n, t in shape.variables.items()]
    body["operatorPropertiesJson"] = json.dumps({"stateVariables": variables})
    store["stateSchemaFilePaths"] = [f"{root}/{_SCHEMA_KEY}"]
    storage.put_bytes(
        f"{spark_names.operator_metadata_v2_prefix(0)}0", f"v2\n{json.dumps(body)}".encode()
    )
    families = b"".join(_family(kind) for kind in shape.kinds.values())
    storage.put_bytes(_SCHEMA_KEY, _text("v3") + struct.pack(">i", len(shape.kinds)) + families)


def write_offsets(storage: Storage, batch: int, partitions: int) -> None:
    """Begin the batch in the offset log."""
    conf = {
        "spark.sql.streaming.stateStore.providerClass": MILLPOND,
        "spark.sql.shuffle.partitions": str(partitions),
    }
    offsets = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
    storage.put_bytes(
        spark_names.offsets_key(batch), f'v1\n{offsets}\n{{"offset":{batch}}}'.encode()
    )


def write_commit(
    storage: Storage, batch: int, ids: Sequence[str | None], spark_format: int
) -> None:
    """Commit the batch in the commit log."""
    commit = 'v1\n{"nextBatchWatermarkMs":0}'
    if spark_format == 2:
        commit = "v2\n" + json.dumps(
            {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[text] for text in ids]}}
        )
    storage.put_bytes(spark_names.commits_key(batch), commit.encode())


def purge_logs(storage: Storage, first: int) -> None:
    """Remove the batches before `first` from both logs, as Spark does when a batch begins."""
    for prefix in (spark_names.COMMITS_DIR, spark_names.OFFSETS_DIR):
        names = [info.key for info in storage.list(f"{prefix}/")]
        numbers = [(key, key.rpartition("/")[2]) for key in names]
        storage.delete([key for key, name in numbers if name.isdigit() and int(name) < first])


def read_ids(storage: Storage, batch: int) -> tuple[str, ...]:
    """Return the ids in the commit of a batch, by partition."""
    commit = storage.read(spark_names.commits_key(batch)).decode()
    return tuple(one[0] for one in json.loads(commit.split("\n")[1])["stateUniqueIds"]["0"])


def newest_commit(storage: Storage) -> int:
    """Return the newest batch in the commit log."""
    names = (info.key.rpartition("/")[2] for info in storage.list("commits/"))
    return max(int(name) for name in names if name.isdigit())


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def _chunked(value: object) -> bytes:
    return struct.pack(">i", 1) + _text(json.dumps(value))


def _columns(ddl: str) -> dict[str, Any]:
    fields = []
    for column in ddl.split(", "):
        name, _, what = column.removesuffix(" not null").partition(" ")
        if what.startswith("struct<"):
            kind: Any = _columns(what[len("struct<") : -1].replace(": ", " "))
        else:
            kind = _TYPES[what]
        nullable = not column.endswith(" not null")
        fields.append({"name": name, "type": kind, "nullable": nullable, "metadata": {}})
    return {"type": "struct", "fields": fields}


def _spec(schema: Schema) -> dict[str, Any]:
    what = schema.spec["type"]
    if what == "prefix":
        return {
            "keyStateEncoderType": "PrefixKeyScanStateEncoderSpec",
            "numColsPrefixKey": schema.spec["columns"],
        }
    if what == "range":
        return {
            "keyStateEncoderType": "RangeKeyScanStateEncoderSpec",
            "orderingOrdinals": schema.spec["ordinals"],
        }
    names = {
        "none": "NoPrefixKeyStateEncoderSpec",
        "ts_prefix": "TimestampAsPrefixKeyStateEncoderSpec",
        "ts_postfix": "TimestampAsPostfixKeyStateEncoderSpec",
    }
    return {"keyStateEncoderType": names[what]}


def _family(kind: Kind) -> bytes:
    key = struct.pack(">h", 0) + _chunked(_columns(kind.schema.key))
    value = struct.pack(">h", 0) + _chunked(_columns(kind.schema.value))
    return _text(kind.name) + key + value + _chunked(_spec(kind.schema)) + struct.pack(">i", 0)
