"""Compile the Scala shim into the jar that the wheel carries. Run as a script, it builds the jar in the source tree.

The compiler is the one among pyspark's own jars, so this needs `java` and nothing else: no Maven, no sbt, no download.
Used by the wheel (`hatch_build.py`), by `make build`, and by tests that compile Scala of their own (`compile_scala`).

    src/main/scala              what every Spark has in common
    src/main/scala-spark-4.3    what differs in one minor line; the folder of the pyspark at hand is added
    src/main/scala-spark-4.2    the same for the line before

One run builds the jar for one line, that of the pyspark that its interpreter imports. A wheel takes along the jars for
other lines that are there and current (`jars_of_other_lines`); `make wheel` builds them all.

The jar is a function of its inputs: entries are sorted and carry no time stamps, and the hash of all inputs is stamped
into it, so nothing is compiled when nothing changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

# The jar's name and stamp, and the tables it carries, come from the package, which is not installed yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "src"))
from millpond._shim import (
    JARS_DIR,
    STAMP_RESOURCE,
    ShimStamp,
    SparkJars,
    jar_name,
    minor_line,
    pyspark_jars,
    read_stamp,
)
from millpond._version import __version__
from millpond.config import options_json
from millpond.errors import UnsupportedError, errors_json

ROOT = Path(__file__).resolve().parents[1]
# -Xlint includes the warnings about unused code. No -opt: the JIT inlines what is hot, and scalac's inliner stumbles over
# attributes in Spark's own classes.
SCALAC_FLAGS = (
    *("-encoding", "UTF-8", "-release", "17", "-deprecation", "-feature", "-unchecked"),
    *("-Xlint", "-Wdead-code", "-Wvalue-discard", "-Wnumeric-widen", "-Wextra-implicit", "-Werror"),
)
# The type checker recurses deeply. A JVM of seconds gains nothing from a parallel collector; C2 doubles its time.
_JVM_FLAGS = ("-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """The shim cannot be built; the message says what is missing or what the compiler objects to."""


def find_java() -> str:
    """Return the `java` to run: that of JAVA_HOME, else the first on the path. Raises: BuildError."""
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = candidate or shutil.which("java")
    if java is None:
        raise BuildError(
            "no `java` on the path and none in JAVA_HOME: Spark needs Java 17 or newer"
        )
    return java


def find_spark() -> SparkJars:
    """Return the jars of the pyspark that this interpreter would import, SPARK_HOME or not. Raises: BuildError."""
    spark = pyspark_jars()
    if spark is None:
        raise BuildError("no pyspark with jars among the packages of " + sys.executable)
    return spark


def compile_scala(
    sources: Sequence[Path],
    out_dir: Path,
    extra_classpath: Iterable[Path] = (),
    *,
    flags: Sequence[str] = SCALAC_FLAGS,
    spark: SparkJars | None = None,
) -> None:
    """Compile `sources` into class files below `out_dir`, which is created.

    Args:
        sources: Scala files, at least one.
        extra_classpath: jars or folders of class files beside Spark's own jars (for tests: the shim's jar).
        flags: for scalac; warnings are errors unless said otherwise.
        spark: whose jars to compile against and with; default: those of the installed pyspark.
    Raises: BuildError: no java, or the compiler's complaints.
    """
    spark = spark or find_spark()
    out_dir.mkdir(parents=True, exist_ok=True)
    classpath = os.pathsep.join([str(spark.directory / "*"), *map(str, extra_classpath)])
    command = [find_java(), *_JVM_FLAGS, "-cp", classpath, "scala.tools.nsc.Main", "-usejavacp"]
    command += ["-d", str(out_dir), *flags, *map(str, sources)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(
            f"scalac failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
        )


def shim_sources(root: Path, spark_minor: str) -> list[Path]:
    """Return the shim's Scala files for one minor line of Spark, sorted. Raises: BuildError: one of the layers is empty."""
    main = root / "jvm-shim" / "src" / "main"
    sources: list[Path] = []
    for layer in (main / "scala", main / f"scala-spark-{spark_minor}"):
        found = sorted(layer.rglob("*.scala"))
        if not found:
            raise BuildError(
                f"no Scala sources in {layer}: this Millpond has no shim for Spark {spark_minor}"
            )
        sources += found
    return sources


