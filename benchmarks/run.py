#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare Millpond with Spark's own state stores: `make bench`, or `benchmarks/run.py --help`.

Every contender and repetition runs in a process of its own, one after the other. The contenders
alternate, and each repetition starts with another one. Results: JSON below `benchmarks/results/`, a
table on stdout, and after a full run at scale 1 the table and the chart of the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import (
    bench_chart,
    bench_contenders,
    bench_env,
    bench_profile,
    bench_python,
    bench_query,
    bench_report,
    bench_rescale,
    bench_savepoint,
    bench_snapshots,
    bench_store,
)
from benchmarks.bench_contenders import CONTENDERS, Contender
from benchmarks.bench_env import REPOSITORY, BenchError

LEVELS = ("store", "scan", "query", "python", "rescale", "savepoint")
_DOCS = REPOSITORY / "docs" / "benchmarks.md"
_CHART = REPOSITORY / "docs" / "img" / "benchmarks.svg"
_BEGIN, _END = (
    "<!-- results: written by benchmarks/run.py, do not edit -->",
    "<!-- end of results -->",
)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    scale = float(os.environ.get("SCALE") or 1)
    parser.add_argument(
        "--scale",
        type=float,
        default=scale,
        help="million keys in the store; rows of the queries follow (default: $SCALE or 1)",
    )
    parser.add_argument(
        "--repetitions", type=int, default=3, help="processes per contender and level (default 3)"
    )
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(LEVELS)} (default: all)")
    parser.add_argument(
        "--contenders", help=f"comma-separated, of {', '.join(CONTENDERS)} (default: all)"
    )
    parser.add_argument(
        "--scenarios",
        help=(
            f"comma-separated, of {', '.join(bench_query.SCENARIOS)} (default: what each contender"
            " runs)"
        ),
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="session option for every contender; repeatable",
    )
    parser.add_argument(
        "--jar", help="Millpond's jar (default: $MILLPOND_JAR, then the installed package's)"
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        help="parent of checkpoints and local state (default: the system's temporary directory)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=(
            "result file (default: benchmarks/results/<time>-<commit>-scale<n>.json; with --quick"
            " below build/bench)"
        ),
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smoke test: tiny sizes, one repetition; its figures mean nothing",
    )
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ alone")
    parser.add_argument(
        "--jfr",
        type=Path,
        metavar="DIR",
        help=(
            "profile instead of compare: one repetition of each contender under JFR, recordings"
            " into DIR, hottest frames on stdout"
        ),
    )
    parser.add_argument(
        "--render",
        type=Path,
        metavar="JSON",
        help="run nothing: write table and chart of the docs from a result file",
    )
    parsed = parser.parse_args(arguments)  # fmt: skip
    if parsed.scale <= 0 or parsed.repetitions < 1:
        parser.error("--scale and --repetitions must be positive")
    if any("=" not in option for option in parsed.conf):
        parser.error("--conf takes KEY=VALUE")
    parsed.levels = tuple(given.split(",")) if (given := parsed.only) else LEVELS
    if not set(parsed.levels) <= set(LEVELS):
        parser.error(f"--only takes some of {', '.join(LEVELS)}")
    return parsed


