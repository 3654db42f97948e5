# SPDX-License-Identifier: Apache-2.0
"""What a benchmark process needs: java, jars, the compiled Scala main. What its results must name.

Results name the host, the versions and the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "jvm-shim"))
from build_shim import BuildError, compile_scala, find_java  # noqa: E402

_SCALA = REPOSITORY / "benchmarks" / "scala"

# org.apache.spark.launcher.JavaModuleOptions: what spark-submit adds for Java 17.
_MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)


class BenchError(Exception):
    """The benchmark cannot go on. The message says what to do."""


def java() -> str:
    """Return the java launcher. Raises: BenchError: none found."""
    try:
        return find_java()
    except BuildError as error:
        raise BenchError(str(error)) from error


def spark_jars() -> Path:
    """Return the directory of pyspark's jars."""
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def millpond_jar(given: str | None) -> Path:
    """Return Millpond's jar: `given`, else `$MILLPOND_JAR`, else the installed package's.

    Raises: BenchError: there is none.
    """
    named = given or os.environ.get("MILLPOND_JAR")
    if named is None:
        try:
            import millpond
        except ImportError as error:
            raise BenchError(
                "package millpond is not installed in this Python: run `make build`"
            ) from error
        named = str(millpond.jar())
    path = Path(named)
    if not path.is_file():
        raise BenchError(
            f"Millpond's jar {path} is not there: run `make build`, or name it by --jar"
        )
    return path.resolve()


def compile_store_bench(cache: Path) -> Path:
    """Return a directory with the classes of `benchmarks/scala`.

    Compiles them (about 6 s) if the source or Spark has changed.
    """
    return compile_beside(cache, "store-bench", sorted(_SCALA.glob("*.scala")), ())


def compile_beside(
    cache: Path, name: str, sources: Sequence[Path], classpath: Sequence[Path]
) -> Path:
    """Return a directory with the classes of `sources`, compiled unless it is there.

    Args:
        classpath: beside Spark's jars.
    """
    text = b"".join(source.read_bytes() for source in sources) + repr(classpath).encode()
    stamp = hashlib.sha256(text + importlib.metadata.version("pyspark").encode()).hexdigest()[:16]
    out = cache / f"{name}-{stamp}"
    if out.is_dir():
        return out
    fresh = cache / f".{name}-{os.getpid()}"
    fresh.mkdir(parents=True)
    try:
        compile_scala(sources, fresh, classpath)
    except BuildError as error:
        shutil.rmtree(fresh)
        raise BenchError(f"{sources[0].parent} does not compile: {error}") from error
    try:
        fresh.rename(out)
    except OSError:  # another process was first: its classes are the same
        shutil.rmtree(fresh)
    return out


def jvm_options(heap_mib: int) -> list[str]:
    """Return the JVM options of a measured process.

    The whole heap is resident from the start. So if the process grows, the state grows.
    """
    return [
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        "-XX:+AlwaysPreTouch",
        "-XX:+UseG1GC",
        *_MODULE_OPTIONS,
    ]


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    return (
        (done.stdout or done.stderr).strip().splitlines()[0]
        if done.returncode == 0 and (done.stdout or done.stderr)
        else ""
    )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def describe_host(work_dir: Path) -> dict[str, object]:
    """Return host, commit, versions, and how busy the machine was.

    Figures without these mean nothing.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rocksdb = next((p.stem.partition("-")[2] for p in spark_jars().glob("rocksdbjni-*.jar")), "")
    return {
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "memory_bytes": memory,
            "kernel": platform.release(),
            "file_system": _first_line(["stat", "-f", "-c", "%T", str(work_dir)]),
            "load_average_1m": round(os.getloadavg()[0], 2),
        },
        "commit": _first_line(["git", "rev-parse", "HEAD"]),
        "dirty": bool(_first_line(["git", "status", "--porcelain", "--untracked-files=no"])),
        "versions": {
            "millpond": _version("millpond"),
            "spark": _version("pyspark"),
            "rocksdbjni": rocksdb,
            "python": platform.python_version(),
            "java": subprocess.run(
                [java(), "-version"], capture_output=True, text=True
            ).stderr.splitlines()[0],
        },
    }


def results_path(results: dict[str, Any], *, prefix: str = "", suffix: str = "") -> Path:
    """Return the default file of results: `<prefix><time>-<commit><suffix>.json`.

    Figures of a smoke run mean nothing, so they go to another folder.
    """
    stamp = str(results["time_utc"]).replace(":", "").replace("-", "")
    name = f"{prefix}{stamp}-{str(results['commit'])[:8] or 'nocommit'}{suffix}.json"
    return (
        REPOSITORY / "build" / "bench"
        if results["quick"]
        else REPOSITORY / "benchmarks" / "results"
    ) / name


def write_results(
    results: dict[str, Any],
    out: Path | None,
    *,
    prefix: str = "",
    suffix: str = "",
    indent: int | None = None,
) -> Path:
    """Write results to `out`, by default to `results_path`. Return the file."""
    path = out or results_path(results, prefix=prefix, suffix=suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=indent) + "\n")
    return path


def run_program(
    name: str,
    out: Path | None,
    measure: Callable[[Path], dict[str, Any]],
    render: Callable[[Mapping[str, Any]], str],
) -> int:
    """Measure, write the results, and print them.

    Args:
        name: the program is `bench-` and this.
        out: where the results go; None: as `write_results` has it.
        measure: gets a folder that goes away, and returns what the results have beside the host.
            It may raise BenchError.
        render: the results for people.

    Returns: 0, or 2 if something could not be measured.
    """
    work = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        results = describe_host(work) | measure(work)
        path = write_results(results, out, prefix=f"{name}-")
        print(render(results))
        print(f"\nresults: {path}")
    except BenchError as error:
        print(f"bench-{name}: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def report_cells(
    name: str,
    given: argparse.Namespace,
    run: Callable[[argparse.Namespace, Path], tuple[dict[str, Any], Path]],
    told: Callable[[Mapping[str, Any]], str],
    write: Callable[[Mapping[str, Any], Path], None],
) -> int:
    """Measure cells and tell of them, or write the page of results that are there.

    Args:
        name: of the program.
        given: `render`, `docs` and `work_dir` of its command line.
        run: measures in a folder. Returns the results, and the file that has them.
        told: what is printed of results.
        write: writes the page from results and their file.

    Returns: 0, or 2 if something could not be measured.
    """
    try:
        if given.render:
            write(json.loads(given.render.read_text()), given.render)
            return 0
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=given.work_dir))
        try:
            results, out = run(given, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(told(results))
        print(f"\nresults: {out}")
        if given.docs:
            write(results, out)
    except (BenchError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def bytes_below(folder: Path) -> int:
    """Return the sizes of all files below a folder, added up."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def replace_generated(page: Path, begin: str, end: str, text: str) -> None:
    """Write `text` between two marks of a page. Raises: BenchError: the page lost its marks."""
    head, begins, rest = page.read_text().partition(begin)
    _, ends, tail = rest.partition(end)
    if not begins or not ends:
        raise BenchError(f"{page} has lost its marks {begin} ... {end}")
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
