"""Listings of which a caller holds one page at a time.

A storage that can do this has the method of `ListsByPages`. The others list as they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from millpond.storage.base import ObjectInfo, Storage


@runtime_checkable
class ListsByPages(Protocol):
    """A storage whose `list` must hold all that it lists: to sort it."""

    def list_by_pages(self, prefix: str) -> Iterator[ObjectInfo]:
        """As `Storage.list`, but in no order. Asks for a page when the one before is used up."""


def list_by_pages(storage: Storage, prefix: str) -> Iterator[ObjectInfo]:
    """As `Storage.list`, but in no order, and for as little memory as the storage can."""
    if isinstance(storage, ListsByPages):
        return storage.list_by_pages(prefix)
    return storage.list(prefix)
