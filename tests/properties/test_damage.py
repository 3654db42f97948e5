"""No damage comes out healthy.

This runs some seeds of `tests.damage`; a failure names its seed. More: `python -m tests.damage
--seeds 2000`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration.depth import quick_first
from tests.damage import HEALTHY, Template, run_seed, templates

SEEDS, FIRST = (
    int(os.environ.get("MILLPOND_SEEDS", "32")),
    int(os.environ.get("MILLPOND_FIRST_SEED", "0")),
)
_AT_ONCE = 8  # seeds of one test: the templates take a second


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Template]:
    return templates(tmp_path_factory.mktemp("templates"))


@pytest.mark.parametrize("first", quick_first(range(FIRST, FIRST + SEEDS, _AT_ONCE), 2))
def test_no_damage_comes_out_healthy(made: list[Template], tmp_path: Path, first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, FIRST + SEEDS)):
        template, verdict = run_seed(made, seed, tmp_path)
        why = "; ".join(verdict.why)
        assert verdict.outcome != HEALTHY, f"seed {seed}: {template}: {verdict.what}: {why}"
