# SPDX-License-Identifier: Apache-2.0
"""Flink for the benchmarks: its jars, and a process of it.

`python -m benchmarks.bench_flink` fetches the jars, a quarter of a gigabyte, from PyPI, and the
reader of Parquet and the connector to Kafka from Maven Central. They lie below build/, and nothing
of the project depends on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import bench_env
from benchmarks.bench_env import REPOSITORY, BenchError

VERSION = "2.3.0"
SOURCES = REPOSITORY / "benchmarks" / "scala-flink"
POM = SOURCES / "pom.xml"
_LIB = REPOSITORY / "build" / "flink" / VERSION
_PARQUET = REPOSITORY / "build" / "flink" / "parquet"
_KAFKA = REPOSITORY / "build" / "flink" / "kafka"
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


def fetch_beside() -> None:
    """Fetch what Flink's package lacks, unless it is there. Raises: BenchError: it fails."""
    from integration.peers import fetching, maven

    try:
        for target in (_PARQUET, _KAFKA):
            maven.fetch(POM, target.name, target)
    except fetching.FetchError as error:
        raise BenchError(f"no reader of Parquet, or connector to Kafka: {error}") from error


def jars() -> list[Path]:
    """Return Flink's jars. Raises: BenchError: they are not there."""
    if not _LIB.is_dir():
        raise BenchError("no jars of Flink: `python -m benchmarks.bench_flink` fetches them")
    return sorted(_LIB.glob("*.jar"))


def parquet_jars() -> list[Path]:
    """Return the reader of Parquet, and Spark's jars that it needs.

    Raises: BenchError: it is not there.
    """
    found = sorted(_PARQUET.glob("*.jar"))
    if not found:
        raise BenchError("no reader of Parquet: `python -m benchmarks.bench_flink` fetches it")
    spark = bench_env.spark_jars()
    for name in ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j"):
        found += spark.glob(f"{name}-[0-9]*.jar")
    return found


def kafka_jars() -> list[Path]:
    """Return the connector to Kafka, and what it needs. Raises: BenchError: it is not there."""
    found = sorted(_KAFKA.glob("*.jar"))
    if not found:
        raise BenchError("no connector to Kafka: `python -m benchmarks.bench_flink` fetches it")
    return found


def command(
    main: str, cache: Path, sources: Sequence[Path], path: Sequence[Path], heap: Sequence[str]
) -> list[str]:
    """Return the command that runs a Scala program beside Flink, without its arguments.

    Args:
        main: its class.
        cache: where its classes are, once they are compiled.
        path: jars.
        heap: options of the JVM.
    """
    classes = bench_env.compile_beside(cache, "flink", sources, path)
    library = next(bench_env.spark_jars().glob("scala-library-*.jar"))
    return [
        bench_env.java(),
        *heap,
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
        "-cp",
        os.pathsep.join(map(str, [classes, library, *path])),
        f"org.apache.spark.sql.millpond.bench.{main}",
    ]


if __name__ == "__main__":
    try:
        fetch()
        fetch_beside()
    except BenchError as failure:
        sys.exit(f"bench-flink: {failure}")
