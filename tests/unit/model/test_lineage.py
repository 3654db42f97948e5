"""The walk along a lineage."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from millpond.errors import ErrorKind, FormatError, NotFoundError
from millpond.model.ids import VersionId
from millpond.model.lineage import walk


@dataclass(frozen=True)
class Header:
    version: int
    id: str
    lineage_base: int
    lineage: tuple[str, ...]


def hex_id(number: int) -> str:
    return f"{number:016x}"


class Headers:
    """Headers by version. It notes which of them somebody asked for."""

    def __init__(self, *headers: Header) -> None:
        self.headers = {h.version: h for h in headers}
        self.asked: list[int] = []

    def __call__(self, version: VersionId) -> Header:
        self.asked.append(version.version)
        if version.version not in self.headers:
            raise NotFoundError("gone", kind=ErrorKind.CHANGELOG_MISSING)
        return self.headers[version.version]


def test_version_0_needs_no_header() -> None:
    headers = Headers()
    assert list(walk(VersionId(0), headers)) == [VersionId(0)] and headers.asked == []


def test_one_header_names_ancestors_down_to_its_base() -> None:
    headers = Headers(Header(4, hex_id(4), 0, ("", hex_id(1), hex_id(2), hex_id(3))))
    assert [s.version for s in walk(VersionId(4, hex_id(4)), headers)] == [4, 3, 2, 1, 0]
    assert headers.asked == [4]


def test_below_its_base_the_next_header_is_asked_and_only_on_demand() -> None:
    headers = Headers(
        Header(4, hex_id(4), 2, (hex_id(2), hex_id(3))),
        Header(2, hex_id(2), 0, ("", hex_id(1))),
    )
    steps = walk(VersionId(4, hex_id(4)), headers)
    assert [next(steps).version for _ in range(3)] == [4, 3, 2]
    assert headers.asked == [4]
    assert [s.version for s in steps] == [1, 0] and headers.asked == [4, 2]


def test_siblings_do_not_mix() -> None:
    headers = Headers(Header(3, hex_id(33), 1, (hex_id(1), hex_id(22))))
    steps = walk(VersionId(3, hex_id(33)), headers)
    assert [next(steps).id for _ in range(3)] == [hex_id(33), hex_id(22), hex_id(1)]


def test_an_empty_base_ends_the_walk_above_version_0() -> None:
    headers = Headers(Header(6, hex_id(6), 5, (hex_id(5),)), Header(5, hex_id(5), 4, ("",)))
    assert list(walk(VersionId(6, hex_id(6)), headers)) == [
        VersionId(6, hex_id(6)),
        VersionId(5, hex_id(5)),
        VersionId(4),
    ]


def test_a_missing_header_ends_the_walk_with_its_error() -> None:
    headers = Headers(Header(4, hex_id(4), 2, (hex_id(2), hex_id(3))))
    with pytest.raises(NotFoundError) as caught:
        list(walk(VersionId(4, hex_id(4)), headers))
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING and headers.asked == [4, 2]


@pytest.mark.parametrize(
    "header",
    [
        Header(3, hex_id(4), 0, ("", hex_id(1), hex_id(2))),
        Header(4, hex_id(4), 0, ("", hex_id(1), hex_id(2))),
        Header(4, hex_id(4), 4, ()),
        Header(4, hex_id(4), -1, ("",) * 5),
    ],
)
def test_a_lineage_that_cannot_be_is_damage(header: Header) -> None:
    with pytest.raises(FormatError) as caught:
        list(walk(VersionId(4, hex_id(4)), lambda _: header))
    assert caught.value.kind is ErrorKind.CHANGELOG_DAMAGED