class _Run:
    """One invocation: settings, scratch space, and the results so far."""

    def __init__(self, given: argparse.Namespace, work_dir: Path) -> None:
        self.given, self.work_dir = given, work_dir
        self.contenders = (
            bench_contenders.parse(given.contenders)
            if given.contenders
            else list(CONTENDERS.values())
        )
        self.jar = (
            bench_env.millpond_jar(given.jar) if any(c.ours for c in self.contenders) else None
        )
        self.scenarios = (
            bench_query.parse(given.scenarios) if given.scenarios else tuple(bench_query.SCENARIOS)
        )
        self.repetitions = 1 if given.quick or given.jfr else given.repetitions
        self.conf = dict(option.split("=", 1) for option in given.conf)
        self.sizes = bench_store.sizes(given.scale, quick=given.quick)
        self.scan_sizes = bench_store.scan_sizes(given.scale, quick=given.quick)
        self.timeout_s = 400.0 if given.quick else 600.0 * max(1.0, given.scale)
        self.levels: tuple[str, ...] = given.levels
        self.rescale_sizes = bench_rescale.sizes(given.scale, quick=given.quick)
        self.savepoint_sizes = bench_savepoint.sizes(given.scale, quick=given.quick)
        self.classes = None
        if {"store", "scan", "python"} & set(self.levels):
            self.classes = bench_env.compile_store_bench(REPOSITORY / "build" / "bench")
        self.profiles: list[str] = []
        self.failures: list[dict[str, Any]] = []

    def results(self) -> dict[str, Any]:
        """Run everything that the command line asks for.

        If a contender fails, this records it, and the others go on.
        """
        begin = time.monotonic()
        results: dict[str, Any] = {"format": 1, **bench_env.describe_host(self.work_dir)}
        results |= {
            "scale": self.given.scale,
            "quick": self.given.quick,
            "repetitions": self.repetitions,
            "conf": self.conf,
        }
        results["contenders"] = [asdict(c) for c in self.contenders]
        results["store_sizes"] = asdict(self.sizes)
        asked = bench_query.scenarios(self.scenarios, self.given.scale, quick=self.given.quick)
        results["query_sizes"] = [asdict(s) for s in asked]
        results["scan_sizes"] = asdict(self.scan_sizes)
        results["rescale_sizes"] = asdict(self.rescale_sizes)
        results["savepoint_sizes"] = asdict(self.savepoint_sizes)
        takes_part: dict[
            str, tuple[list[Contender], Callable[[Contender, int], dict[str, Any]]]
        ] = {
            "store": (self.contenders, self._store),
            "scan": ([c for c in self.contenders if c.scans and not self.given.jfr], self._scan),
            "query": ([c for c in self.contenders if self._scenarios(c)], self._query),
            "python": (
                [c for c in self.contenders if c.name in bench_python.CONTENDERS],
                self._python,
            ),
            "rescale": (
                [c for c in self.contenders if c.name in bench_rescale.CONTENDERS],
                self._rescale,
            ),
            "savepoint": (
                [c for c in self.contenders if c.name in bench_savepoint.CONTENDERS],
                self._savepoint,
            ),
        }
        for level, (contenders, measure) in takes_part.items():
            results[level] = self._level(level, contenders, measure)
        results["failures"] = self.failures
        results["summary"] = bench_report.summarise(results)
        results["seconds"] = round(time.monotonic() - begin, 1)
        return results

    def _level(
        self,
        level: str,
        contenders: Sequence[Contender],
        measure: Callable[[Contender, int], dict[str, Any]],
    ) -> dict[str, list[dict[str, Any]]]:
        if level not in self.levels:
            return {}
        raw: dict[str, list[dict[str, Any]]] = {c.name: [] for c in contenders}
        for repetition in range(self.repetitions):
            turn = repetition % max(1, len(contenders))
            for contender in [*contenders[turn:], *contenders[:turn]]:
                begin = time.monotonic()
                try:
                    raw[contender.name].append(measure(contender, repetition))
                    said = "done"
                except BenchError as error:
                    self.failures.append(
                        {
                            "level": level,
                            "contender": contender.name,
                            "repetition": repetition,
                            "error": str(error),
                        }
                    )
                    said = f"FAILED: {error}"
                which = f"{level} {repetition + 1}/{self.repetitions} {contender.name}"
                print(
                    f"bench: {which}: {time.monotonic() - begin:.1f} s, {said}",
                    file=sys.stderr,
                    flush=True,
                )
        return raw

    def _scenarios(self, contender: Contender) -> tuple[str, ...]:
        return tuple(s for s in self.scenarios if s in contender.queries)

    def _heap_mib(self, contender: Contender) -> int:
        return 512 if self.given.quick else contender.heap_mib(self.given.scale)

    def _session_heap_mib(self) -> int:
        """Return the heap for a whole query, in MiB.

        It is the same for every contender, because the query itself needs most of it.
        """
        return 1024 if self.given.quick else int(2048 + 1024 * self.given.scale)

    def _recording(self, name: str, contender: Contender) -> Path | None:
        if self.given.jfr is None:
            return None
        self.given.jfr.mkdir(parents=True, exist_ok=True)
        return Path(self.given.jfr).resolve() / f"{name}-{contender.name}.jfr"

    def _profile(self, recording: Path | None, result: dict[str, Any], name: str) -> dict[str, Any]:
        if recording is not None:
            self.profiles.append(
                bench_profile.report(recording, bench_profile.phases_of(result, name))
            )
        return result

    def _store(self, contender: Contender, repetition: int) -> dict[str, Any]:
        assert self.classes is not None  # compiled for this level
        recording = self._recording("store", contender)
        result = bench_store.measure(
            contender,
            self.sizes,
            heap_mib=self._heap_mib(contender),
            classes=self.classes,
            jar=self.jar if contender.ours else None,
            work_dir=self.work_dir / f"store-{contender.name}-{repetition}",
            seed=1000 + repetition,  # the same keys in the same order for every contender
            extra_conf=self.conf,
            timeout_s=self.timeout_s,
            jvm_extra=bench_profile.jvm_options(recording) if recording else (),
        )
        return self._profile(recording, result, "store")

    def _python(self, contender: Contender, repetition: int) -> dict[str, Any]:
        assert self.classes is not None  # compiled for this level
        return bench_python.measure(
            contender,
            bench_python.scenarios(contender.name, scale=self.given.scale, quick=self.given.quick),
            jar=self.jar if contender.ours else None,
            classes=self.classes,
            work_dir=self.work_dir / f"python-{contender.name}-{repetition}",
            extra_conf=self.conf,
            timeout_s=self.timeout_s,
        )

    def _rescale(self, contender: Contender, repetition: int) -> dict[str, Any]:
        return bench_rescale.measure(
            contender,
            self.rescale_sizes,
            jar=self.jar if contender.ours else None,
            work_dir=self.work_dir / f"rescale-{contender.name}-{repetition}",
            heap_mib=self._session_heap_mib(),
            extra_conf=self.conf,
            timeout_s=self.timeout_s * 2,
        )

    def _savepoint(self, contender: Contender, repetition: int) -> dict[str, Any]:
        return bench_savepoint.measure(
            contender,
            self.savepoint_sizes,
            jar=self.jar if contender.ours else None,
            work_dir=self.work_dir / f"savepoint-{contender.name}-{repetition}",
            heap_mib=self._session_heap_mib(),
            extra_conf=self.conf,
            timeout_s=self.timeout_s,
        )

    def _scan(self, contender: Contender, repetition: int) -> dict[str, Any]:
        assert self.classes is not None  # compiled for this level
        return bench_store.measure_scans(
            contender,
            self.scan_sizes,
            heap_mib=self._heap_mib(contender),
            classes=self.classes,
            jar=self.jar if contender.ours else None,
            work_dir=self.work_dir / f"scan-{contender.name}-{repetition}",
            seed=1000 + repetition,
            extra_conf=self.conf,
            timeout_s=self.timeout_s,
        )

    def _query(self, contender: Contender, repetition: int) -> dict[str, Any]:
        results = {}
        for scenario in bench_query.scenarios(
            self._scenarios(contender), self.given.scale, quick=self.given.quick
        ):
            recording = self._recording(scenario.name, contender)
            result = bench_query.measure(
                contender,
                scenario,
                jar=self.jar if contender.ours else None,
                work_dir=self.work_dir / f"{scenario.name}-{contender.name}-{repetition}",
                heap_mib=self._session_heap_mib(),
                extra_conf=self.conf,
                timeout_s=self.timeout_s,
                java_options=" ".join(bench_profile.jvm_options(recording)) if recording else "",
            )
            results[scenario.name] = self._profile(recording, result, scenario.name)
        return results


