# SPDX-License-Identifier: Apache-2.0
"""Store level: one JVM per contender and repetition runs `scala/StoreBench.scala`, which drives the provider through Spark's contract."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.bench_contenders import KEY_AND_VALUE_BYTES, Contender
from benchmarks.bench_env import java, jvm_options, run_measured, spark_jars

MIN_BUDGET_BYTES = 64 << 10
_MAIN = "org.apache.spark.sql.millpond.bench.StoreBench"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSizes:
    """How much one process does. Counts are rows, operations or batches; names as in StoreBench.scala."""

    keys: int
    load_batch: int
    ops: int
    update_batches: int
    snapshot_batches: int
    scans: int
    restores: int
    rollbacks: int
    warmup_keys: int
    warmup_batches: int
    heap_mib: int


def sizes(scale: float, *, quick: bool) -> StoreSizes:
    """Return the sizes for `scale` million keys, or those of the smoke test."""
    if quick:
        return StoreSizes(
            keys=20_000,
            load_batch=5_000,
            ops=1_000,
            update_batches=4,
            snapshot_batches=12,
            scans=1,
            restores=1,
            rollbacks=1,
            warmup_keys=2_000,
            warmup_batches=2,
            heap_mib=512,
        )
    return StoreSizes(
        keys=int(1_000_000 * scale),
        load_batch=100_000,
        ops=20_000,
        update_batches=15,
        snapshot_batches=20,
        scans=2,
        restores=2,
        rollbacks=2,
        warmup_keys=100_000,
        warmup_batches=12,
        heap_mib=int(2048 + 1024 * scale),
    )


def measure(
    contender: Contender,
    what: StoreSizes,
    *,
    classes: Path,
    jar: Path | None,
    work_dir: Path,
    seed: int,
    extra_conf: dict[str, str],
    timeout_s: float,
    jvm_extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the raw result of one process (see StoreBench.scala). `work_dir` is made, and removed when all went well.

    Raises: BenchError: the process failed, or the store returned a wrong value.
    """
    if not contender.snapshot_phase:
        what = replace(what, snapshot_batches=0)
    work_dir.mkdir(parents=True)
    for name in ("checkpoint", "local", "tmp"):
        (work_dir / name).mkdir()
    conf = {"spark.sql.shuffle.partitions": "1"} | contender.conf | extra_conf
    if contender.budget_share is not None:
        budget_bytes = max(MIN_BUDGET_BYTES, int(what.keys * KEY_AND_VALUE_BYTES * contender.budget_share))
        conf["spark.sql.streaming.stateStore.millpond.memory.budget"] = str(budget_bytes)
    paths = {"checkpoint": str(work_dir / "checkpoint"), "local_dir": str(work_dir / "local")}
    spec, result = work_dir / "spec.json", work_dir / "result.json"
    spec.write_text(json.dumps(asdict(what) | paths | {"conf": conf, "seed": seed}))
    classpath = os.pathsep.join([str(classes), *([str(jar)] if jar else []), f"{spark_jars()}/*"])
    options = [*jvm_options(what.heap_mib), f"-Djava.io.tmpdir={work_dir / 'tmp'}", *jvm_extra]
    run_measured(
        [java(), *options, "-cp", classpath, _MAIN, str(spec), str(result)],
        log=work_dir / "log",
        timeout_s=timeout_s,
    )
    measured: dict[str, Any] = json.loads(result.read_text())
    shutil.rmtree(work_dir)
    return measured
