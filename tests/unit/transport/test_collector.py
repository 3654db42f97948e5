"""What a worker keeps from Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from millpond.transport import collector
from millpond.transport.collector import spare_what_stays


@pytest.fixture(autouse=True)
def fresh_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collector, "_partitions", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_a_worker_loaded_is_spared_once_it_comes_to_a_second_partition() -> None:
    loaded = [object()]
    spare_what_stays()
    assert gc.get_freeze_count() == 0
    spare_what_stays()
    assert gc.get_freeze_count() > 0
    assert not any(found is loaded for found in gc.get_objects())


def test_what_comes_later_is_still_collected() -> None:
    spare_what_stays()
    spare_what_stays()
    later = [object()]
    spare_what_stays()
    assert any(found is later for found in gc.get_objects())