def _write_docs(results: dict[str, Any], source: Path) -> None:
    """Replace the generated part of docs/benchmarks.md, and the chart."""
    host, versions = results["host"], results["versions"]
    machine = (
        f"{host['cores']} cores of {host['cpu']}, {host['memory_bytes'] / 2**30:.0f} GiB,"
        f" {host['file_system']}"
    )
    software = (
        f"Spark {versions['spark']}, RocksDB {versions['rocksdbjni']}, {versions['java']}, Python"
        f" {versions['python']}"
    )
    commit = f"commit `{results['commit'][:12]}`{' with changes' if results['dirty'] else ''}"
    where = (
        f"Measured {results['time_utc']} on {machine}; {software}; {commit}. "
        f"Medians of {results['repetitions']} processes each. "
    )
    named = source.resolve()
    raw = named.relative_to(REPOSITORY) if named.is_relative_to(REPOSITORY) else None
    link = f"Raw durations: [`{raw}`](../{raw})." if raw else ""
    table = bench_report.markdown(results, goals=False)
    beside = bench_snapshots.table(results["store"])
    text = (
        f"{where}{link}\n\n{table}\n\nA snapshot beside the"
        f" batches:\n\n{beside}\n\n![Chart](img/benchmarks.svg)"
    )
    chart = bench_chart.svg(results)  # before the page: if this fails, neither changes
    bench_env.replace_generated(_DOCS, _BEGIN, _END, text)
    _CHART.parent.mkdir(parents=True, exist_ok=True)
    _CHART.write_text(chart)


def _complete(results: dict[str, Any]) -> bool:
    """Return whether the docs may show the results: everything ran, in full size, at scale 1."""
    everyone = {c["name"] for c in results["contenders"]} == set(CONTENDERS)
    every_level = all(results[level] for level in LEVELS)
    return (
        everyone
        and every_level
        and results["scale"] == 1
        and not (results["quick"] or results["failures"] or results["conf"])
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 1 if a contender failed, or the contenders' states differ; 2 if nothing can run."""
    given = _arguments(arguments)
    # An exception ends the measured processes too: they have sessions of their own.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        if given.render:
            _write_docs(json.loads(given.render.read_text()), given.render)
            return 0
        work_dir = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=given.work_dir))
        try:
            run = _Run(given, work_dir)
            results = run.results()
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)
        suffix = f"-scale{results['scale']:g}"
        out = bench_env.write_results(results, given.out, suffix=suffix, indent=1)
        if given.jfr:
            print("\n\n".join(run.profiles))
        print(bench_report.plain(results))
        print(f"\n{bench_snapshots.table(results['store'])}")
        print(f"\nresults: {out} ({results['seconds']} s in all)")
        if _complete(results) and not (given.no_docs or given.jfr):
            _write_docs(results, out)
            print(f"docs: {_DOCS.relative_to(REPOSITORY)}, {_CHART.relative_to(REPOSITORY)}")
    except (BenchError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    problems = [f"{f['level']} {f['contender']} failed" for f in results["failures"]]
    problems += bench_report.disagreements(results["query"])
    problems += bench_report.disagreements(results["python"])
    problems += bench_report.rescale_disagreements(results["rescale"])
    problems += bench_report.savepoint_disagreements(results["savepoint"])
    for problem in problems:
        print(f"bench: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
