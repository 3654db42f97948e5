"""Gives tests the mark `deep`: `make test` leaves them to `make test-all`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def quick_first(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Return `values` for `parametrize`: the first `quick` as they are, the others deep."""
    return [value if i < quick else deep(value) for i, value in enumerate(values)]


def by_turns(values: Iterable[Any], others: Sequence[Any] = (1, 2)) -> list[Any]:
    """Return each of `values` with each of `others`, for `parametrize` with two arguments.

    Of each value one is quick, and the others deep: they take turns.
    """
    return [
        pytest.param(value, other, marks=() if i % len(others) == n else pytest.mark.deep)
        for i, value in enumerate(values)
        for n, other in enumerate(others)
    ]


def deep(value: Any) -> Any:
    """Return a value for `parametrize` whose test is deep. A tuple stands for several arguments."""
    return pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.deep)


def asked_for(request: pytest.FixtureRequest, argument: str) -> Sequence[Any]:
    """Return the values of `argument` in the run's tests, in the module of the asking fixture."""
    found = []
    for item in request.session.items:
        assert isinstance(item, pytest.Function)
        if item.getparent(pytest.Module) is request.node and hasattr(item, "callspec"):
            value = item.callspec.params.get(argument)
            if value is not None and value not in found:
                found.append(value)
    return found


def is_in_part(name: str, part: str) -> bool:
    """Tell whether the test `name` is in `part`: "2/3" is the second of three, "1/1" is all.

    A slow machine of CI runs one part of the deep tests, and another one for another commit.

    Raises: ValueError: `part` is none.
    """
    wanted, _, parts = part.partition("/")
    if not 1 <= int(wanted) <= int(parts):
        raise ValueError(f"MILLPOND_DEEP_PART={part}: use 2/3 for the second of three parts")
    return zlib.crc32(name.encode()) % int(parts) == int(wanted) - 1
