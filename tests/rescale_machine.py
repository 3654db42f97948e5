"""A state machine: random batches, snapshots, rescales, crashes in rescales, and collections.

A dict for each version is the model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

# A test may import it. It writes what otherwise only the shim writes.
import rocksdict
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.agent.service import AgentService
from millpond.errors import MillpondError
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader, Op, Record
from millpond.format.format_file import CheckpointFormat, decode_format, encode_format
from millpond.format.manifest import Manifest, encode_manifest
from millpond.model.ids import StoreId, VersionId, new_id
from millpond.model.json_fields import KeyGroupsInfo
from millpond.model.key_groups import KeyGroups
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale, undo
from millpond.storage import LocalStorage
from millpond.store.files import StoreFiles
from millpond.store.restore.plan import plan_restore
from tests.agent_driver import call
from tests.checkpoints import PROVIDER, upload
from tests.examples import changelog_bytes
from tests.failing_storage import FailingStorage, Killed
from tests.join_rows import (
    FAMILIES,
    POINT,
    SCHEMA_KEY,
    Row,
    State,
    group_of,
    materialise,
    physical,
    schema_file,
)

BORN_WITH = KeyGroups(48, 6)
# Some of these divide 48, or the number of groups after a rescale. Others do not: then the rescale
# hashes every row anew.
PARTITIONS = (1, 2, 3, 4, 5, 6, 7, 12, 24)
RETAINED = 2


class RescaleMachine(RuleBasedStateMachine):
    """One operator over some partitions.

    `history` holds the state after every committed batch.
    """

    spark_format = 1

    @initialize(
        partitions=st.sampled_from([n for n in PARTITIONS if BORN_WITH.max_parallelism % n == 0]),
        told=st.booleans(),
    )
    def begin(self, partitions: int, told: bool = True) -> None:
        self.told = told  # whether the query tells how many keys each key group has
        self.root = Path(tempfile.mkdtemp(prefix="millpond-rescale-"))
        self.storage = FailingStorage(str(self.root), kills=True)
        self.partitions = partitions
        self.now_ms = 10**13
        self.service = AgentService(clock_ms=lambda: self.now_ms)
        self.groups = BORN_WITH
        self.state: dict[Row, bytes] = {}
        self.history: dict[
            int, tuple[int, KeyGroups, dict[Row, bytes]]
        ] = {}  # version -> partitions, key groups, state
        self.ids: dict[int, list[str]] = {}  # version -> id per partition
        self.batch = -1
        self.storage.put_bytes(
            spark_names.QUERY_METADATA_KEY, b'{"id":"8a3b7c9e-0000-4000-8000-000000000001"}'
        )
        groups = CheckpointFormat(
            max_parallelism=BORN_WITH.max_parallelism,
            base=BORN_WITH.base,
            created_by="test",
            created_ms=1,
        )
        self.storage.put_bytes(layout.FORMAT_KEY, encode_format(groups))
        store = {
            "storeName": "default",
            "numColsPrefixKey": 0,
            "numPartitions": partitions,
            "stateSchemaFilePaths": [f"{self.root}/{SCHEMA_KEY}"],
        }
        operator = {
            "operatorInfo": {"operatorId": 0, "operatorName": "symmetricHashJoin"},
            "stateStoreInfo": [store],
            "operatorPropertiesJson": "",
        }
        key = f"{spark_names.operator_metadata_v2_prefix(0)}0"
        self.storage.put_bytes(key, f"v2\n{json.dumps(operator)}".encode())
        self.storage.put_bytes(SCHEMA_KEY, schema_file())
        self.run_batch({1: b"first"}, set())

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    # ---- what a query does

    def version_of(self, version: int, partition: int) -> VersionId:
        return VersionId(version, self.ids[version][partition] if version else "")

    def info(self) -> KeyGroupsInfo:
        groups = self.groups
        return KeyGroupsInfo(
            max_parallelism=groups.max_parallelism, base=groups.base, partitions=self.partitions
        )

    def group_keys(self, partition: int) -> tuple[int, ...]:
        """Return the number of live keys by key group of the partition, in the user's family."""
        keys = Counter(group_of(row, self.groups) for row in self.state if not row[1])
        return tuple(keys[group] for group in self.groups.groups_of(partition, self.partitions))

    @rule(
        puts=st.dictionaries(st.integers(0, 99), st.binary(max_size=3), max_size=12),
        deletes=st.sets(st.integers(0, 99), max_size=12),
    )
    def run_batch(self, puts: dict[int, bytes], deletes: set[int]) -> None:
        self.batch += 1
        version = self.batch + 1
        changes: list[tuple[Row, bytes | None]] = []
        for number, value in sorted(puts.items()):
            changes += [((number, timed), value) for timed in (False, True)]
        for number in sorted(deletes - puts.keys()):
            changes += [((number, timed), None) for timed in (False, True)]
        for row, changed in changes:
            if changed is None:
                self.state.pop(row, None)
            else:
                self.state[row] = changed
        self.ids[version] = [new_id() for _ in range(self.partitions)]
        for partition in range(self.partitions):
            self.changelog(partition, self.version_of(version, partition), changes)
        self.history[version] = (self.partitions, self.groups, dict(self.state))
        self.log()

    def changelog(
        self, partition: int, version: VersionId, changes: list[tuple[Row, bytes | None]]
    ) -> None:
        mine = [
            Record(Op.DELETE if value is None else Op.PUT, physical(row, self.groups), value)
            for row, value in changes
            if group_of(row, self.groups) % self.partitions == partition
        ]
        store = StoreId(0, partition)
        parent = self.version_of(version.version - 1, partition)
        header = ChangelogHeader(
            version=version.version,
            id=version.id,
            lineage_base=version.version - 1,
            lineage=(parent.id,),
            run_id="run",
            store=store,
            key_groups=self.info(),
            column_families=tuple(FAMILIES.values()),
            keys=sum(self.group_keys(partition)) if self.told else -1,
            group_keys=self.group_keys(partition) if self.told else None,
            created_by="test",
        )
        self.storage.put_bytes(
            layout.changelog_key(store, version, self.spark_format), changelog_bytes(header, mine)
        )

    @rule(partitions=st.sets(st.integers(0, 23), min_size=1))
    def batch_is_gone_back_from(self, partitions: set[int]) -> None:
        """Leave changelogs of a batch that Spark's logs know nothing of any more.

        Some of the partitions committed it, or all.
        """
        for partition in partitions:
            if partition < self.partitions:
                stale: list[tuple[Row, bytes | None]] = [
                    ((n, timed), b"stale") for n in range(100) for timed in (False, True)
                ]
                self.changelog(partition, VersionId(self.batch + 2, new_id()), stale)

    def log(self) -> None:
        conf = {
            "spark.sql.streaming.stateStore.providerClass": PROVIDER,
            "spark.sql.shuffle.partitions": str(self.partitions),
        }
        offsets = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
        self.storage.put_bytes(
            spark_names.offsets_key(self.batch),
            f'v1\n{offsets}\n{{"offset":{self.batch}}}'.encode(),
        )
        commit = 'v1\n{"nextBatchWatermarkMs":0}'
        if self.spark_format == 2:
            ids = {"0": [[text] for text in self.ids[self.batch + 1]]}
            commit = "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids})
        self.storage.put_bytes(spark_names.commits_key(self.batch), commit.encode())

    @rule(partition=st.integers(0, 23))
    def snapshot(self, partition: int) -> None:
        """Publish an ordinary snapshot of the newest version, as maintenance does."""
        partition %= self.partitions
        store, version = StoreId(0, partition), self.version_of(self.batch + 1, partition)
        mine = sorted(
            (physical(row, self.groups), value)
            for row, value in self.state.items()
            if group_of(row, self.groups) % self.partitions == partition
        )
        with tempfile.TemporaryDirectory() as directory:
            db = rocksdict.Rdict(f"{directory}/db", rocksdict.Options(raw_mode=True))
            for key, value in mine:
                db[key] = value
            db.flush()
            rocksdict.Checkpoint(db).create_checkpoint(f"{directory}/checkpoint")
            live = {str(f["name"]).lstrip("/"): f for f in db.live_files()}
            db.close()
            ssts = [
                upload(self.storage, store, path, live[path.name])
                for path in sorted(Path(f"{directory}/checkpoint").glob("*.sst"))
            ]
            (rocksdb_manifest,) = Path(f"{directory}/checkpoint").glob("MANIFEST-*")
            manifest = Manifest(
                store=store,
                version=version.version,
                id=version.id,
                parent_snapshot=None,
                created_ms=1,
                created_by="test",
                key_groups=self.info(),
                slots=tuple(self.groups.slot_ranges(partition, self.partitions)),
                column_families=tuple(FAMILIES.values()),
                keys=sum(1 for k, _ in mine if k[3] == POINT.id),
                group_keys=self.group_keys(partition) if self.told else None,
                ssts=tuple(ssts),
                rocksdb_manifest_name=rocksdb_manifest.name,
                rocksdb_manifest=rocksdb_manifest.read_bytes(),
            )
            self.storage.put_bytes(
                layout.manifest_key(store, version, self.spark_format), encode_manifest(manifest)
            )

    @rule(days=st.booleans())
    def collect(self, days: bool) -> None:
        """Collect in every live partition.

        With `days`, so much time has passed that no grace period protects a file.
        """
        self.now_ms += 10**12 if days else 1
        for partition in range(self.partitions):
            anchor = self.version_of(self.batch + 1, partition)
            store = {
                "root": f"file:{self.root}/state",
                "operator": 0,
                "partition": partition,
                "name": "default",
                "run_id": "run",
                "local_dir": str(self.root / "local"),
                "checkpoint_format": self.spark_format,
                "partitions_hint": self.partitions,
                "options": {},
                "retain_versions": RETAINED,
                "min_deltas_for_snapshot": 2,
                "maintenance_interval_ms": 0,
            }
            anchor_id = anchor.id if self.spark_format == 2 else None
            call(
                self.service,
                "collect",
                store=store,
                anchor_version=anchor.version,
                anchor_id=anchor_id,
                force=True,
            )
        self.history = {
            v: kept for v, kept in self.history.items() if v > self.batch + 1 - RETAINED
        }
        # Spark's logs keep the same number of batches.
        for batch in range(self.batch - RETAINED):
            for key in (spark_names.offsets_key(batch), spark_names.commits_key(batch)):
                (self.root / key).unlink(missing_ok=True)

    # ---- rescales

    def rescaled(self, partitions: int, batch: int) -> None:
        self.partitions, self.batch = partitions, batch
        self.groups = decode_format(self.storage.read(layout.FORMAT_KEY)).key_groups
        self.history[batch + 1] = (partitions, self.groups, dict(self.state))
        self.ids[batch + 1] = [self.made_id(p) for p in range(partitions)]

    def made_id(self, partition: int) -> str:
        files = StoreFiles(self.storage, StoreId(0, partition), self.spark_format)
        listing = files.refresh()
        found = [
            v for v in (*listing.manifests, *listing.changelogs) if v.version == self.batch + 1
        ]
        commit = self.storage.read(spark_names.commits_key(self.batch)).decode()
        if self.spark_format == 2:
            text: str = json.loads(commit.split("\n")[1])["stateUniqueIds"]["0"][partition][0]
            assert VersionId(self.batch + 1, text) in found
            return text
        return (
            files.read_manifest(found[0]).id
            if listing.manifests.keys() & found
            else files.header(found[0]).id
        )

    @rule(partitions=st.sampled_from(PARTITIONS))
    def rescale(self, partitions: int) -> None:
        if partitions == self.partitions:
            with pytest.raises(MillpondError, match="already"):
                rescale(self.storage, "it", partitions)
            return
        report = rescale(self.storage, "it", partitions)
        assert report.current == self.partitions and not report.undone
        self.rescaled(partitions, report.batch)

    @rule(partitions=st.sampled_from(PARTITIONS), steps=st.integers(0, 40), finish=st.booleans())
    def rescale_is_killed(self, partitions: int, steps: int, finish: bool) -> None:
        if partitions == self.partitions:
            return
        self.storage.left = steps
        try:
            report = rescale(self.storage, "it", partitions)
        except Killed:
            self.storage.left = -1
            offsets = self.storage.read(spark_names.offsets_key(self.batch)).decode()
            assert f'"{self.partitions}"' in offsets  # the rescale left the last batch alone
            if finish:
                if self.switched():
                    assert not undo(self.storage, "it")
                    self.rescaled(partitions, self.batch + 1)
                else:
                    self.rescaled(partitions, rescale(self.storage, "it", partitions).batch)
            else:
                switched = self.switched()
                undone = undo(self.storage, "it")
                assert not (undone and switched)
                if switched:
                    self.rescaled(partitions, self.batch + 1)
                else:
                    assert not self.exists(spark_names.offsets_key(self.batch + 1))
            assert not self.exists(layout.RESCALE_JOURNAL_KEY)
        else:
            self.storage.left = -1
            self.rescaled(partitions, report.batch)

    def switched(self) -> bool:
        return self.exists(spark_names.commits_key(self.batch + 1))

    def exists(self, key: str) -> bool:
        return (self.root / key).exists()

    # ---- what must hold

    @invariant()
    def every_retained_version_is_what_it_was(self) -> None:
        if not hasattr(self, "root"):
            return
        for version in sorted(self.history)[-RETAINED - 1 :]:
            partitions, groups, rows = self.history[version]
            expected = {physical(row, groups): value for row, value in rows.items()}
            found: State = {}
            for partition in range(partitions):
                version_id = self.version_of(version, partition)
                if self.spark_format == 1:
                    version_id = VersionId(version)
                part = materialise(
                    self.storage, StoreId(0, partition), version_id, self.spark_format
                )
                places = [FAMILIES[key[3]].slot_of(key) for key in part]
                assert all(groups.group(slot) % partitions == partition for slot in places)
                found |= part
            assert found == expected, version

    @invariant()
    def keys_that_are_told_are_there(self) -> None:
        if not hasattr(self, "root"):
            return
        for partition in range(self.partitions):
            files = StoreFiles(self.storage, StoreId(0, partition), self.spark_format)
            files.refresh()
            id = self.ids[self.batch + 1][partition] if self.spark_format == 2 else ""
            plan = plan_restore(files, VersionId(self.batch + 1, id))
            newest = plan.headers[-1] if plan.headers else plan.manifest
            assert newest is not None and (newest.group_keys is not None or not self.told)
            if newest.group_keys is not None:
                assert newest.group_keys == self.group_keys(partition) and newest.keys == sum(
                    newest.group_keys
                )

    @precondition(lambda self: hasattr(self, "root"))
    @rule()
    def verify_finds_nothing(self) -> None:
        assert verify(LocalStorage(str(self.root)), "it").problems == []


class RescaleMachineWithIds(RescaleMachine):
    spark_format = 2
