"""Where the JVM, Spark's jars and the shim's jar are, and how the Scala test code is compiled;
no py4j, no session.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyspark

import millpond
from millpond.errors import UnsupportedError
from millpond.operations.migrate.jvm import OPENS, java

REPO = Path(__file__).resolve().parents[1]
SCALA_TESTS = (
    REPO / "jvm-shim" / "src" / "test" / "scala"
)  # compiles without the shim, for Spark's own providers too
SCALA_PARTS = REPO / "jvm-shim" / "src" / "test" / "scala-engine"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# For JVMs of tests: many, small, short-lived. C2 would cost them a third of their time.
LIGHT = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
MILLPOND = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"


def millpond_jar() -> Path | None:
    """The shim's jar.

    `$MILLPOND_TEST_JAR`, else the package's; None where neither is there (enough for Spark's own
    providers).
    """
    given = os.environ.get("MILLPOND_TEST_JAR")
    if given:
        return Path(given)
    try:
        return Path(millpond.jar())
    except UnsupportedError:
        return None


def compile_harness() -> Path:
    """Compile `jvm-shim/src/test/scala` with the compiler among pyspark's jars; return the class
    directory.

    The directory is named by the content of sources and Spark's version, so nothing is compiled
    twice. Takes some 10 s.
    """
    return compiled(SCALA_TESTS)


def compile_parts() -> Path:
    """Compile `jvm-shim/src/test/scala-engine`, which drives the shim's own classes; return the
    class directory.

    Raises: UnsupportedError: the shim is not built.
    """
    jar = millpond_jar()
    if jar is None:
        raise UnsupportedError(
            "the tests of the engine's parts need the shim's jar", hint="Run `make build`."
        )
    return compiled(SCALA_PARTS, jar)


def compiled(folder: Path, *classpath: Path) -> Path:
    """Compile a folder against Spark's jars and `classpath`, unless that was done before.

    Args:
        classpath: jars, and class directories that an earlier call returned, which are named by
            their content.
    """
    sources = sorted(folder.rglob("*.scala"))
    digest = hashlib.sha256(pyspark.__version__.encode())
    for file in (*sources, *classpath):
        digest.update(file.name.encode() if file.is_dir() else file.read_bytes())
    root = REPO / "build" / "harness"
    done = root / digest.hexdigest()[:16]
    if done.is_dir():
        return done
    root.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=root, prefix=".work-"))
    path = os.pathsep.join([f"{SPARK_JARS}/*", *map(str, classpath)])
    command = [java(), "-Xss8m", *LIGHT.split(), "-cp", path, "scala.tools.nsc.Main", "-usejavacp"]
    subprocess.run(
        [*command, "-nowarn", "-d", str(work), *map(str, sources)], check=True, stdout=sys.stderr
    )
    try:
        work.rename(done)
    except OSError:  # another run was faster
        if not done.is_dir():
            raise
        shutil.rmtree(work)
    return done


def java_command(
    main: str, args: Sequence[str], *, classpath: Sequence[Path], heap: str = "1g"
) -> list[str]:
    """Command line of a JVM with Spark's jars behind `classpath`."""
    opens = [flag for module in OPENS for flag in ("--add-opens", f"{module}=ALL-UNNAMED")]
    path = os.pathsep.join([*map(str, classpath), f"{SPARK_JARS}/*"])
    return [java(), f"-Xmx{heap}", *LIGHT.split(), *opens, "-cp", path, main, *args]
