# SPDX-License-Identifier: Apache-2.0
"""Measures a store whose state is about eight times its memory, beside Spark's RocksDB store.

    make bench-disk DISK_ARGS='--keys 5000000 --budget-mib 64'

`scala/StoreBench.scala` and `scala/ScanBench.scala` drive each provider through Spark's contract,
each in a process of its own, and the contenders take turns. The scans have half the keys and half
the budget. Prints a table of medians with the ratio to Spark's store, and writes the raw durations
below `benchmarks/results`. With `--jfr` it profiles instead: the hottest frames on stdout.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_contenders, bench_env, bench_profile, bench_store
from benchmarks.bench_contenders import BASELINE, OURS, in_turn
from benchmarks.bench_env import REPOSITORY
from benchmarks.bench_extracts import Extract, number
from benchmarks.bench_extracts import median as median_of
from benchmarks.bench_report import figure, table, times

_BUDGET = "spark.sql.streaming.stateStore.millpond.memory.budget"
_MIB = 1 << 20
_HEAP_MIB = 2048

Raw = Mapping[str, Any]


# Title, what measures it, and how it is read from a raw result. Of all of them less is better.
ROWS: tuple[tuple[str, str, Extract], ...] = (
    ("load, us a key", "store", number("load_us_per_key")),
    ("get+put, us", "store", median_of("update_us_per_op")),
    ("get+put, p99, us", "store", number("update_latency_us", "p99")),
    ("commit, ms", "store", median_of("update_commit_ms")),
    ("re-open of the last version, ms", "store", median_of("update_reopen_ms")),
    ("re-open, mean, ms", "store", lambda raw: mean(raw["update_reopen_ms"])),
    (
        "get+put, p99, beside snapshots, us",
        "store",
        number("update_with_snapshots_latency_us", "p99"),
    ),
    ("commit beside snapshots, ms", "store", median_of("update_with_snapshots_commit_ms")),
    ("re-open beside snapshots, ms", "store", median_of("update_with_snapshots_reopen_ms")),
    ("full scan, us a row", "store", median_of("scan_us_per_row")),
    ("prefix scan of ten rows, us", "scan", median_of("prefix_scan_us")),
    ("scan in order, us a row", "scan", median_of("ordered_scan_us_per_row")),
    ("restore to the first get, ms", "store", median_of("restore_first_get_ms")),
    ("restore to all rows read, ms", "store", median_of("restore_all_ms")),
    ("written to disk by load and updates, MiB", "store", number("written_bytes", scale=1 / _MIB)),
    ("local disk after the updates, MiB", "store", number("local_bytes", scale=1 / _MIB)),
    (
        "memory beyond the heap, MiB",
        "store",
        number("memory", "after_update", "native", scale=1 / _MIB),
    ),
)


def summary(raw: Mapping[str, Mapping[str, Sequence[Raw]]]) -> dict[str, dict[str, float]]:
    """Return by row and contender the median over the processes.

    raw: by contender and level, the raw results of its processes.
    """
    return {
        title: {
            name: median(values)
            for name, levels in raw.items()
            if (values := [v for one in levels.get(level, ()) if (v := read(one)) is not None])
        }
        for title, level, read in ROWS
    }


def markdown(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table of a summary."""
    rows = []
    for title, by_name in found.items():
        ours, peer = by_name.get(OURS), by_name.get(BASELINE)
        ratio = times(peer / ours) if ours and peer else "-"
        rows.append([title, figure(ours), figure(peer), ratio])
    return table(["", "Millpond", "Spark's RocksDB, changelog", "ratio"], rows)


def _measure(
    name: str, level: str, given: argparse.Namespace, repetition: int, work: Path, classes: Path
) -> Raw:
    contender = bench_contenders.CONTENDERS[name]
    half = 2 if level == "scan" else 1
    scale = given.keys / half / 1e6
    conf = dict(option.split("=", 1) for option in given.conf)
    if contender.ours:
        conf = {_BUDGET: str(int(given.budget_mib * _MIB / half))} | conf
    jar = bench_env.millpond_jar(given.jar) if contender.ours else None
    recording = given.jfr.resolve() / f"{level}-{name}.jfr" if given.jfr else None
    common: dict[str, Any] = {
        "heap_mib": _HEAP_MIB,
        "classes": classes,
        "jar": jar,
        "work_dir": work / f"{level}-{name}-{repetition}",
        "seed": 1000 + repetition,
        "extra_conf": conf,
        "timeout_s": 1200,
        "jvm_extra": bench_profile.jvm_options(recording) if recording else (),
    }
    if level == "scan":
        sizes = bench_store.scan_sizes(scale * 2, quick=given.quick)
        return bench_store.measure_scan(contender, sizes, **common)
    result = bench_store.measure(
        contender, bench_store.disk_sizes(scale, quick=given.quick), **common
    )
    if recording:
        print(bench_profile.report(recording, bench_profile.phases_of(result, level)))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--budget-mib", type=float, default=24, help="Millpond's memory.budget")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--contenders", default=f"{OURS},{BASELINE}")
    parser.add_argument("--only", default="store,scan", help="store, scan, or both")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jar", help="Millpond's jar (default: the installed package's)")
    parser.add_argument("--work-dir", type=Path, help="parent of checkpoints and local state")
    parser.add_argument("--out", type=Path, help="result file; `-`: none")
    parser.add_argument("--jfr", type=Path, metavar="DIR", help="profile one process of each")
    parser.add_argument("--quick", action="store_true", help="smoke test: tiny sizes")
    given = parser.parse_args(arguments)
    if given.jfr:
        given.jfr.mkdir(parents=True, exist_ok=True)
    names = [c.name for c in bench_contenders.parse(given.contenders)]
    levels = given.only.split(",")
    classes = bench_env.compile_store_bench(REPOSITORY / "build" / "bench")
    work = Path(tempfile.mkdtemp(prefix="bench-disk-", dir=given.work_dir))
    raw: dict[str, dict[str, list[Raw]]] = {n: {level: [] for level in levels} for n in names}
    try:
        results: dict[str, Any] = bench_env.describe_host(work)
        for repetition in range(1 if given.jfr else given.repetitions):
            for level in levels:
                for name in in_turn(names, repetition):
                    raw[name][level].append(_measure(name, level, given, repetition, work, classes))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    found = summary(raw)
    results |= {
        "quick": given.quick,
        "keys": given.keys,
        "budget_mib": given.budget_mib,
        "conf": given.conf,
    }
    results |= {"repetitions": given.repetitions, "summary": found, "raw": raw}
    print(markdown(found))
    if given.out != Path("-") and not given.jfr:
        out = bench_env.write_results(results, given.out, prefix="disk-", indent=1)
        print(f"\nresults: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
