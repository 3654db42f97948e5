"""Names of stores and versions."""

from __future__ import annotations

import pytest

from millpond.errors import InvalidInputError
from millpond.model.ids import StoreId, VersionId, new_id, valid_id


def test_new_ids_are_valid_and_differ() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(valid_id(text) for text in ids)


@pytest.mark.parametrize(
    "text", ["", "0" * 15, "0" * 17, "G" * 16, "A" * 16, "0" * 15 + "\n", " " + "0" * 15]
)
def test_invalid_ids(text: str) -> None:
    assert not valid_id(text)
    if text:
        with pytest.raises(InvalidInputError):
            VersionId(3, text)


def test_version_ids() -> None:
    assert str(VersionId(3)) == "3" and str(VersionId(3, "a" * 16)) == "3_" + "a" * 16
    assert VersionId(2, "f" * 16) < VersionId(10) < VersionId(10, "0" * 16)
    for version, text in ((-1, ""), (0, "a" * 16)):
        with pytest.raises(InvalidInputError):
            VersionId(version, text)


def test_store_ids() -> None:
    assert (
        str(StoreId(0, 3)) == "0/3"
        and str(StoreId(0, 3, "left-keyToNumValues")) == "0/3/left-keyToNumValues"
    )


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b", "sst", "7", "_metadata", ".hidden", "a b", "a\n", "x" * 200]
)
def test_names_that_cannot_be_a_directory_of_a_store(name: str) -> None:
    with pytest.raises(InvalidInputError):
        StoreId(0, 0, name)


def test_negative_numbers() -> None:
    for operator, partition in ((-1, 0), (0, -1)):
        with pytest.raises(InvalidInputError):
            StoreId(operator, partition)
