"""Random damage to the Spark checkpoints of real queries. Millpond calls none of it healthy.

`tests.damage` makes the damage. MILLPOND_QUERIES=DIRECTORY keeps the Spark checkpoints there, for
`python -m tests.damage --queries DIRECTORY`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, settings, start
from tests.damage import HEALTHY, run_seed, templates_of, without_refusals

pytestmark = [pytest.mark.spark, pytest.mark.deep]

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_SEEDS = int(os.environ.get("MILLPOND_SEEDS", "2"))  # of each query
# These have every operator and every form of state: plain, in scan order, four stores, column
# families with timers and TTL, one partition.
_SHAPES = [
    "agg-update-odd-keys",
    "agg-window-append",
    "global-update-ids",
    "dedupe-then-window",
    "sessions-append-ids",
    "join-left",
    "join-inner-v3",
    "join-filtered-v4",
    "pandas-state-update",
    "flat-map-update",
    "scala-event-time-avro",
    "scala-processing-time",
]


@pytest.mark.parametrize("name", _SHAPES)
def test_no_damage_comes_out_healthy(spark: SparkSession, tmp_path: Path, name: str) -> None:
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches[:4]:
            source.add(batch)
    run = Run(tmp_path / case.name)
    conf = {
        _FORMAT: str(case.checkpoint_format),
        **case.conf,
        **case.candidate_conf,
        _PROVIDER: MILLPOND,
    }
    with settings(spark, conf):
        frame = case.build([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    if keep := os.environ.get("MILLPOND_QUERIES"):
        shutil.copytree(run.checkpoint, Path(keep) / f"{case.name}-{case.checkpoint_format}")
    (tmp_path / "made").mkdir()
    made = [
        without_refusals(template)
        for template in templates_of(run.checkpoint, case.name, tmp_path / "made")
    ]
    for seed in range(_SEEDS):
        template, verdict = run_seed(made, seed, tmp_path)
        assert verdict.outcome != HEALTHY, (
            f"seed {seed}: {template}: {verdict.what}: {'; '.join(verdict.why)}"
        )
