"""The shim's jar: its name, its stamp, where it lies, and whether it fits the Spark that runs.

The build (`jvm-shim/build_shim.py`) writes name and stamp by the same functions. Class files fit
one minor version of Spark (docs/design/0001-planes-and-protocol.md), so a jar has that version in
its name. Nothing here imports pyspark: the names of Spark's own jars tell its version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from millpond._version import __version__
from millpond.errors import ErrorKind, UnsupportedError

JARS_DIR = Path(__file__).parent / "jars"
JAR_PATTERN = "millpond-shim-*.jar"
STAMP_RESOURCE = "millpond/build.properties"
_REINSTALL = (
    "`pip install --force-reinstall --no-deps millpond`; in a clone of the repository, `make build`"
)
_SPARK_CORE = re.compile(r"spark-core_(\d+\.\d+)-(\d+\.\d+\..+)\.jar")


def minor_version(version: str) -> str:
    """Return `4.3` for `4.3.0` or `4.3.1-SNAPSHOT`."""
    return ".".join(version.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJars:
    """A folder with the jars of one Spark distribution."""

    directory: Path
    spark_version: str  # from the name of the spark-core jar: "4.3.0"
    scala_binary: str  # "2.13"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimStamp:
    """What the build wrote into the jar about itself."""

    millpond_version: str
    spark_version: str  # that it was compiled against
    scala_version: str
    source_hash: str  # sha256, hex, of all inputs of the jar

    def encode(self) -> str:
        """Return the text of the resource, Java properties: one `key=value` a line."""
        return (
            f"millpond.version={self.millpond_version}\nspark.version={self.spark_version}\n"
            f"scala.version={self.scala_version}\nsource.hash={self.source_hash}\n"
        )

    @classmethod
    def decode(cls, text: str) -> ShimStamp:
        """Read what `encode` wrote. Raises: KeyError: a key is missing."""
        properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return cls(
            millpond_version=properties["millpond.version"],
            spark_version=properties["spark.version"],
            scala_version=properties["scala.version"],
            source_hash=properties["source.hash"],
        )


def jar_name(*, spark_minor: str, scala_binary: str, version: str = __version__) -> str:
    """Return the file name of the jar for one minor version of Spark."""
    return f"millpond-shim-spark{spark_minor}_{scala_binary}-{version}.jar"


def read_stamp(jar: Path) -> ShimStamp:
    """Return the stamp inside `jar`.

    Raises: UnsupportedError: SHIM_MISSING: no such file, no jar, or a jar without a stamp.
    """
    try:
        with zipfile.ZipFile(jar) as archive:
            return ShimStamp.decode(archive.read(STAMP_RESOURCE).decode())
    except (OSError, zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise UnsupportedError(
            f"{jar} is not a readable Millpond shim: {error}",
            kind=ErrorKind.SHIM_MISSING,
            hint=_REINSTALL,
        ) from error


def pyspark_jars() -> SparkJars | None:
    """Return the jars inside the installed pyspark.

    None if pyspark is not installed, or if it has no jars (pyspark-client).
    """
    spec = importlib.util.find_spec("pyspark")
    return (
        None if spec is None or spec.origin is None else _jars_in(Path(spec.origin).parent / "jars")
    )


def running_spark_jars() -> SparkJars | None:
    """Return the jars of the Spark that a session would start.

    These are the jars below SPARK_HOME, or else pyspark's own.
    """
    home = os.environ.get("SPARK_HOME")
    return (_jars_in(Path(home) / "jars") if home else None) or pyspark_jars()


def _jars_in(directory: Path) -> SparkJars | None:
    for jar in sorted(directory.glob("spark-core_*.jar")):
        if match := _SPARK_CORE.fullmatch(jar.name):
            return SparkJars(directory=directory, scala_binary=match[1], spark_version=match[2])
    return None


def find_jar(jars_dir: Path | None = None) -> Path:
    """Return the absolute path of the jar that fits the Spark that a session would start.

    Args:
        jars_dir: the folder to look in; None: the one inside this package.
    Raises:
        UnsupportedError: SHIM_MISSING: there is no jar, or no Spark. SHIM_VERSION_MISMATCH: the
            jars are for another minor version of Spark, or for another Millpond.
    """
    jars_dir = jars_dir or JARS_DIR
    spark = running_spark_jars()
    if spark is None:
        raise UnsupportedError(
            "no Spark found: neither SPARK_HOME nor the installed packages hold a spark-core jar",
            kind=ErrorKind.SHIM_MISSING,
            hint="`pip install 'pyspark>=4.2,<4.4'`, or set SPARK_HOME",
        )
    jar = jars_dir / jar_name(
        spark_minor=minor_version(spark.spark_version), scala_binary=spark.scala_binary
    )
    present = sorted(jars_dir.glob(JAR_PATTERN))
    if not present:
        raise UnsupportedError(
            f"no Millpond shim in {jars_dir}", kind=ErrorKind.SHIM_MISSING, hint=_REINSTALL
        )
    if jar not in present:
        _mismatch(spark, ", ".join(path.name for path in present))
    stamp = read_stamp(jar)
    if (
        minor_version(stamp.spark_version) != minor_version(spark.spark_version)
        or stamp.millpond_version != __version__
    ):
        _mismatch(
            spark,
            f"{jar.name}, stamped Spark {stamp.spark_version}, Millpond {stamp.millpond_version}",
        )
    return jar.resolve()


def _mismatch(spark: SparkJars, found: str) -> None:
    raise UnsupportedError(
        f"Spark {spark.spark_version} (Scala {spark.scala_binary}) in {spark.directory} needs the"
        f" shim of Millpond {__version__} for Spark {minor_version(spark.spark_version)};"
        f" installed: {found}",
        kind=ErrorKind.SHIM_VERSION_MISMATCH,
        hint=(
            "install a Spark that the shim was built for; or build Millpond where this Spark's"
            " pyspark is installed: `pip install hatchling` and `pip install --force-reinstall"
            " --no-deps --no-binary millpond --no-build-isolation millpond`; in a clone of the"
            " repository, `make wheel` builds for every version of Spark"
        ),
    )
