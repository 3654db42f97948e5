"""The agent's histories on an object storage: first on a good one, then on one that fails at
random.

If a commit reports success, its changelog is there. If an opening succeeds, its state is right. A
failed call leaves nothing behind for ever.
"""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind, FormatError
from millpond.format.changelog import read_header
from millpond.format.layout import changelog_name
from millpond.model.ids import VersionId, new_id
from millpond.storage import MemoryStorage
from millpond.storage.parallel import Parallel
from millpond.testing.faults import Fault, FaultyStorage, Operation, seeded
from tests.agent_driver import CallError, Driver, Provider
from tests.properties.test_agent_machine import DAMAGE_KINDS, EXECUTORS, NOWHERE, AgentMachine

FAILURES = DAMAGE_KINDS | {
    ErrorKind.STORAGE_UNAVAILABLE,
    ErrorKind.STORAGE_DENIED,
    ErrorKind.STORAGE_FULL,
    # A read of format.json returned wrong bytes, or a stale list lacks the newest version.
    ErrorKind.FORMAT_DAMAGED,
    ErrorKind.FORMAT_TOO_NEW,
    ErrorKind.VERSION_NOT_FOUND,
    ErrorKind.VERSION_EXPIRED,
}


_BEGIN_MS = 1_700_000_000_000


def _in_order(_: Parallel, calls: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
    """Make the calls one after the other, in place of `Parallel.start`."""
    futures = [Future[Any]() for _ in calls]
    for future, call in zip(futures, calls, strict=True):
        try:
            future.set_result(call())
        except Exception as e:
            future.set_exception(e)
    return futures


class ObjectsMachine(AgentMachine):
    """The same histories as on a file system. A restore fetches files by name.

    A seed means the same history each time: hypothesis repeats histories, and tells if they differ.
    So names are not random here, no clock goes, and the calls of one thread have an order.
    """

    rate = 0.0

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int = 0) -> None:
        self.repeatable = ExitStack()
        names = random.Random(seed)
        for patch in (
            mock.patch("uuid.uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)),
            mock.patch.object(Parallel, "start", _in_order),
        ):
            self.repeatable.enter_context(patch)
        self.offset_ms = 0
        self.memory = MemoryStorage(clock_ms=self.now_ms)
        self.chooser = seeded(seed, rate=self.rate)
        self.storage = FaultyStorage(self.memory, lambda op: self.choose(op), clock_ms=self.now_ms)
        with self.storage.paused():
            super().start()

    def choose(self, operation: Operation) -> Fault | None:
        return self.chooser(operation)

    def teardown(self) -> None:
        if hasattr(self, "repeatable"):
            with self.repeatable:
                super().teardown()

    def now_ms(self) -> int:
        return _BEGIN_MS + self.offset_ms

    def new_service(self) -> AgentService:
        return AgentService(opener=lambda uri, settings: self.storage, clock_ms=self.now_ms)

    def new_driver(self) -> Driver:
        return Driver(self.root / "ckpt", self.spark_format, self.memory)

    def new_provider(self) -> Provider:
        provider = super().new_provider()
        provider.storage = self.memory
        return provider

    @invariant()
    def retained_versions_are_restorable(self) -> None:
        if hasattr(self, "storage"):
            with self.storage.paused():
                super().retained_versions_are_restorable()

    def finish(self) -> None:
        with self.storage.paused():
            super().finish()


class Format1ObjectsMachine(ObjectsMachine):
    spark_format = 1


class DamagedObjectsMachine(ObjectsMachine):
    may_damage = True


class FaultyMachine(ObjectsMachine):
    """The same histories, in which one call in ten fails."""

    rate = 0.1

    def try_open(self, executor: int, version: VersionId) -> bool:
        self.at[executor] = NOWHERE
        try:
            self.open(executor, version)
        except CallError as e:
            assert e.kind in FAILURES, e
        except FormatError:
            pass  # the shim reads the rows, and finds a block with a wrong sum
        return self.at[executor] == version

    @precondition(lambda self: not self.damaged)
    @rule(executor=EXECUTORS)
    def attempt(self, executor: int) -> None:
        if self.at[executor] != self.tip and not self.try_open(executor, self.tip):
            return
        provider = self.executors[executor]
        version = VersionId(provider.version + 1, new_id())
        # The call may fail after the changelog is stored.
        self.states[version] = (*self.states[self.tip], version.id)
        try:
            provider.commit(version.id)
        except CallError as e:
            assert e.kind in FAILURES, e
            return
        with self.storage.paused():
            data = provider.read_stored(changelog_name(version, self.spark_format))
        assert read_header(io.BytesIO(data), name="x").id == version.id, (
            "a commit that reports success is there"
        )
        self.at[executor] = version
        self.attempts.append(version)

    def judge_snapshot(self, e: CallError) -> None:
        if e.kind not in FAILURES:
            super().judge_snapshot(e)

    @precondition(lambda self: self.tip.version > 0)
    @rule(executor=EXECUTORS)
    def collect(self, executor: int) -> None:
        try:
            super().collect(executor)
        except CallError as e:
            assert e.kind in FAILURES, e

    @rule(executor=EXECUTORS)
    def crash(self, executor: int) -> None:
        with self.storage.paused():
            super().crash(executor)


class FaultyFormat1Machine(FaultyMachine):
    spark_format = 1


class DeepFaultyMachine(FaultyMachine):
    """The same, with more examples."""


class DeepFaultyFormat1Machine(FaultyFormat1Machine):
    """The same, with more examples."""


def _settings(max_examples: int) -> settings:
    return settings(max_examples=max_examples, stateful_step_count=30)


TestObjects = ObjectsMachine.TestCase
TestObjects.settings = _settings(6)
TestFormat1Objects = Format1ObjectsMachine.TestCase
TestFormat1Objects.settings = _settings(6)
TestDamagedObjects = DamagedObjectsMachine.TestCase
TestDamagedObjects.settings = _settings(6)
TestFaulty = FaultyMachine.TestCase
TestFaulty.settings = _settings(6)
TestFaultyFormat1 = FaultyFormat1Machine.TestCase
TestFaultyFormat1.settings = _settings(6)
TestMoreFaulty = pytest.mark.deep(DeepFaultyMachine.TestCase)
TestMoreFaulty.settings = _settings(15)
TestMoreFaultyFormat1 = pytest.mark.deep(DeepFaultyFormat1Machine.TestCase)
TestMoreFaultyFormat1.settings = _settings(15)
