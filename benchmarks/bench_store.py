# SPDX-License-Identifier: Apache-2.0
"""Store level: drives a provider through Spark's contract.

One JVM for each contender and repetition runs `scala/StoreBench.scala`.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.bench_contenders import KEY_AND_VALUE_BYTES, Contender
from benchmarks.bench_env import java, jvm_options, spark_jars
from benchmarks.bench_process import run_spec

MIN_BUDGET_BYTES = 64 << 10
# A budget of this share of the state's bytes surely holds all of it, with tables and old records.
WHOLE_SHARE = 2.5
_DEFAULT_HOLDS_KEYS = 4_000_000  # 30 % of the heap surely hold so many keys
_OPTIONS = "spark.sql.streaming.stateStore.millpond."
_MAIN = "org.apache.spark.sql.millpond.bench.StoreBench"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSizes:
    """How much one process does: counts of rows, operations or batches.

    Names are those of StoreBench.scala.
    """

    keys: int
    load_batch: int
    ops: int
    update_batches: int
    snapshot_batches: int
    large_batches: int
    scans: int
    restores: int
    rollbacks: int
    warmup_keys: int
    warmup_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSizes:
    """How much a process of the scans does. Names are those of ScanBench.scala."""

    keys: int
    load_batch: int
    scans: int
    prefix_scans: int
    evictions: int
    eviction_rows: int
    warmup_keys: int
    settle_ms: int


def scan_sizes(scale: float, *, quick: bool) -> ScanSizes:
    """Return the sizes of the scans for `scale` million keys, or those of the smoke test."""
    return ScanSizes(
        keys=10_000 if quick else int(500_000 * scale),
        load_batch=5_000 if quick else 100_000,
        scans=1 if quick else 5,
        prefix_scans=100 if quick else 5_000,
        evictions=2 if quick else 10,
        eviction_rows=50 if quick else 500,
        warmup_keys=2_000 if quick else 50_000,
        settle_ms=0 if quick else int(500 + 500 * scale),
    )


def sizes(scale: float, *, quick: bool) -> StoreSizes:
    """Return the sizes for `scale` million keys, or those of the smoke test."""
    if quick:
        return StoreSizes(
            keys=20_000,
            load_batch=5_000,
            ops=1_000,
            update_batches=4,
            snapshot_batches=12,
            large_batches=1,
            scans=1,
            restores=1,
            rollbacks=1,
            warmup_keys=2_000,
            warmup_batches=2,
        )
    return StoreSizes(
        keys=int(1_000_000 * scale),
        load_batch=100_000,
        ops=20_000,
        update_batches=40,
        snapshot_batches=60,
        large_batches=3,
        scans=2,
        restores=2,
        rollbacks=2,
        warmup_keys=100_000,
        warmup_batches=12,
    )


def disk_sizes(scale: float, *, quick: bool) -> StoreSizes:
    """Return the sizes for a store of which memory holds little."""
    if quick:
        return replace(sizes(scale, quick=True), large_batches=0)
    return replace(
        sizes(scale, quick=False), large_batches=0, snapshot_batches=40, scans=3, rollbacks=1
    )


def conf_of(contender: Contender, keys: int, extra_conf: dict[str, str]) -> dict[str, str]:
    """Return the session options of a process with so many keys. What `extra_conf` has, wins."""
    conf = contender.conf | extra_conf
    share = contender.budget_share
    if share is None and contender.ours and keys > _DEFAULT_HOLDS_KEYS:
        share = WHOLE_SHARE
    if share is None:
        return conf
    budget_bytes = max(MIN_BUDGET_BYTES, int(keys * KEY_AND_VALUE_BYTES * share))
    return {_OPTIONS + "memory.budget": str(budget_bytes)} | conf


def measure(
    contender: Contender,
    what: StoreSizes,
    *,
    heap_mib: int,
    classes: Path,
    jar: Path | None,
    work_dir: Path,
    seed: int,
    extra_conf: dict[str, str],
    timeout_s: float,
    jvm_extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the raw result of one process (see StoreBench.scala).

    Makes `work_dir`, and removes it if all goes well.

    Raises: BenchError: the process failed, or the store returned a wrong value.
    """
    if not contender.snapshot_phase:
        what = replace(what, snapshot_batches=0)
    conf = conf_of(contender, what.keys, extra_conf)
    spec = asdict(what) | {"seed": seed}
    return run_bench(
        spec,
        conf,
        heap_mib=heap_mib,
        classes=classes,
        jar=jar,
        work_dir=work_dir,
        timeout_s=timeout_s,
        jvm_extra=jvm_extra,
    )


