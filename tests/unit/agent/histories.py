"""What tests write before they look: versions, snapshots, Spark's logs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent_driver import Provider


def offsets(checkpoint: Path, batch: int, partitions: int | None, *, commit: bool = True) -> None:
    conf = {} if partitions is None else {"spark.sql.shuffle.partitions": str(partitions)}
    for directory in ("offsets", "commits"):
        (checkpoint / directory).mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{metadata}\n{{"x":1}}')
    if commit:
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def snapshots_at(provider: Provider, *versions: int, until: int) -> None:
    provider.open(0)
    for version in range(1, until + 1):
        provider.commit()
        if version in versions:
            provider.snapshot()
