"""Finds the JVM, Spark's jars and the shim's jar. Compiles the Scala test code.

It uses no py4j and no Spark session.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pyspark

import millpond
from millpond._jvm import OPENS, java
from millpond.errors import UnsupportedError

REPO = Path(__file__).resolve().parents[1]
SCALA_TESTS = (
    REPO / "jvm-shim" / "src" / "test" / "scala"
)  # it compiles without the shim, because Spark's own providers use it too
SCALA_PARTS = REPO / "jvm-shim" / "src" / "test" / "scala-engine"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# In the order of Spark's own launcher, with which the archive of classes was made.
_SPARK_PATH = (*map(str, SPARK_JARS.glob("slf4j-api-*.jar")), f"{SPARK_JARS}/*")
# `make test` writes it. Without it, or with another class path, a JVM loads each class itself.
CLASSES = REPO / "build" / "classes.jsa"
# Tests have many small, short JVMs. The compiler C2 would cost them a third of their time, and
# loading Spark's classes half of it. Spark's code does not fit into what C1 alone may keep.
PLAIN = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# The JVM splits its options at blanks.
LIGHT = (
    f"{PLAIN} -XX:SharedArchiveFile={CLASSES} -Xlog:cds=off,cds+dynamic=off"
    if CLASSES.is_file() and " " not in str(CLASSES)
    else PLAIN
)
# Of a driver whose queries see a few rows. To generate classes for them would cost a quarter of its
# time; the store gets the same rows without. Pages of the documentation, the demo, benchmarks,
# real-time mode and peers run with what Spark generates.
LIGHT_DRIVER = (
    f"{LIGHT} -Dspark.sql.codegen.factoryMode=NO_CODEGEN -Dspark.sql.codegen.wholeStage=false"
)
IS_SPARK_4_2 = pyspark.__version__.startswith("4.2.")
MILLPOND = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"


def millpond_jar() -> Path | None:
    """Return the shim's jar: `$MILLPOND_TEST_JAR`, else the package's.

    None if there is no jar. Spark's own providers need none.
    """
    given = os.environ.get("MILLPOND_TEST_JAR")
    if given:
        return Path(given)
    try:
        return Path(millpond.jar())
    except UnsupportedError:
        return None


@contextlib.contextmanager
def classes_after_spark(*classpath: Path) -> Iterator[None]:
    """Let a session that starts in this block have these on its JVM's class path, after Spark's
    jars.

    `spark.driver.extraClassPath` comes before them: then the archive of classes does not fit.
    """
    # the launcher reads it
    with mock.patch.dict(os.environ, SPARK_DIST_CLASSPATH=os.pathsep.join(map(str, classpath))):
        yield


def compile_harness() -> Path:
    """Compile `jvm-shim/src/test/scala` with the compiler in pyspark's jars.

    It takes some 10 s. The content of the sources and Spark's version give the class directory its
    name, so the same sources compile only once. Return the class directory.
    """
    return compiled(SCALA_TESTS)


def holding(name: str, said: Path) -> dict[str, str]:
    """Return the settings of a session that never writes a file of its Spark checkpoint.

    The session needs the classes of `compile_harness`.

    Args:
        name: of the file, as in `commits/2`.
        said: a file that is made when the writer of the other one waits.
    """
    manager = "org.apache.spark.sql.millpond.testing.HoldingFileManager"
    return {
        "spark.sql.streaming.checkpointFileManagerClass": manager,
        "spark.hadoop.millpond.test.hold": name,
        "spark.hadoop.millpond.test.held": str(said),
    }


def compile_parts() -> Path:
    """Compile `jvm-shim/src/test/scala-engine`, which drives the shim's own classes.

    Return the class directory. Raises: UnsupportedError: the shim is not built.
    """
    jar = millpond_jar()
    if jar is None:
        raise UnsupportedError(
            "the tests of the engine's parts need the shim's jar", hint="Run `make build`."
        )
    return compiled(SCALA_PARTS, jar)


def compiled(folder: Path, *classpath: Path) -> Path:
    """Compile a folder against Spark's jars and `classpath`, unless its classes exist.

    Return the class directory.

    Args:
        classpath: jars, and class directories that earlier calls returned. The name of such a
            directory stands for its content.
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
    path = os.pathsep.join([*_SPARK_PATH, *map(str, classpath)])
    command = [java(), "-Xss8m", *LIGHT.split(), "-cp", path, "scala.tools.nsc.Main", "-usejavacp"]
    # to the process's own stderr: a test may have put something else in place of `sys.stderr`
    subprocess.run([*command, "-nowarn", "-d", str(work), *map(str, sources)], check=True, stdout=2)
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
    """Return the command line of a JVM with Spark's jars before `classpath`.

    The archive of classes fits a path that begins with theirs.
    """
    opens = [flag for module in OPENS for flag in ("--add-opens", f"{module}=ALL-UNNAMED")]
    path = os.pathsep.join([*_SPARK_PATH, *map(str, classpath)])
    return [java(), f"-Xmx{heap}", *LIGHT.split(), *opens, "-cp", path, main, *args]
