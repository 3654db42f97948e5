"""What tests of the state's readers share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millpond.storage import LocalStorage


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often a local storage was asked, by method."""
    calls: Counter[str] = Counter()
    for name in ("list", "read", "read_range", "get_to_file", "stat"):
        plain = getattr(LocalStorage, name)

        def noted(
            self: Any, key: str, *more: Any, name: str = name, plain: Any = plain, **named: Any
        ) -> Any:
            calls[name] += 1
            return plain(self, key, *more, **named)

        monkeypatch.setattr(LocalStorage, name, noted)
    return calls
