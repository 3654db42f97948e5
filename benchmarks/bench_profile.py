# SPDX-License-Identifier: Apache-2.0
"""Where the time goes: reads a JFR recording, and prints the hottest frames by phase and thread.

JFR samples Java code (`jdk.ExecutionSample`) apart from code in JNI or system calls
(`jdk.NativeMethodSample`). Of the latter it samples only one thread a tick. So shares within each
kind are right, and shares between them are not. The time in native code is therefore the rest of
the wall time.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.bench_env import BenchError, java

_PERIOD_MS = 10
_THREADS = re.compile(
    r"main|bench-snapshot-maintenance|Executor task launch worker|state-store-maintenance|millpond",
    re.I,
)
_MILLPOND_FRAME = re.compile(r"millpond\.(?!bench\.)")
_OURS = "org.apache.spark.sql.millpond."


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the recording: half-open, in milliseconds since the epoch."""

    name: str
    from_ms: float
    to_ms: float


def jvm_options(recording: Path) -> tuple[str, ...]:
    """Return the options that record a JVM into `recording` until it ends."""
    periods = (
        f"jdk.ExecutionSample#period={_PERIOD_MS}ms,jdk.NativeMethodSample#period={_PERIOD_MS}ms"
    )
    return (
        "-XX:+UnlockDiagnosticVMOptions",
        # Otherwise JFR charges samples of inlined code to the nearest safepoint.
        "-XX:+DebugNonSafepoints",
        f"-XX:StartFlightRecording=filename={recording},settings=profile,{periods}",
    )


def phases_of(result: Mapping[str, Any], name: str) -> list[Phase]:
    """Return the phases of a raw store result. A query's result is one phase, `name`."""
    if "phases" in result:
        return [Phase(p["name"], p["from_ms"], p["to_ms"]) for p in result["phases"]]
    return [Phase(name, result["from_ms"], result["to_ms"])]


def report(recording: Path, phases: Sequence[Phase], *, top: int = 15) -> str:
    """Return the hottest frames and allocations of a recording, phase by phase.

    Raises: BenchError: no `jfr`, or it fails.
    """
    events = _events(
        recording,
        (
            "jdk.ExecutionSample",
            "jdk.NativeMethodSample",
            "jdk.ObjectAllocationSample",
            "jdk.GCPhasePause",
        ),
    )
    lines = [f"JFR recording: {recording}"]
    for phase in phases:
        inside = [e for e in events if phase.from_ms <= e["at_ms"] < phase.to_ms]
        pauses = [
            _duration_ms(e["values"]["duration"]) for e in inside if e["type"] == "jdk.GCPhasePause"
        ]
        wall = phase.to_ms - phase.from_ms
        lines.append(
            f"\n=== {phase.name}: {wall:.0f} ms, {len(pauses)} GC pauses of {sum(pauses):.0f} ms"
            " in all"
        )
        by_thread: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in inside:
            thread = _thread(event["values"])
            if event["type"] in (
                "jdk.ExecutionSample",
                "jdk.NativeMethodSample",
            ) and _THREADS.search(thread):
                by_thread[thread].append(event)
        for thread, samples in sorted(by_thread.items(), key=lambda t: -len(t[1])):
            lines += _thread_report(thread, samples, wall, top)
        lines += _allocations([e for e in inside if e["type"] == "jdk.ObjectAllocationSample"], top)
    return "\n".join(lines)


def _thread_report(
    thread: str, samples: Sequence[Mapping[str, Any]], wall_ms: float, top: int
) -> list[str]:
    in_java = [_frames(s) for s in samples if s["type"] == "jdk.ExecutionSample"]
    native = [_frames(s) for s in samples if s["type"] == "jdk.NativeMethodSample"]
    java_ms = len(in_java) * _PERIOD_MS
    lines = [
        f"--- {thread}: Java {java_ms} ms of {wall_ms:.0f} ms of wall time, the rest native or"
        " waiting"
    ]
    for title, stacks in (("Java", in_java), ("native", native)):
        if stacks:
            lines.append(f"  {title}, the frame itself ({len(stacks)} samples)")
            lines += _ranking(Counter(s[0] for s in stacks if s), len(stacks), top)
    # This benchmark's own classes are in Millpond's package too. They call everything.
    ours = [
        [f for f in dict.fromkeys(stack) if _MILLPOND_FRAME.match(f)]
        for stack in (*in_java, *native)
    ]
    inclusive = Counter(frame for stack in ours for frame in stack)
    if inclusive:
        lines.append("  Millpond's methods, callees included (Java and native samples)")
        lines += _ranking(inclusive, len(in_java) + len(native), top)
    return lines


def _ranking(counts: Counter[str], total: int, top: int) -> list[str]:
    return [f"    {100 * n / total:5.1f}%  {name}" for name, n in counts.most_common(top)]


def _allocations(events: Sequence[Mapping[str, Any]], top: int) -> list[str]:
    weights: Counter[str] = Counter()
    for event in events:
        frames = _frames(event)
        weights[
            f"{_class_name(event['values']['objectClass'])} in {frames[0] if frames else '?'}"
        ] += int(event["values"]["weight"])
    total = sum(weights.values())
    if not total:
        return []
    return [f"  allocated about {total / 2**20:.0f} MiB", *_ranking(weights, total, min(top, 8))]


def _events(recording: Path, types: Iterable[str]) -> list[dict[str, Any]]:
    beside_java = Path(java()).resolve().parent / "jfr"
    tool = str(beside_java) if beside_java.exists() else shutil.which("jfr")
    if tool is None:
        raise BenchError("no `jfr` tool beside java: profiling needs a JDK")
    command = [
        tool,
        "print",
        "--json",
        "--stack-depth",
        "24",
        "--events",
        ",".join(types),
        str(recording),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"jfr print failed: {done.stderr.strip() or done.stdout.strip()[:500]}")
    events: list[dict[str, Any]] = json.loads(done.stdout)["recording"]["events"]
    for event in events:
        event["at_ms"] = (
            datetime.fromisoformat(_micros(event["values"]["startTime"])).timestamp() * 1000
        )
    return events


def _micros(iso: str) -> str:
    """Cut a time of JFR to microseconds: it has nanoseconds, and `fromisoformat` reads fewer."""
    return re.sub(r"\.(\d+)", lambda m: "." + m[1][:6].ljust(6, "0"), iso).replace("Z", "+00:00")


def _duration_ms(iso: str) -> float:
    found = re.fullmatch(r"PT(?:([\d.]+)M)?([\d.]+)S", iso)
    return (float(found[1] or 0) * 60 + float(found[2])) * 1000 if found else 0.0


def _thread(values: Mapping[str, Any]) -> str:
    thread = values.get("sampledThread") or {}
    return re.sub(r"[-#]?\d+.*| for task.*", "", thread.get("javaName") or "?").strip()


def _class_name(object_class: Mapping[str, Any]) -> str:
    return str(object_class["name"]).replace("/", ".")


def _frames(event: Mapping[str, Any]) -> list[str]:
    """Return the frames, innermost first, as `Class.method:line`, without packages."""
    trace = event["values"].get("stackTrace") or {}
    names = []
    for frame in trace.get("frames", ()):
        method = frame["method"]
        owner = str(method["type"]["name"]).replace("/", ".")
        short = (
            owner.removeprefix("org.apache.spark.sql.")
            if owner.startswith(_OURS)
            else owner.rsplit(".", 1)[-1]
        )
        # The class of a lambda has another name in each run.
        short = re.sub(r"\$\$Lambda.*", "$Lambda", short)
        names.append(f"{short}.{method['name']}:{frame['lineNumber']}")
    return names
