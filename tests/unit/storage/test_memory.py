"""The reference storage keeps the contract."""

from __future__ import annotations

import pytest

from millpond.storage import MemoryStorage, Storage
from millpond.testing.storage_contract import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


def test_clock() -> None:
    storage = MemoryStorage(clock_ms=lambda: 42)
    storage.put_bytes("a", b"x")
    assert storage.stat("a").modified_ms == 42
    assert storage.local_path("a") is None
