"""Checks that Millpond refuses something."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.errors import ErrorKind, MillpondError


def refused(
    kind: ErrorKind, action: Callable[..., object], *arguments: object, **named: object
) -> MillpondError:
    """Check that `action` raises an error of this kind with a hint. Return the error."""
    with pytest.raises(MillpondError) as caught:
        action(*arguments, **named)
    assert caught.value.kind is kind, caught.value
    assert caught.value.hint
    return caught.value
