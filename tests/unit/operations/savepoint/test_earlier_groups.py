"""A query that is made of an earlier batch knows no rescale that came after that batch."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from millpond import savepoint
from millpond.errors import ConflictError, ErrorKind
from millpond.format import layout
from millpond.format.format_file import decode_format, encode_format
from millpond.model.key_groups import KeyGroups
from millpond.query.from_checkpoint import look
from millpond.query.survey import survey
from millpond.storage import LocalStorage
from tests.row_checkpoints import RowsBuilder


def test_key_groups_that_came_and_went(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query", spark_format=2).build()
    millpond.rescale(built.root, 3)
    millpond.rescale(built.root, 2, max_parallelism=16)
    found = decode_format(built.storage.read(layout.FORMAT_KEY))
    assert found.key_groups == KeyGroups(16, 2) and len(found.earlier) == 2
    savepoint.fork(built.root, tmp_path / "fork", batch=4)
    savepoint.create(built.root, tmp_path / "saved", batch=4, format="canonical")
    savepoint.restore(tmp_path / "saved", tmp_path / "restored")
    for place in ("fork", "restored"):
        text = LocalStorage(str(tmp_path / place)).read(layout.FORMAT_KEY)
        forked = decode_format(text)
        assert {forked.key_groups_at(v) for v in range(1, 20)} == {KeyGroups(16, 2)}, place


def test_an_erasure_is_none_of_a_fork(tmp_path: Path) -> None:
    """It keeps old executors from snapshots of erased versions. A fork has no such executors, and
    makes these versions anew.
    """
    built = RowsBuilder(tmp_path / "query", spark_format=2).build(snapshots=())
    key = millpond.read_state(built.root, batch=3, limit=1).to_pylist()[0]["key"]
    millpond.erase([built.root], key=key)
    found = decode_format(built.storage.read(layout.FORMAT_KEY))
    assert found.erased_version(0) == 6
    savepoint.fork(built.root, tmp_path / "fork", batch=3)
    forked = decode_format(LocalStorage(str(tmp_path / "fork")).read(layout.FORMAT_KEY))
    assert forked.erased == () and forked.key_groups == found.key_groups


def test_a_rescale_between_two_looks(tmp_path: Path) -> None:
    """A savepoint is made while a rescale rehashes. It looks before, and reads files after it."""
    built = RowsBuilder(tmp_path / "query", spark_format=2).build()
    found = survey(built.storage, "query")
    millpond.rescale(built.root, 3)
    image = look(built.storage, found, "query")
    assert image.batch == 5 and image.partitions == 2
    kept = decode_format(image.texts[layout.FORMAT_KEY])
    assert kept.key_groups == KeyGroups(16, 2) and not kept.earlier
    assert (image.max_parallelism, image.key_group_base) == (16, 2)


def test_an_erasure_between_two_looks(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query", spark_format=2).build()
    found = survey(built.storage, "query")
    value = decode_format(built.storage.read(layout.FORMAT_KEY))
    built.storage.put_bytes(layout.FORMAT_KEY, encode_format(value, erasing=True))
    with pytest.raises(ConflictError) as caught:
        look(built.storage, found, "query")
    assert caught.value.kind is ErrorKind.ERASE_UNFINISHED
