# SPDX-License-Identifier: Apache-2.0
"""Flink beside the contenders of `bench_latency`: its jars, and the process of one cell.

`python -m benchmarks.bench_latency_flink` fetches the jars, a quarter of a gigabyte, from PyPI.
They lie below build/, and nothing of the project depends on them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from benchmarks import bench_env
from benchmarks.bench_env import REPOSITORY, BenchError, run_measured
from benchmarks.bench_latency_measures import derive
from benchmarks.bench_latency_query import BUFFER_MS, plan_text

VERSION = "2.3.0"
_LIB = REPOSITORY / "build" / "flink" / VERSION
_HEAP_MIB = 2048
# What Flink's own scripts open for Java 17.
_OPENS = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.nio",
    "java.base/java.net",
    "java.base/java.io",
    "java.base/java.text",
    "java.base/java.time",
)


def fetch() -> None:
    """Fetch the jars, unless they are there. Raises: BenchError: PyPI is out of reach."""
    if _LIB.is_dir():
        return
    work = _LIB.with_name(f".{VERSION}-{os.getpid()}")
    work.mkdir(parents=True)
    try:
        named = f"apache-flink-libraries=={VERSION}"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:"]
        done = subprocess.run([*command, "-d", str(work), named], capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"pip cannot fetch {named}:\n{done.stderr[-2000:]}")
        (archive,) = work.glob("*.tar.gz")
        lib = work / "lib"
        lib.mkdir()
        with tarfile.open(archive) as packed:
            for member in packed:
                path = Path(member.name)
                if path.suffix == ".jar" and path.parent.name == "lib":
                    source = packed.extractfile(member)
                    assert source is not None
                    with (lib / path.name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        lib.rename(_LIB)
    finally:
        shutil.rmtree(work)


def _jars() -> list[Path]:
    if not _LIB.is_dir():
        raise BenchError("no jars of Flink: `make bench-latency-flink` fetches them")
    return sorted(_LIB.glob("*.jar"))


def measure(cell: dict[str, Any], work: Path, cache: Path, *, timeout_s: float) -> dict[str, Any]:
    """Return the figures of one process. Raises: BenchError: it failed, or there are no jars."""
    jars = _jars()
    scala = REPOSITORY / "benchmarks"
    sources = [scala / "scala-flink" / "FlinkLatency.scala", scala / "scala" / "Latencies.scala"]
    classes = bench_env.compile_beside(cache, "flink", sources, jars)
    library = next(bench_env.spark_jars().glob("scala-library-*.jar"))
    result = work / "result.json"
    command = [bench_env.java(), f"-Xms{_HEAP_MIB}m", f"-Xmx{_HEAP_MIB}m"]
    command += [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS]
    command += ["-cp", os.pathsep.join(map(str, [classes, library, *jars]))]
    command += ["org.apache.spark.sql.millpond.bench.FlinkLatency", plan_text(cell), cell["query"]]
    command += [str(cell["trigger_s"] * 1000), str(BUFFER_MS), str(work), str(result)]
    run_measured(command, log=work / "log", timeout_s=timeout_s)
    return derive(json.loads(result.read_text()), [], cell["trigger_s"] * 1000)


if __name__ == "__main__":
    try:
        fetch()
    except BenchError as error:
        sys.exit(f"bench-latency: {error}")
