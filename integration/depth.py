"""Which tests `make test` leaves to `make test-all`: those with the mark `deep`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def quick_first(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """`values` for `parametrize`: the first `quick` as they are, the others deep."""
    return [value if i < quick else deep(value) for i, value in enumerate(values)]


def deep(value: Any) -> Any:
    """One value for `parametrize` (a tuple: of several arguments) whose test is deep."""
    return pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.deep)


def asked_for(request: pytest.FixtureRequest, argument: str) -> Sequence[Any]:
    """What the tests of this run give `argument`, in the module of the fixture that asks."""
    found = []
    for item in request.session.items:
        assert isinstance(item, pytest.Function)
        if item.getparent(pytest.Module) is request.node and hasattr(item, "callspec"):
            value = item.callspec.params.get(argument)
            if value is not None and value not in found:
                found.append(value)
    return found
