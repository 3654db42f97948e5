"""The rows of a join in state format 4 as they lie in storage, and the state that the shim makes of
them."""

from __future__ import annotations

import json
import struct
import tempfile
from typing import Any

import pyarrow as pa

from millpond.format.changelog import ChangelogReader, Op
from millpond.local import rocks
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.model.physical_key import RESERVED_SLOT
from millpond.rows.hashing import hash_rows
from millpond.spark.types import Atom, Field, Struct
from millpond.storage import LocalStorage
from millpond.store.files import StoreFiles
from millpond.store.restore.execute import Fetching, lay_out, lay_out_sources
from millpond.store.restore.plan import plan_restore

# A join in state format 4. Millpond knows by these names which partition a row belongs to.
POINT = ColumnFamily("left-keyToNumValues", 1, "point")
TIMED = ColumnFamily("left-tsWithKey", 2, "time-first", internal=True)
FAMILIES = {0: ColumnFamily("default", 0, "point"), 1: POINT, 2: TIMED}
SCHEMA_KEY = "state/0/_stateSchema/default/0_11111111-1111-1111-1111-111111111111"
HASHES = hash_rows(pa.array([{"k": n} for n in range(100)]), Struct((Field("k", Atom("long")),)))
Row = tuple[int, bool]  # number; whether it lies in the family that spans key groups
State = dict[bytes, bytes]  # physical key -> value


def physical(row: Row, groups: KeyGroups) -> bytes:
    number, timed = row
    slot = groups.slot(group_of(row, groups)).to_bytes(2, "big")
    key = b"\0" + struct.pack("<qq", 0, number)  # an UnsafeRow of one long
    if timed:
        time = (number * 37 + (1 << 63)).to_bytes(8, "big")
        return RESERVED_SLOT.to_bytes(2, "big") + b"\0\2" + time + key + slot
    return slot + b"\0\1" + key


def group_of(row: Row, groups: KeyGroups) -> int:
    return int(HASHES[row[0]]) % groups.max_parallelism


def schema_file() -> bytes:
    """Return a schema file of Spark, version 3, with the column families of the join."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def chunked(value: object) -> bytes:
        return struct.pack(">i", 1) + text(json.dumps(value))

    def columns(*names: str) -> object:
        return {
            "type": "struct",
            "fields": [
                {"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names
            ],
        }

    body = text("v3") + struct.pack(">i", 2)
    for family, spec, key in (
        (POINT, "NoPrefixKeyStateEncoderSpec", columns("k")),
        (TIMED, "TimestampAsPrefixKeyStateEncoderSpec", columns("k", "ts")),
    ):
        body += (
            text(family.name)
            + struct.pack(">h", 0)
            + chunked(key)
            + struct.pack(">h", 0)
            + chunked(columns("v"))
        )
        body += chunked({"keyStateEncoderType": spec}) + struct.pack(">i", 0)
    return body


def owned(key: bytes, slots: Any) -> bool:
    return any(a <= FAMILIES[key[3]].slot_of(key) < b for a, b in slots)


def materialise(
    storage: LocalStorage, store: StoreId, version: VersionId, spark_format: int
) -> State:
    """Return the state that the shim makes of a version.

    The shim opens the snapshot, or the sources of a composed one. Then it applies the changelogs.
    """
    files = StoreFiles(storage, store, spark_format)
    files.refresh()
    plan = plan_restore(files, version)
    state: State = {}
    with tempfile.TemporaryDirectory() as directory:
        if plan.manifest is not None and plan.manifest.composed:
            laid_out = lay_out_sources(
                storage, plan.manifest, f"{directory}/db", Fetching(verify_checksums=True)
            )
            for path, source in zip(laid_out.directories, plan.manifest.sources, strict=True):
                taken = {k: v for k, v in rocks.scan(path, name="source") if owned(k, source.slots)}
                assert not taken.keys() & state.keys()
                state |= taken
            for path, changelog in zip(laid_out.changelogs, plan.manifest.changelogs, strict=True):
                apply(state, path, changelog.slots)
        elif plan.manifest is not None:
            lay_out(
                storage,
                plan.manifest,
                "manifest",
                f"{directory}/db",
                Fetching(verify_checksums=True),
            )
            state |= dict(rocks.scan(f"{directory}/db", name="manifest"))
        for header in plan.headers:
            local = storage.local_path(files.changelog_info(header.version_id).key)
            assert local is not None
            apply(state, local, None)
    return state


def apply(state: State, path: str, slots: Any) -> None:
    with open(path, "rb") as file:
        for record in ChangelogReader(file, name=path):
            if slots is None or owned(record.key, slots):
                if record.op is Op.PUT:
                    assert record.value is not None
                    state[record.key] = record.value
                else:
                    state.pop(record.key, None)