def jars_of_other_lines(root: Path, built: Path) -> list[Path]:
    """Return the jars beside `built` that were made from the sources as they are now, for other minor lines of Spark."""
    resources = _resources(root)
    current = []
    for jar in sorted(built.parent.glob("millpond-shim-*.jar")):
        if jar == built:
            continue
        try:
            stamp = read_stamp(jar)
            sources = shim_sources(root, minor_line(stamp.spark_version))
        except (
            UnsupportedError,
            BuildError,
        ):  # no jar of ours, or a line that is supported no more
            continue
        if stamp.source_hash == _source_hash(
            root, sources, resources, stamp.spark_version, stamp.scala_version
        ):
            current.append(jar)
    return current


def build_jar(
    root: Path = ROOT,
    out_dir: Path | None = None,
    *,
    force: bool = False,
    spark: SparkJars | None = None,
) -> Path:
    """Return the jar for one minor line of Spark, compiled if its inputs differ from what is there.

    Args:
        root: the source tree.
        out_dir: where the jar goes; default: where the package looks for it.
        force: compile even if nothing changed.
        spark: the line; default: that of the installed pyspark.
    Raises: BuildError.
    """
    spark = spark or find_spark()
    spark_minor = minor_line(spark.spark_version)
    out_dir = out_dir or root / "python" / "src" / "millpond" / JARS_DIR.name
    sources = shim_sources(root, spark_minor)
    resources = _resources(root)
    stamp = ShimStamp(
        millpond_version=__version__,
        spark_version=spark.spark_version,
        scala_version=_scala_version(spark),
        source_hash=_source_hash(
            root, sources, resources, spark.spark_version, _scala_version(spark)
        ),
    )
    jar = out_dir / jar_name(spark_minor=spark_minor, scala_binary=spark.scala_binary)
    if not force and _is_current(jar, stamp):
        return jar
    resources[STAMP_RESOURCE] = stamp.encode().encode()
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="millpond-shim-") as temporary:
        classes = Path(temporary, "classes")
        compile_scala(sources, classes, spark=spark)
        entries = {
            path.relative_to(classes).as_posix(): path.read_bytes()
            for path in classes.rglob("*.class")
        }
        # Two builds at once each replace the jar as a whole.
        complete = out_dir / f".{jar.name}.{os.getpid()}"
        _write_jar(complete, {**entries, **resources})
        complete.replace(jar)
    for stale in out_dir.glob(f"millpond-shim-spark{spark_minor}_*.jar"):
        if stale != jar:
            stale.unlink()
    return jar


def _is_current(jar: Path, stamp: ShimStamp) -> bool:
    if not jar.exists():
        return False
    try:
        return read_stamp(jar) == stamp
    except UnsupportedError:  # a damaged jar is built again
        return False


def _scala_version(spark: SparkJars) -> str:
    compiler = next(spark.directory.glob("scala-compiler-*.jar"), None)
    if compiler is None:
        raise BuildError(f"no scala-compiler jar in {spark.directory}")
    return compiler.stem.removeprefix("scala-compiler-")


def _resources(root: Path) -> dict[str, bytes]:
    """Return what the jar holds beside class files and stamp: the declarations that the shim shares with Python."""
    return {
        "META-INF/MANIFEST.MF": f"Manifest-Version: 1.0\r\nImplementation-Version: {__version__}\r\n\r\n".encode(),
        "META-INF/LICENSE": (root / "LICENSE").read_bytes(),
        "META-INF/NOTICE": (root / "NOTICE").read_bytes(),
        "millpond/errors.json": errors_json().encode(),
        "millpond/options.json": options_json().encode(),
    }


def _source_hash(
    root: Path,
    sources: Sequence[Path],
    resources: dict[str, bytes],
    spark_version: str,
    scala_version: str,
) -> str:
    digest = hashlib.sha256()
    parts = {path.relative_to(root).as_posix(): path.read_bytes() for path in sources}
    parts |= {f"resource:{name}": content for name, content in resources.items()}
    parts["build_shim.py"] = Path(__file__).read_bytes()
    parts["spark"] = f"{spark_version} {scala_version}".encode()
    for name, content in sorted(parts.items()):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _write_jar(path: Path, entries: dict[str, bytes]) -> None:
    """Write entries in a fixed order with fixed times and modes; the jar's manifest comes first, as readers expect."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries, key=lambda entry: (entry != "META-INF/MANIFEST.MF", entry)):
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, entries[name])


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the jar and print its path; complaints go to stderr."""
    parser = argparse.ArgumentParser(
        description="Compile the Scala shim with the compiler among pyspark's jars."
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the jar (default: python/src/millpond/jars)"
    )
    parser.add_argument("--force", action="store_true", help="compile even if nothing changed")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        jar = build_jar(out_dir=options.out, force=options.force)
    except BuildError as error:
        print(f"build_shim: {error}", file=sys.stderr)
        return 1
    print(f"{jar} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
