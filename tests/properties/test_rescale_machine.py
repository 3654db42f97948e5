"""Random batches, snapshots, rescales, crashes in rescales, and collections.

A dict for each version is the model.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

# A test may import it. It writes what otherwise only the shim writes.
import rocksdict
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.agent.service import AgentService
from millpond.errors import MillpondError
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, ChangelogReader, Op, Record
from millpond.format.format_file import CheckpointFormat, decode_format, encode_format
from millpond.format.manifest import Manifest, SstRef, encode_manifest
from millpond.local import rocks
from millpond.model.ids import StoreId, VersionId, new_id
from millpond.model.json_fields import RESERVED_SLOT, ColumnFamily, KeyGroupsInfo
from millpond.model.key_groups import KeyGroups
from millpond.operations.inspect import verify
from millpond.operations.rescale import rescale, undo
from millpond.rows.hashing import hash_rows
from millpond.spark.types import Atom, Field, Struct
from millpond.storage import LocalStorage
from millpond.store.files import StoreFiles
from millpond.store.restore.execute import Fetching, lay_out, lay_out_sources
from millpond.store.restore.plan import plan_restore
from tests.agent_driver import call
from tests.checkpoints import PROVIDER
from tests.examples import changelog_bytes
from tests.failing_storage import FailingStorage, Killed

BORN_WITH = KeyGroups(48, 6)
# Some of these divide 48, or the number of groups after a rescale. Others do not: then the rescale
# hashes every row anew.
PARTITIONS = (1, 2, 3, 4, 5, 6, 7, 12, 24)
RETAINED = 2
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
            layout.QUERY_METADATA_KEY, b'{"id":"8a3b7c9e-0000-4000-8000-000000000001"}'
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
        key = f"{layout.operator_metadata_v2_prefix(0)}0"
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
            layout.offsets_key(self.batch), f'v1\n{offsets}\n{{"offset":{self.batch}}}'.encode()
        )
        commit = 'v1\n{"nextBatchWatermarkMs":0}'
        if self.spark_format == 2:
            ids = {"0": [[text] for text in self.ids[self.batch + 1]]}
            commit = "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids})
        self.storage.put_bytes(layout.commits_key(self.batch), commit.encode())

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
            ssts = []
            for path in sorted(Path(f"{directory}/checkpoint").glob("*.sst")):
                data, file = path.read_bytes(), live[path.name]
                ref = SstRef(
                    key=layout.new_sst_name(),
                    local_name=path.name,
                    size_bytes=len(data),
                    crc32=zlib.crc32(data),
                    smallest_hex=bytes(file["start_key"]).hex(),
                    largest_hex=bytes(file["end_key"]).hex(),
                    entries=int(file["num_entries"]),
                    deletions=0,
                    level=0,
                )
                self.storage.put_bytes(layout.store_key(store, ref.key), data)
                ssts.append(ref)
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
            for key in (layout.offsets_key(batch), layout.commits_key(batch)):
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
        commit = self.storage.read(layout.commits_key(self.batch)).decode()
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
            offsets = self.storage.read(layout.offsets_key(self.batch)).decode()
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
                    assert not self.exists(layout.offsets_key(self.batch + 1))
            assert not self.exists(layout.RESCALE_JOURNAL_KEY)
        else:
            self.storage.left = -1
            self.rescaled(partitions, report.batch)

    def switched(self) -> bool:
        return self.exists(layout.commits_key(self.batch + 1))

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


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
def test_a_lost_attempt_does_not_survive_a_rescale_that_hashes_anew(
    machine: type[RescaleMachine],
) -> None:
    # The attempt has the version that the rescale gives its batch, and the key groups before it.
    run = machine()
    run.begin(partitions=1)
    try:
        run.rescale(partitions=7)
        run.batch_is_gone_back_from(partitions={0, 5})
        run.rescale(partitions=24)
        run.every_retained_version_is_what_it_was()
        run.verify_finds_nothing()
    finally:
        run.teardown()


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
def test_a_removed_partition_of_which_a_changelog_is_still_needed_is_not_damaged(
    machine: type[RescaleMachine],
) -> None:
    # Version 2 has expired, and its snapshots are gone. Version 3 needs version 1 of partition 4.
    run = machine()
    run.begin(partitions=6)
    try:
        run.rescale(partitions=12)
        run.rescale(partitions=4)
        run.run_batch(deletes=set(), puts={0: b"a"})
        run.collect(days=False)
        assert run.exists("state/0/4") and not list(run.root.glob("state/0/4/2*"))
        run.every_retained_version_is_what_it_was()
        run.verify_finds_nothing()
    finally:
        run.teardown()


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
@pytest.mark.parametrize("steps", [(5, 1, 2), (5, 10, 2), (5, 1, 3)])
def test_a_rehash_of_which_a_later_rescale_made_snapshots_expires(
    machine: type[RescaleMachine], steps: tuple[int, ...]
) -> None:
    # Version 2 has expired. Version 4, or its pin, keeps changelogs of version 2 with all rows.
    run = machine()
    run.begin(partitions=1)
    try:
        for partitions in steps:
            run.rescale(partitions=partitions)
        run.run_batch(deletes=set(), puts={0: b"a"})
        run.collect(days=False)
        assert list(run.root.glob("state/0/0/2*")), "the case is what it says"
        run.every_retained_version_is_what_it_was()
        run.verify_finds_nothing()
    finally:
        run.teardown()


class DeepRescaleMachine(RescaleMachine):
    """The same, with more examples."""


class DeepRescaleMachineWithIds(RescaleMachineWithIds):
    """The same, with more examples."""


def _settings(max_examples: int) -> settings:
    return settings(max_examples=max_examples, stateful_step_count=14, deadline=None)


TestRescaleMachine = RescaleMachine.TestCase
TestRescaleMachine.settings = _settings(5)
TestRescaleMachineWithIds = RescaleMachineWithIds.TestCase
TestRescaleMachineWithIds.settings = _settings(5)
TestMoreOfRescaleMachine = pytest.mark.deep(DeepRescaleMachine.TestCase)
TestMoreOfRescaleMachine.settings = _settings(12)
TestMoreOfRescaleMachineWithIds = pytest.mark.deep(DeepRescaleMachineWithIds.TestCase)
TestMoreOfRescaleMachineWithIds.settings = _settings(12)
