"""Which commits make up the state at a version: the chain of (version, id) down to an empty state.

A changelog's header names its ancestors down to the newest snapshot that its writer knew
(`lineage_base`). To walk further down, the walk reads the header of the changelog at
`lineage_base`, and so on. In Spark checkpoint format 2 Spark hands out ids, and the walk follows
them alone. In format 1 a file is named by its version, and a later attempt may have replaced it.
There the walk follows the newest header, and accepts the file that it finds, as Spark does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from millpond.errors import ErrorKind, FormatError
from millpond.model.ids import VersionId


class Header(Protocol):
    """What the walk needs of a changelog's header."""

    @property
    def version(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def lineage_base(self) -> int: ...
    @property
    def lineage(self) -> Sequence[str]:
        """Ids of the versions `lineage_base .. version - 1`."""


def walk(target: VersionId, header_of: Callable[[VersionId], Header]) -> Iterator[VersionId]:
    """Yield `target`, its parent, and so on. The last one is the empty state, whose id is "".

    The version of the empty state is 0, unless an offline rewrite left a changelog with
    `empty_base`.

    The walk calls `header_of` with the oldest version that it has yielded, and only when no header
    read so far names the next ancestor. An error of `header_of` (a missing or damaged changelog)
    ends the walk.
    """
    current = target
    header: Header | None = None
    while True:
        yield current
        if current.id == "" or current.version == 0:
            return
        parent_version = current.version - 1
        if header is None or parent_version < header.lineage_base:
            header = header_of(current)
            check_header(header, current.version)
        parent_id = header.lineage[parent_version - header.lineage_base]
        current = VersionId(parent_version, parent_id if parent_version else "")


def check_header(header: Header, version: int) -> None:
    """Raise FormatError (CHANGELOG_DAMAGED) if the header cannot belong to `version`."""
    if header.version != version:
        raise FormatError(
            f"a changelog named for version {version} says that it is version {header.version}",
            kind=ErrorKind.CHANGELOG_DAMAGED,
        )
    if (
        not 0 <= header.lineage_base < version
        or len(header.lineage) != version - header.lineage_base
    ):
        raise FormatError(
            f"the changelog of version {version} has a lineage of {len(header.lineage)} ids from"
            f" version {header.lineage_base}, which does not reach its parent",
            kind=ErrorKind.CHANGELOG_DAMAGED,
        )
