"""Builds small but complete Spark checkpoints without a JVM.

It writes Spark's logs, and Millpond's files beside them.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# A test may import it. It writes what otherwise only the shim writes.
import rocksdict

from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader, Op, Record
from millpond.format.format_file import CheckpointFormat, encode_format
from millpond.format.manifest import Manifest, ParentSnapshot, SstRef, encode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo
from millpond.model.key_groups import KeyGroups
from millpond.storage import LocalStorage
from tests.examples import changelog_bytes

PROVIDER = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"


def version_id(store: StoreId, version: int) -> str:
    """Return a made-up id that differs for each store and version."""
    return "" if version == 0 else f"{store.operator:04x}{store.partition:04x}{version:08x}"


def upload(storage: LocalStorage, store: StoreId, path: Path, live: dict[str, Any]) -> SstRef:
    """Put an SST of a RocksDB checkpoint where a snapshot has it. live: what RocksDB says of it."""
    data = path.read_bytes()
    sst = SstRef(
        key=layout.new_sst_name(),
        local_name=path.name,
        size_bytes=len(data),
        crc32=zlib.crc32(data),
        smallest_hex=bytes(live["start_key"]).hex(),
        largest_hex=bytes(live["end_key"]).hex(),
        entries=int(live["num_entries"]),
        deletions=0,
        level=0,
    )
    storage.put_bytes(layout.store_key(store, sst.key), data)
    return sst


def utf(text: str) -> bytes:
    """Return a text as Java's DataOutputStream writes it."""
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def state_schema(key: list[str], value: list[str]) -> bytes:
    """Return a state schema file, version 2, whose columns are whole numbers."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def chunked(columns: list[str]) -> bytes:
        fields = [
            {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in columns
        ]
        return struct.pack(">i", 1) + text(json.dumps({"type": "struct", "fields": fields}))

    return text("v2") + chunked(key) + chunked(value)


@dataclass
class CheckpointBuilder:
    """A query with one aggregation over `partitions` partitions.

    Batch b makes version b + 1. It adds one key in each partition.
    """

    root: Path
    partitions: int = 2
    spark_format: int = 1
    provider: str = PROVIDER
    groups: KeyGroups = field(default_factory=lambda: KeyGroups(16, 2))
    family: str = "default"

    def __post_init__(self) -> None:
        self.storage = LocalStorage(str(self.root), fsync=False)
        self.manifests: dict[StoreId, list[Manifest]] = {}

    def copy_to(self, root: Path) -> CheckpointBuilder:
        """Return an independent copy."""
        shutil.copytree(self.root, root)
        copy = replace(self, root=root)
        copy.manifests = dict(self.manifests)
        return copy

    def stores(self) -> list[StoreId]:
        return [StoreId(0, partition) for partition in range(self.partitions)]

    def build(self, batches: int = 6, snapshots: tuple[int, ...] = (3, 5)) -> CheckpointBuilder:
        """Write everything for `batches` committed batches.

        Each version of `snapshots` has a snapshot.
        """
        self.spark_logs(batches)
        for store in self.stores():
            self.changelogs(store, batches)
            self.manifests[store] = self.snapshots(store, snapshots)
        return self

    def spark_logs(self, batches: int) -> None:
        put = self.storage.put_bytes
        put(spark_names.QUERY_METADATA_KEY, b'{"id":"8a3b7c9e-0000-4000-8000-000000000001"}')
        conf = {
            "spark.sql.streaming.stateStore.providerClass": self.provider,
            "spark.sql.shuffle.partitions": str(self.partitions),
        }
        offsets = json.dumps(
            {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": conf}
        )
        for batch in range(batches):
            put(spark_names.offsets_key(batch), f'v1\n{offsets}\n{{"offset":{batch}}}'.encode())
            if self.spark_format == 1:
                commit = 'v1\n{"nextBatchWatermarkMs":0}'
            else:
                ids = {"0": [[version_id(store, batch + 1)] for store in self.stores()]}
                commit = "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids})
            put(spark_names.commits_key(batch), commit.encode())
        if self.spark_format == 1:
            put(layout.operator_record_key(0), b"")
        operator = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [
                {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.partitions}
            ],
        }
        put(spark_names.operator_metadata_v1_key(0), f"v1\n{json.dumps(operator)}".encode())
        put("state/0/0/_metadata/schema", self.schema())
        put(layout.SINK_KEY, b'{"sink":"NoopTable"}')
        put(
            layout.FORMAT_KEY,
            encode_format(
                CheckpointFormat(
                    max_parallelism=self.groups.max_parallelism,
                    base=self.groups.base,
                    created_by="test",
                    created_ms=1,
                )
            ),
        )

    def schema(self) -> bytes:
        """Return Spark's schema file.

        It does not describe the made-up keys and values.
        """
        return state_schema(["k"], ["count"])

    def value(self, store: StoreId, version: int) -> bytes:
        """Return the value that version `version` puts under its key."""
        return b"\0value"

    def keys(self, version: int) -> int:
        """Return how many keys a store has at `version`."""
        return version

    def key(self, store: StoreId, version: int) -> bytes:
        """Return the physical key that version `version` adds."""
        slot = self.groups.slot_ranges(store.partition, self.partitions)[0][0]
        return slot.to_bytes(2, "big") + b"\0\0" + b"\0key-%08d" % version

    def _key_groups(self) -> KeyGroupsInfo:
        return KeyGroupsInfo(
            max_parallelism=self.groups.max_parallelism,
            base=self.groups.base,
            partitions=self.partitions,
        )

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        return ChangelogHeader(
            version=version,
            id=version_id(store, version),
            lineage_base=version - 1,
            lineage=(version_id(store, version - 1),),
            run_id="run",
            store=store,
            key_groups=self._key_groups(),
            column_families=(ColumnFamily(self.family, 0, "point"),),
            keys=self.keys(version),
            created_by="test",
        )

    def changelogs(self, store: StoreId, versions: int) -> None:
        for version in range(1, versions + 1):
            records = [Record(Op.PUT, self.key(store, version), self.value(store, version))]
            key = layout.changelog_key(
                store, VersionId(version, version_id(store, version)), self.spark_format
            )
            self.storage.put_bytes(key, changelog_bytes(self.header(store, version), records))

    def snapshots(self, store: StoreId, versions: tuple[int, ...]) -> list[Manifest]:
        """Write a snapshot at each of `versions`.

        A snapshot is SSTs and a manifest. It reuses the SSTs of earlier snapshots.
        """
        published: list[Manifest] = []
        refs: dict[str, SstRef] = {}
        with tempfile.TemporaryDirectory() as temporary:
            options = rocksdict.Options(raw_mode=True)
            options.set_disable_auto_compactions(True)
            db = rocksdict.Rdict(f"{temporary}/db", options)
            self.history(db, store)
            done = 0
            for version in versions:
                for number in range(done + 1, version + 1):
                    db[self.key(store, number)] = self.value(store, number)
                done = version
                db.flush()
                directory = Path(temporary) / f"checkpoint-{version}"
                rocksdict.Checkpoint(db).create_checkpoint(str(directory))
                files = {str(f["name"]).lstrip("/"): f for f in db.live_files()}
                for path in sorted(directory.glob("*.sst")):
                    if path.name not in refs:
                        refs[path.name] = upload(self.storage, store, path, files[path.name])
                published.append(self._manifest(store, version, directory, refs, published))
            db.close()
        for manifest in published:
            self.publish(manifest)
        return published

    def history(self, db: Any, store: StoreId) -> None:
        """Do what the RocksDB of a store did before the first snapshot."""

    def _manifest(
        self,
        store: StoreId,
        version: int,
        directory: Path,
        refs: dict[str, SstRef],
        before: list[Manifest],
    ) -> Manifest:
        (rocksdb_manifest,) = directory.glob("MANIFEST-*")
        return Manifest(
            store=store,
            version=version,
            id=version_id(store, version),
            parent_snapshot=ParentSnapshot(before[-1].version, before[-1].id) if before else None,
            created_ms=1_700_000_000_000,
            created_by="test",
            key_groups=self._key_groups(),
            slots=tuple(self.groups.slot_ranges(store.partition, self.partitions)),
            column_families=(ColumnFamily(self.family, 0, "point"),),
            keys=self.keys(version),
            ssts=tuple(refs[path.name] for path in sorted(directory.glob("*.sst"))),
            rocksdb_manifest_name=rocksdb_manifest.name,
            rocksdb_manifest=rocksdb_manifest.read_bytes(),
        )

    def publish(self, manifest: Manifest) -> Manifest:
        """Write a manifest."""
        key = layout.manifest_key(manifest.store, manifest.version_id, self.spark_format)
        self.storage.put_bytes(key, encode_manifest(manifest))
        return manifest

    def changed(self, manifest: Manifest, **changes: object) -> Manifest:
        """Publish a manifest with some fields changed, and with a right seal."""
        return self.publish(replace(manifest, **changes))  # type: ignore[arg-type]


def tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a directory, by path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
