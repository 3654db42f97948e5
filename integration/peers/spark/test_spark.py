"""Spark's own suites judge Millpond: all that apply pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.peers.spark import jars
from integration.peers.spark.outcomes import judge
from integration.peers.spark.reasons import REASONS
from integration.peers.spark.results import SuiteResult, save
from integration.peers.spark.suites import SAMPLE, chosen, run

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.usefixtures("fetched")]


@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(suite, marks=pytest.mark.sample) if suite in SAMPLE else suite
        for suite in chosen()
    ],
)
def test_suite(suite: str, tmp_path: Path) -> None:
    judged = judge(run(suite, tmp_path / suite), REASONS, other_spark=jars.for_other_spark())
    save(suite, SuiteResult.of(judged))
    assert not judged.failed
    assert not judged.stale, "these pass: take them out of integration/peers/spark/reasons.py"
