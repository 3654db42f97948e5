"""Random histories of one operator's stores, compared with a model.

A restore finds every retained version. No other file stays for ever.

Two executors write the same store. The second one is a zombie, a speculative attempt or the heir.
The driver records one of the attempts of each version. Sometimes somebody makes the driver begin
again from an older version, while the executors live on. The state is the sequence of commit ids.
So a wrong restore cannot look right.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind, FormatError
from millpond.format import layout
from millpond.format.manifest import decode_manifest
from millpond.model.ids import VersionId
from tests.agent_driver import CallError, Driver, Ids, Provider

RETAIN = 3
GRACE_MS = 60_000
NOWHERE = VersionId(10**6)
EXECUTORS = st.sampled_from([0, 1])
# A damaged store may answer with these kinds. Any other kind is a bug, and so is a wrong state.
DAMAGE_KINDS = {
    ErrorKind.CHANGELOG_MISSING,
    ErrorKind.CHANGELOG_DAMAGED,
    ErrorKind.MANIFEST_DAMAGED,
    ErrorKind.SST_MISSING,
    ErrorKind.SST_DAMAGED,
}


class AgentMachine(RuleBasedStateMachine):
    spark_format = 2
    may_damage = False

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="millpond-machine-"))
        self.offset_ms = 0
        self.service = self.new_service()
        self.locals = 0
        self.damaged = False
        self.states: dict[VersionId, Ids] = {VersionId(0): ()}  # the state that each attempt made
        self.chain: list[VersionId] = [VersionId(0)]  # the recorded attempts, by version
        self.attempts: list[VersionId] = []  # the attempts of the next version
        self.expired = -1  # the newest version that is not retained any more
        self.driver = self.new_driver()
        self.executors = [self.new_provider(), self.new_provider()]
        for provider in self.executors:
            provider.open(0)
        self.at = [VersionId(0), VersionId(0)]
        self.anchors = [VersionId(0), VersionId(0)]  # Spark asked each executor for these

    def new_service(self) -> AgentService:
        return AgentService(clock_ms=lambda: time.time_ns() // 1_000_000 + self.offset_ms)

    def new_driver(self) -> Driver:
        return Driver(self.root / "ckpt", self.spark_format)

    def new_provider(self) -> Provider:
        self.locals += 1
        # No fsync: this test asks only which files there are.
        options = {"gc.graceMs": str(GRACE_MS), "gc.intervalMs": "0", "commit.fsync": "false"}
        return Provider(
            self.service,
            self.root / "ckpt",
            self.root / f"local-{self.locals}",
            spark_format=self.spark_format,
            retain_versions=RETAIN,
            options=options,
            run_id=f"run-{self.locals}",
        )

    def teardown(self) -> None:
        if hasattr(self, "root"):
            try:
                self.finish()
            finally:
                shutil.rmtree(self.root)

    # ---- what Spark does

    @property
    def tip(self) -> VersionId:
        return self.chain[-1]

    def open(self, executor: int, version: VersionId) -> None:
        provider = self.executors[executor]
        state = provider.open(
            version.version, version.id if self.spark_format == 2 and version.id else None
        )
        self.check(version, state)
        self.at[executor] = version

    def try_open(self, executor: int, version: VersionId) -> bool:
        """Open the store, and return whether that worked.

        If not, the executor has lost what it had.
        """
        self.at[executor] = NOWHERE
        with contextlib.suppress(CallError):
            self.open(executor, version)
        return self.at[executor] == version

    def check(self, version: VersionId, state: Ids) -> None:
        if self.spark_format == 2:
            assert state == self.states[version]
        else:
            # In format 1 one attempt of a version is as good as another. Each version is there
            # exactly once, in order.
            versions = [next(v.version for v in self.states if v.id == id) for id in state]
            assert versions == list(range(1, version.version + 1))

    @precondition(lambda self: not self.damaged)
    @rule(executor=EXECUTORS)
    def attempt(self, executor: int) -> None:
        """Run a task of the next batch.

        The executor loads the version that the driver recorded, unless it has it. Then it commits.
        """
        if self.at[executor] != self.tip:
            self.open(executor, self.tip)
        self.anchors[executor] = self.tip
        version = self.executors[executor].commit()
        self.states[version] = (*self.states[self.tip], version.id)
        self.at[executor] = version
        self.attempts.append(version)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """Record that the batch is committed.

        In format 1 nobody chooses an attempt: the last writer's counts.
        """
        chosen = self.attempts[-1]
        if self.spark_format == 2:
            chosen = data.draw(st.sampled_from(self.attempts))
        self.record_attempt(chosen)

    def record_attempt(self, chosen: VersionId) -> None:
        self.chain.append(chosen)
        self.attempts = []
        self.driver.record(chosen)
        self.expired = max(self.expired, self.tip.version - RETAIN)

    @precondition(lambda self: not self.damaged and self.tip.version > 0)
    @rule(data=st.data(), executor=EXECUTORS, batches=st.integers(0, 3), later=st.booleans())
    def go_back(self, data: st.DataObject, executor: int, batches: int, later: bool) -> None:
        """Go back as the troubleshooting guide says: remove newer batches from Spark's logs.

        Then the query runs on one executor. The other executor does not hear of it. With `later`,
        that one collects.
        """
        version = data.draw(st.integers(0, self.tip.version - 1))
        if version <= self.expired and not self.try_open(executor, self.chain[version]):
            return  # a collection deleted it
        self.expired = version - 1
        self.driver.go_back(version)
        del self.chain[version + 1 :]
        self.attempts = []
        self.run_batches(executor, batches)
        if later:
            self.time_passes(GRACE_MS)
            self.collect(1 - executor)

    @precondition(lambda self: not self.damaged)
    @rule(executor=EXECUTORS, batches=st.integers(1, 3))
    def run_batches(self, executor: int, batches: int) -> None:
        """Run batches without any trouble."""
        for _ in range(batches):
            self.attempt(executor)
            if not self.attempts:
                return  # its storage failed
            self.record_attempt(self.attempts[-1])

    @precondition(lambda self: not self.damaged)
    @rule(executor=EXECUTORS, batches=st.integers(0, 3))
    def speculate(self, executor: int, batches: int) -> None:
        """Let the other executor's attempt of a batch lose.

        The other executor does not learn of that, and goes on. So does this one.
        """
        self.attempt(1 - executor)
        self.attempt(executor)
        if not self.attempts:
            return  # its storage failed
        self.record_attempt(self.attempts[-1])
        self.snapshot(executor, False)
        self.run_batches(executor, batches)

    def judge_snapshot(self, e: CallError) -> None:
        """Fail unless a snapshot may be refused with this error."""
        assert self.spark_format == 1 and e.kind is ErrorKind.OBJECT_EXISTS, e

    @rule(executor=EXECUTORS, compact=st.booleans())
    def snapshot(self, executor: int, compact: bool) -> None:
        """Publish a snapshot of what the executor holds.

        That may be an attempt that lost.
        """
        provider = self.executors[executor]
        if provider.version == 0 or self.at[executor].version != provider.version:
            return
        if not self.executors[executor].generation_dir.exists():
            return
        try:
            answer = provider.snapshot(compact=compact)
        except CallError as e:
            self.judge_snapshot(e)
            return
        assert answer["new_files"] + answer["reused_files"] == len(provider.files)

    @rule(executor=EXECUTORS)
    def collect(self, executor: int) -> None:
        """Collect, with the version that Spark asked for as the anchor.

        The driver recorded that version. If somebody went back behind it, the driver has forgotten
        it since.
        """
        if self.anchors[executor].version > 0:
            self.executors[executor].collect(self.anchors[executor])

    @rule(executor=EXECUTORS)
    def crash(self, executor: int) -> None:
        """Kill the executor with `kill -9`. A new one has no local files."""
        shutil.rmtree(self.executors[executor].local_dir)
        self.executors[executor] = self.new_provider()
        self.at[executor] = self.anchors[executor] = VersionId(0, "")
        if not self.damaged:
            self.open(executor, self.tip)
            self.anchors[executor] = self.tip
        else:
            self.executors[executor].open(0)

    @rule(executor=EXECUTORS)
    def crash_in_mid_commit(self, executor: int) -> None:
        provider = self.executors[executor]
        provider.stage(provider.version + 1, "0123456789abcdef")

    @rule()
    def agent_dies(self) -> None:
        self.service = self.new_service()
        for provider in self.executors:
            provider.service = self.service

    @rule(ms=st.sampled_from([1, GRACE_MS // 2, GRACE_MS, 3 * GRACE_MS]))
    def time_passes(self, ms: int) -> None:
        self.offset_ms += ms
        # For the storage as well: it tells the age of a file that nobody finished.
        for path in self.root.rglob(".staging-*"):
            at_ns = path.stat().st_mtime_ns - ms * 1_000_000
            os.utime(path, ns=(at_ns, at_ns))

    @precondition(lambda self: self.may_damage and self.tip.version > 1)
    @rule(data=st.data(), how=st.sampled_from(["truncate", "delete", "garbage"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        names = self.executors[0].stored()
        files = [n for n in names if n.endswith((".manifest", ".changelog", ".sst"))]
        if not files:
            return
        name = data.draw(st.sampled_from(files))
        content = self.executors[0].read_stored(name)
        # The garbage changes the length. With the same length only a check sum would tell
        # (restore.verifyChecksums).
        damaged = {
            "truncate": content[: len(content) // 2],
            "garbage": b"garbage" + content,
            "delete": None,
        }
        self.executors[0].replace_stored(name, damaged[how])
        self.damaged = True

    # ---- what must hold

    def seems_expired(self, version: VersionId) -> bool:
        """Return whether the files look as if a collection had removed the version.

        The agent goes by the files: it also counts an attempt that Spark has not recorded yet, and
        those that the driver left when it went back.
        """
        snapshots = self.stored_versions(".manifest")
        newest = max(snapshots | self.stored_versions(".changelog"))
        return version.version < min(snapshots, default=0) and newest - version.version >= RETAIN

    def stored_versions(self, suffix: str) -> set[int]:
        files = map(layout.parse_store_file, self.executors[0].stored(suffix))
        return {
            file.version.version
            for file in files
            if isinstance(file, layout.ChangelogFile | layout.ManifestFile)
        }

    def retained(self) -> list[VersionId]:
        return self.chain[max(0, self.expired + 1) :]

    @invariant()
    def retained_versions_are_restorable(self) -> None:
        if not hasattr(self, "chain"):
            return
        reader = self.new_provider()
        for version in self.retained():
            try:
                state = reader.open(
                    version.version, version.id if self.spark_format == 2 and version.id else None
                )
            except CallError as e:
                expired = e.kind is ErrorKind.VERSION_EXPIRED and self.seems_expired(version)
                assert self.damaged and (expired or e.kind in DAMAGE_KINDS), e
                continue
            self.check(version, state)
        shutil.rmtree(reader.local_dir)

    @invariant()
    def no_manifest_lost_an_sst(self) -> None:
        if not hasattr(self, "chain") or self.damaged:
            return
        provider = self.executors[0]
        for name in provider.stored(".manifest"):
            manifest = decode_manifest(provider.read_stored(name))
            assert {sst.key for sst in manifest.ssts} <= set(provider.stored(".sst"))

    def finish(self) -> None:
        """Collect. Without new writes, all that no retained version needs goes."""
        if self.damaged or self.tip.version == 0:
            return
        for _ in range(3):
            self.time_passes(2 * GRACE_MS)
            self.executors[0].collect(self.tip)
        self.retained_versions_are_restorable()
        provider = self.executors[0]
        assert [n for n in provider.stored() if ".staging" in n] == []
        named: set[str] = set()
        manifests: list[int] = []
        for name in provider.stored(".manifest"):
            try:
                manifest = decode_manifest(provider.read_stored(name))
            except FormatError:
                raise AssertionError("damaged without damage") from None
            named |= {sst.key for sst in manifest.ssts}
            manifests.append(manifest.version)
        assert set(provider.stored(".sst")) == named
        oldest = self.tip.version - RETAIN + 1
        changelogs = [
            int(name.split(".")[0].split("_")[0]) for name in provider.stored(".changelog")
        ]
        if self.spark_format == 2:
            on_chain = {v.id for v in self.chain}
            below = [
                n for n in provider.stored(".changelog") if int(n.split("_")[0]) < self.tip.version
            ]
            assert all(n.split("_")[1].split(".")[0] in on_chain for n in below)
            bases = [
                m
                for m in (
                    decode_manifest(provider.read_stored(n)) for n in provider.stored(".manifest")
                )
                if m.version <= oldest and m.version_id in self.chain
            ]
            assert len(bases) <= 1
            if bases:
                assert min(changelogs, default=bases[0].version + 1) > bases[0].version
        elif manifests and min(manifests) <= oldest:
            assert sum(1 for m in manifests if m <= oldest) >= 1


class Format1Machine(AgentMachine):
    spark_format = 1


class DamagedMachine(AgentMachine):
    may_damage = True


class DamagedFormat1Machine(Format1Machine):
    may_damage = True


def _settings(max_examples: int) -> settings:
    return settings(max_examples=max_examples, stateful_step_count=40)


class DeepMachine(AgentMachine):
    """The same, with more examples."""


class DeepFormat1Machine(Format1Machine):
    """The same, with more examples."""


class DeepDamagedMachine(DamagedMachine):
    """The same, with more examples."""


TestFormat2 = AgentMachine.TestCase
TestFormat2.settings = _settings(7)
TestFormat1 = Format1Machine.TestCase
TestFormat1.settings = _settings(7)
TestDamaged = DamagedMachine.TestCase
TestDamaged.settings = _settings(5)
TestDamagedFormat1 = DamagedFormat1Machine.TestCase
TestDamagedFormat1.settings = _settings(10)
TestMoreOfFormat2 = pytest.mark.deep(DeepMachine.TestCase)
TestMoreOfFormat2.settings = _settings(20)
TestMoreOfFormat1 = pytest.mark.deep(DeepFormat1Machine.TestCase)
TestMoreOfFormat1.settings = _settings(20)
TestMoreOfDamaged = pytest.mark.deep(DeepDamagedMachine.TestCase)
TestMoreOfDamaged.settings = _settings(10)
