# SPDX-License-Identifier: Apache-2.0
"""Measures a query with far more state than memory for half an hour, beside Spark's RocksDB store.

    make bench-large LARGE_ARGS='--keys 50000000 --budget-mib 512 --minutes 30'

Rows of about 100 bytes. A count by key, first of new keys alone, then of keys at random, with
snapshots and retention as they are by default. Then a process of its own restores it. Millpond's
state is saved and rescaled, too. Prints tables, and writes all batches below `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_contenders, bench_env
from benchmarks.bench_contenders import BASELINE, OURS, Contender
from benchmarks.bench_env import bytes_below, run_program
from benchmarks.bench_extracts import percentile
from benchmarks.bench_process import millpond, run_spec
from benchmarks.bench_query import session_conf
from benchmarks.bench_report import figure, table

_ROW_BYTES = 104
_MIB = 1 << 20
_HEAP_MIB = 2048
_PARTS = 6  # that the updates are told in


def parts(raw: Mapping[str, Any], count: int = _PARTS) -> list[list[dict[str, Any]]]:
    """Return the batches of the updates in `count` parts of the same time."""
    begin, end = raw["updates"][0]["second"], raw["updates"][-1]["second"]
    found: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for one in raw["updates"]:
        share = (one["second"] - begin) / max(end - begin, 1e-9)
        found[min(count - 1, int(share * count))].append(one)
    return [part for part in found if part]


def _during(raw: Mapping[str, Any], batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples while these batches ran, or the next one."""
    within = [
        s for s in raw["samples"] if batches[0]["second"] <= s["second"] <= batches[-1]["second"]
    ]
    return within or [next(s for s in raw["samples"] if s["second"] >= batches[-1]["second"])]


def _line(name: str, raw: Mapping[str, Any], batches: Sequence[Mapping[str, Any]]) -> list[str]:
    took = [b["trigger_ms"] for b in batches]
    samples = _during(raw, batches)
    return [
        name,
        figure(sum(b["rows"] for b in batches) / sum(took) * 1000),
        figure(median(took)),
        figure(percentile(took, 0.99)),
        *(
            figure(max(s[f"{what}_bytes"] for s in samples) / _MIB)
            for what in ("resident", "local", "stored")
        ),
    ]


def written_share(raw: Mapping[str, Any]) -> float:
    """Return the bytes written to disk for each byte of a row that was put."""
    put = sum(b["state_rows_updated"] for b in [*raw["load"], *raw["updates"]]) * _ROW_BYTES
    return float(raw["samples"][-1]["written_bytes"] / put)


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of the results."""
    said = []
    for name, raw in results["raw"].items():
        lines = [_line("load", raw, raw["load"])]
        lines += [_line(f"updates {i + 1}", raw, part) for i, part in enumerate(parts(raw))]
        heads = ["rows/s", "batch, ms", "its p99, ms", "resident, MiB", "local disk, MiB"]
        said += [f"{name}:", "", table([name, *heads, "stored, MiB"], lines), ""]
        figures = {"written for each byte put": written_share(raw)} | raw["afterwards"]
        said += [table(["", name], [[k, figure(v)] for k, v in figures.items()]), ""]
    return "\n".join(said)


def _measure(contender: Contender, given: argparse.Namespace, work: Path) -> dict[str, Any]:
    jar = bench_env.millpond_jar(None) if contender.ours else None
    conf = session_conf(
        contender, contender.bounded(given.budget_mib), work_dir=work, heap_mib=_HEAP_MIB, jar=jar
    )
    checkpoint = work / "query"
    spec = {
        "conf": conf,
        "checkpoint": str(checkpoint),
        "keys": given.keys,
        "load_rows": max(1, given.keys // given.load_batches),
        "rows": given.rows,
        "seconds": given.minutes * 60,
        "partitions": 4,
        "restored_batches": 3,
    }
    work.mkdir(parents=True)

    def run(phase: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.bench_large_job"]
        took = run_spec(
            command,
            {**spec, "phase": phase},
            work_dir=work / phase,
            timeout_s=3600 + 3 * given.minutes * 60,
        )
        shutil.rmtree(work / "local", ignore_errors=True)
        return took

    raw = run("run")
    restored = run("restore")
    afterwards = {
        "start to the first batch after a restore, s": restored["first_batch_s"],
        "the third batch after it, ms": restored["batches"][2]["trigger_ms"],
        "stored, MiB": bytes_below(checkpoint / "state") / _MIB,
    }
    if contender.ours:
        shutil.rmtree(checkpoint / "millpond" / "running", ignore_errors=True)  # it was killed
        saved = str(work / "savepoint")
        afterwards["savepoint, s"] = millpond("savepoint", "create", str(checkpoint), saved)[0]
        afterwards["rescale from 4 to 8, s"] = millpond(
            "rescale", str(checkpoint), "--partitions", "8", "--skip-uncommitted"
        )[0]
        spec["partitions"] = 8
        again = run("restore")
        afterwards["start to the first batch after the rescale, s"] = again["first_batch_s"]
    return {**raw, "afterwards": afterwards}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=50_000_000)
    parser.add_argument("--load-batches", type=int, default=50, help="so many have new keys")
    parser.add_argument("--rows", type=int, default=200_000, help="of a batch of updates")
    parser.add_argument("--budget-mib", type=float, default=512, help="memory for state")
    parser.add_argument("--minutes", type=float, default=30, help="of updates")
    parser.add_argument("--contenders", default=f"{OURS},{BASELINE}")
    parser.add_argument("--work-dir", type=Path, help="parent of Spark checkpoints and local state")
    parser.add_argument("--out", type=Path, help="result file")
    given = parser.parse_args(arguments)
    contenders = bench_contenders.parse(given.contenders)

    def measure(work: Path) -> dict[str, Any]:
        raw = {}
        for contender in contenders:
            folder = (given.work_dir or work) / contender.name
            try:
                raw[contender.name] = _measure(contender, given, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        asked = {n: getattr(given, n) for n in ("keys", "rows", "budget_mib", "minutes")}
        return {**asked, "raw": raw}

    return run_program("large", given.out, measure, markdown)


if __name__ == "__main__":
    sys.exit(main())
