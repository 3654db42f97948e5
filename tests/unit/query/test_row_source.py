"""Rows of all stores of a query, or of a savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from millpond import savepoint
from millpond.query.from_checkpoint import look
from millpond.query.index import read_index
from millpond.query.row_source import NativeRows, RowSource
from millpond.query.survey import survey
from millpond.state.canonical import CanonicalRows
from millpond.storage import LocalStorage
from tests.row_checkpoints import HashedBuilder


class Noted(tuple[Any, ...]):
    """Counts how often somebody goes through it."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        return super().__iter__()


def _rows(source: RowSource) -> list[tuple[bytes, bytes]]:
    parts = [part for store in source.stores() for part in source.rows(store)]
    return [row for part in parts for row in zip(part.keys, part.values, strict=True)]


def test_what_names_the_stores_is_gone_through_once(tmp_path: Path) -> None:
    """It was gone through for each store, so a query of many took long."""
    built = HashedBuilder(tmp_path / "query", partitions=4, spark_format=2).build()
    image = look(built.storage, survey(built.storage, "it"), "it")
    (operator,) = image.operators
    stores = Noted(operator.stores)
    source = NativeRows(
        built.storage, replace(image, operators=(replace(operator, stores=stores),))
    )
    found = _rows(source)
    assert len(found) == 4 * built.keys(6) and stores.times == 1
    saved = tmp_path / "saved"
    savepoint.create(built.root, saved, format="canonical")
    storage = LocalStorage(str(saved))
    index = read_index(storage, "it")
    tables = Noted(index.tables)
    assert _rows(CanonicalRows(storage, replace(index, tables=tables))) == found
    assert tables.times == 1
