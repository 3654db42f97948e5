"""Compile the Scala shim into the jar of the wheel. As a script, build the jar in the source tree.

The compiler is among pyspark's own jars. So this needs `java` and nothing else: no Maven, no sbt,
no download. The wheel (`hatch_build.py`), `make build`, and tests with Scala of their own
(`compile_scala`) use it.

    src/main/scala              what all versions of Spark have in common, a folder for each package
    src/main/scala-spark-4.3    what differs in this minor version of Spark
    src/main/scala-spark-4.2    what differs in the version before

One run builds the jar for one version: that of the pyspark which its interpreter imports. A wheel
also gets the current jars for other versions (`jars_of_other_versions`). `make wheel` builds them
all.

The jar is a function of its inputs: its entries are sorted and have no time stamps. Its stamp has
the hash of all inputs, so a run compiles nothing if nothing changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

# The package declares the jar's name, stamp and tables. It is not installed yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "src"))
from millpond._shim import (
    JAR_PATTERN,
    JARS_DIR,
    STAMP_RESOURCE,
    ShimStamp,
    SparkJars,
    jar_name,
    minor_version,
    pyspark_jars,
    read_stamp,
)
from millpond._version import __version__
from millpond.errors import UnsupportedError
from millpond.reference import errors_json, events_json, options_json, sparks_json
from millpond.transport import entry

ROOT = Path(__file__).resolve().parents[1]
# -Xlint includes the warnings about unused code. There is no -opt: the JIT inlines hot code, and
# scalac's inliner stumbles over attributes in Spark's own classes.
SCALAC_FLAGS = (
    *("-encoding", "UTF-8", "-deprecation", "-feature", "-unchecked"),
    *("-Xlint", "-Wdead-code", "-Wvalue-discard", "-Wnumeric-widen", "-Wextra-implicit", "-Werror"),
)
# The type checker recurses deeply. A JVM that lives for seconds gains nothing from a parallel
# collector, and C2 doubles its time.
_JVM_FLAGS = ("-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """The shim cannot be built. The message says what is missing, or why the compiler objects."""


def find_java() -> str:
    """Return the `java` to run: that of JAVA_HOME, else the first on the path.

    Raises: BuildError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = candidate or shutil.which("java")
    if java is None:
        raise BuildError(
            "no `java` on the path and none in JAVA_HOME: Spark needs Java 17 or newer"
        )
    return java


def find_spark() -> SparkJars:
    """Return the jars of the pyspark that this interpreter would import. Ignores SPARK_HOME.

    Raises: BuildError: there is no pyspark with jars.
    """
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
    """Compile `sources` into class files below `out_dir`. Creates `out_dir`.

    Args:
        sources: Scala files, at least one.
        extra_classpath: jars or folders of class files beside Spark's own jars. Tests add the
            shim's jar.
        flags: for scalac beside those that make class files of Java 17; by default warnings are
            errors.
        spark: the jars to compile with and against; None: those of the installed pyspark.
    Raises: BuildError: there is no java, or the compiler complains.
    """
    spark = spark or find_spark()
    out_dir.mkdir(parents=True, exist_ok=True)
    classpath = os.pathsep.join([str(spark.directory / "*"), *map(str, extra_classpath)])
    java = find_java()
    command = [java, *_JVM_FLAGS, "-cp", classpath, "scala.tools.nsc.Main", "-usejavacp"]
    command += ["-d", str(out_dir), *_java_17(java), *flags, *map(str, sources)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(
            f"scalac failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
        )


def _java_17(java: str) -> tuple[str, ...]:
    """Return scalac's flags for class files of Java 17."""
    say = [java, "-XshowSettings:properties", "-version"]
    said = subprocess.run(say, capture_output=True, text=True, check=False).stderr
    properties = dict(re.findall(r"^ +(java\.\S+) = (.*)$", said, re.MULTILINE))
    home, version = (properties.get(f"java.{name}") for name in ("home", "specification.version"))
    # A newer Java knows from this file what Java 17 had. A Java without a compiler, such as
    # Debian's openjdk-21-jre-headless, lacks it. Then scalac cannot check that nothing newer is
    # used.
    if home and version != "17" and not Path(home, "lib", "ct.sym").exists():
        return ("-Xunchecked-java-output-version:17",)
    return ("-release", "17")


def shim_sources(root: Path, spark_minor: str) -> list[Path]:
    """Return the shim's Scala files for one minor version of Spark, sorted.

    Raises: BuildError: one of the layers is empty.
    """
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


def jars_of_other_versions(root: Path, built: Path) -> list[Path]:
    """Return the jars beside `built` for other versions of Spark, if the sources still match."""
    resources = _resources(root)
    current = []
    for jar in sorted(built.parent.glob(JAR_PATTERN)):
        if jar == built:
            continue
        try:
            stamp = read_stamp(jar)
            sources = shim_sources(root, minor_version(stamp.spark_version))
        except (UnsupportedError, BuildError):
            continue  # no jar of Millpond, or a version of Spark that it no longer supports
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
    """Return the jar for one minor version of Spark. Compile it if its inputs changed.

    Args:
        root: the source tree.
        out_dir: the folder for the jar; None: the one in which the package looks for it.
        force: compile even if nothing changed.
        spark: the version of Spark; None: that of the installed pyspark.
    Raises: BuildError.
    """
    spark = spark or find_spark()
    spark_minor = minor_version(spark.spark_version)
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
        # Of two builds at once, each replaces the whole jar.
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
    """Return the jar's other resources: the declarations that the shim shares with Python."""
    return {
        "META-INF/MANIFEST.MF": (
            f"Manifest-Version: 1.0\r\nImplementation-Version: {__version__}\r\n\r\n".encode()
        ),
        "META-INF/LICENSE": (root / "LICENSE").read_bytes(),
        # Spark's history server finds the tab State by it.
        "META-INF/services/org.apache.spark.status.AppHistoryServerPlugin": (
            b"org.apache.spark.sql.millpond.observe.StateHistory\n"
        ),
        "META-INF/NOTICE": (root / "NOTICE").read_bytes(),
        "millpond/errors.json": errors_json().encode(),
        "millpond/events.json": events_json().encode(),
        "millpond/options.json": options_json().encode(),
        "millpond/sparks.json": sparks_json().encode(),
        "millpond/transport_entry.py": Path(entry.__file__).read_bytes(),
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
    """Write entries in a fixed order, with fixed times and modes.

    The jar's manifest comes first, as readers expect.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries, key=lambda entry: (entry != "META-INF/MANIFEST.MF", entry)):
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, entries[name])


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the jar and print its path. Errors go to stderr."""
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
