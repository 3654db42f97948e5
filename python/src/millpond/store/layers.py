"""Changes above a snapshot, in layers: each is newer than the next. Pure.

A reader that follows a query puts the changes of each commit on top. It copies none of the large
layers below, and the readers of the version before go on with theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property

from millpond.store.overlay import Appended, Change, after, size_of


class Layer:
    """Changes of keys. Never changed after it is made.

    Args:
        changes: by physical key.
    """

    def __init__(self, changes: dict[bytes, Change]) -> None:
        self.changes = changes

    def starting_with(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the keys that start with `prefix`, ascending."""
        keys = self._ascending
        for number in range(bisect_left(keys, prefix), len(keys)):
            if not keys[number].startswith(prefix):
                return
            yield keys[number]

    @cached_property
    def _ascending(self) -> list[bytes]:
        return sorted(self.changes)  # only who asks for a prefix pays for it

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of keys and of what becomes of them."""
        return sum(len(key) + size_of(change) for key, change in self.changes.items())

    @cached_property
    def _appends(self) -> bool:
        return any(isinstance(change, Appended) for change in self.changes.values())

    def above(self, older: Layer) -> Layer:
        """Return one layer that changes what `older` and then this one change."""
        result = older.changes | self.changes
        if self._appends:
            for key, change in self.changes.items():
                if isinstance(change, Appended) and key in older.changes:
                    result[key] = after(older.changes[key], change.value)
        return Layer(result)


Layers = tuple[Layer, ...]
"""The newest first."""


def stacked(layers: Layers, newest: Layer) -> Layers:
    """Return the layers with another one on top.

    Layers that are not much larger become one with it. So there are few of them, and a change is
    copied a few times in its life.
    """
    top, rest = newest, layers
    while rest and len(rest[0].changes) <= 2 * len(top.changes):
        top, rest = top.above(rest[0]), rest[1:]
    return (top, *rest)


def looked_up(layers: Layers, key: bytes) -> Change | Missing:
    """Return what the layers make of a key; MISSING: they do not change it."""
    appended: bytes | None = None
    for layer in layers:
        if key not in layer.changes:
            continue
        change = layer.changes[key]
        if not isinstance(change, Appended):
            return change if appended is None else (change or b"") + appended
        appended = change.value if appended is None else change.value + appended
    return MISSING if appended is None else Appended(appended)


class Missing:
    """The type of MISSING."""


MISSING = Missing()