def measure_scans(
    contender: Contender,
    what: ScanSizes,
    *,
    heap_mib: int,
    classes: Path,
    jar: Path | None,
    work_dir: Path,
    seed: int,
    extra_conf: dict[str, str],
    timeout_s: float,
) -> dict[str, Any]:
    """Return `{"store": raw}` (see ScanBench.scala); of Millpond `{"store": raw, "disk": raw}`.

    The second run has next to no memory tier, and measures RocksDB itself too.

    Raises: BenchError: as `measure`.
    """

    def run(what: dict[str, Any], conf: dict[str, str], name: str) -> dict[str, Any]:
        return run_bench(
            what,
            conf,
            heap_mib=heap_mib,
            classes=classes,
            jar=jar,
            work_dir=work_dir / name,
            timeout_s=timeout_s,
        )

    spec = asdict(what) | {"seed": seed, "raw": False}
    conf = contender.conf | extra_conf
    measured = {"store": run(spec, conf, "store")}
    if contender.ours:
        conf |= {
            _OPTIONS + "memory.budget": str(MIN_BUDGET_BYTES),
            _OPTIONS + "restore.warmUp": "false",
        }
        measured["disk"] = run(spec | {"raw": True}, conf, "disk")
    work_dir.rmdir()
    return measured


def measure_scan(
    contender: Contender, what: ScanSizes, *, seed: int, extra_conf: dict[str, str], **common: Any
) -> dict[str, Any]:
    """Return the raw result of one process of ScanBench.scala, with the options as given."""
    spec = asdict(what) | {"seed": seed, "raw": False}
    return run_bench(spec, contender.conf | extra_conf, **common)


def measure_many(
    contender: Contender,
    what: dict[str, Any],
    *,
    classes: Path,
    jar: Path | None,
    work_dir: Path,
    extra_conf: dict[str, str],
) -> dict[str, Any]:
    """Return the raw result of many stores in one process (see ManyStores.scala).

    Raises: BenchError: as `measure`.
    """
    return run_bench(
        what,
        {"spark.sql.shuffle.partitions": "200"} | contender.conf | extra_conf,
        heap_mib=2048,
        classes=classes,
        jar=jar,
        work_dir=work_dir,
        timeout_s=1800,
    )


def run_bench(
    what: dict[str, Any],
    conf: dict[str, str],
    *,
    heap_mib: int,
    classes: Path,
    jar: Path | None,
    work_dir: Path,
    timeout_s: float,
    jvm_extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the raw result of a process of `scala/StoreBench.scala`, whose spec is `what`.

    Makes `work_dir`, and removes it if all goes well.

    Raises: BenchError: the process failed.
    """
    work_dir.mkdir(parents=True)
    for name in ("checkpoint", "local", "tmp"):
        (work_dir / name).mkdir()
    conf = {"spark.sql.shuffle.partitions": "1"} | conf
    paths = {"checkpoint": str(work_dir / "checkpoint"), "local_dir": str(work_dir / "local")}
    classpath = os.pathsep.join([str(classes), *([str(jar)] if jar else []), f"{spark_jars()}/*"])
    options = [*jvm_options(heap_mib), f"-Djava.io.tmpdir={work_dir / 'tmp'}", *jvm_extra]
    measured = run_spec(
        [java(), *options, "-cp", classpath, _MAIN],
        what | paths | {"conf": conf},
        work_dir=work_dir,
        timeout_s=timeout_s,
    )
    shutil.rmtree(work_dir)
    return measured
