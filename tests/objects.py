"""Agents on a storage without local paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.agent.service import AgentService
from millpond.storage import MemoryStorage, Storage
from millpond.testing.faults import Fault, FaultyStorage, Operation
from tests.agent_driver import Provider


class NoWholeReads(MemoryStorage):
    """A copy of a local storage, of which nobody may read a changelog or an SST into memory."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        for info in storage.list(""):
            self.put_bytes(info.key, storage.read(info.key))

    def read(self, key: str) -> bytes:
        assert not key.endswith((".changelog", ".sst")), key
        return super().read(key)

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        Path(local_path).write_bytes(super().read(key))


class Objects:
    """A memory storage, and agents that use it."""

    def __init__(self, tmp_path: Path) -> None:
        self.memory = MemoryStorage()
        self.fault: Callable[[Operation], Fault | None] = lambda _: None
        self.storage = FaultyStorage(self.memory, lambda op: self.fault(op))
        self.tmp_path = tmp_path
        self.number = 0

    def provider(self, spark_format: int = 2, **more: Any) -> Provider:
        """Return a provider on an executor of its own."""
        self.number += 1
        service = AgentService(opener=lambda uri, settings: self.storage)
        return Provider(
            service,
            self.tmp_path / "ckpt",
            self.tmp_path / f"local-{self.number}",
            storage=self.memory,
            spark_format=spark_format,
            **more,
        )

    def requests(self, call: Callable[[], object]) -> dict[str, int]:
        """Run the call. Return the number of its requests by name of the method."""
        before = Counter(self.storage.counts)
        call()
        return dict(self.storage.counts - before)
