# SPDX-License-Identifier: Apache-2.0
"""The benchmark's sums, without a benchmark."""

from __future__ import annotations

import pytest

from benchmarks.bench_report import MEASURES

_MEMORY = next(m for m in MEASURES if m.name == "memory_mib")


@pytest.mark.parametrize("value", [0.0, -3.5, None])
def test_no_ratio_to_what_noise_outweighs(value: float | None) -> None:
    values = {"a": 2.0} | ({} if value is None else {"b": value})
    assert _MEMORY.ratio(values, "a", "b") is None
    assert _MEMORY.ratio(values, "b", "a") is None


def test_a_cost_of_half_is_twice_as_good() -> None:
    assert _MEMORY.ratio({"a": 2.0, "b": 4.0}, "a", "b") == 2.0
