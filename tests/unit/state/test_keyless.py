"""State without a key: that of an aggregation over all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millpond
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind
from millpond.spark.types import Struct
from tests.checkpoints import CheckpointBuilder
from tests.refusals import refused
from tests.row_checkpoints import RowsBuilder


class _Keyless(RowsBuilder):
    """Each version writes the only row anew."""

    key_type = Struct(())

    def key_row(self, number: int) -> dict[str, Any]:
        return {}

    def keys(self, version: int) -> int:
        return 1


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    return _Keyless(tmp_path / "query", partitions=1).build(snapshots=())


def test_parquet_leaves_the_key_out(built: CheckpointBuilder, tmp_path: Path) -> None:
    path = tmp_path / "state.parquet"
    arguments = ["state", "read", str(built.root), "--format", "parquet", "--output", str(path)]
    assert main(arguments) == 0
    assert pq.read_table(path).to_pylist() == [{"partition": 0, "value": {"n": "of 6"}}]


def test_rows_without_a_key_can_be_given_back(built: CheckpointBuilder, tmp_path: Path) -> None:
    savepoint.create(built.root, tmp_path / "saved")
    for number, table in enumerate(
        [
            pa.table({"value": [{"n": "other"}]}),
            pa.table({"key": pa.array([{}], pa.struct([])), "value": [{"n": "other"}]}),
        ]
    ):
        edited = tmp_path / f"edited-{number}"
        report = savepoint.edit(tmp_path / "saved", edited, table=table)
        assert (report.rows_before, report.rows_after) == (1, 1)
        (row,) = millpond.read_state(edited).to_pylist()
        assert row == {"partition": 0, "key": {}, "value": {"n": "other"}}
    error = refused(
        ErrorKind.INVALID_ARGUMENT,
        lambda: savepoint.edit(
            tmp_path / "saved", tmp_path / "twice", table=pa.table({"value": [{"n": "a"}] * 2})
        ),
    )
    assert "two rows have the same key" in str(error)
