# SPDX-License-Identifier: Apache-2.0
"""The benchmark's sums, without a benchmark."""

from __future__ import annotations

import pytest

from benchmarks import bench_savepoint
from benchmarks.bench_report import MEASURES

_MEMORY = next(m for m in MEASURES if m.name == "memory_mib")


@pytest.mark.parametrize("value", [0.0, -3.5, None])
def test_no_ratio_to_what_noise_outweighs(value: float | None) -> None:
    values = {"a": 2.0} | ({} if value is None else {"b": value})
    assert _MEMORY.ratio(values, "a", "b") is None
    assert _MEMORY.ratio(values, "b", "a") is None


def test_a_cost_of_half_is_twice_as_good() -> None:
    assert _MEMORY.ratio({"a": 2.0, "b": 4.0}, "a", "b") == 2.0


def test_savepoints_are_told_as_medians() -> None:
    names = [row[0] for row in bench_savepoint._ROWS]
    runs = [{"keys": 2_000_000} | dict.fromkeys(names, value) for value in (1.0, 2.0, 40.0)]
    table = bench_savepoint.text(runs)
    assert "2,000,000 keys" in table and len(table.splitlines()) == len(names) + 1
    assert table.splitlines()[-1].endswith("2.00 x              1.2   1.00, 2.00, 40.00")
    assert "nothing" in bench_savepoint.text([])
