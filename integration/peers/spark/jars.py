"""Where the jars of Spark's tests are, and what is made from them. `pom.xml` has the versions."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

from integration.jvm import REPO, SPARK_JARS, compiled
from integration.peers import maven

_POM = Path(__file__).with_name("pom.xml")
_SCALA = Path(__file__).with_name("scala")
_ROOT = REPO / "build" / "peers" / "spark"
SUITES = _ROOT / "suites"
_PREMAIN = "org.apache.spark.sql.millpond.peer.Redirect"
# Spark brings these itself, in other versions.
_SPARKS_OWN = ("scala-library-", "scala-reflect-", "scala-xml_", "objenesis-")


def fetch() -> None:
    """Fetch the jars, unless they are there.

    Raises: FetchError: no mvn, or Maven Central is out of reach.
    """
    maven.fetch(_POM, SUITES.name, SUITES)


def fetched() -> bool:
    """Return whether the jars are there."""
    return maven.is_fetched(_POM, SUITES.name, SUITES)


def version() -> str:
    """Return the version of Spark whose tests the pom names."""
    return maven.version(_POM, "suites.version")


def tests() -> list[Path]:
    """Return the jars of the tests and of scalatest."""
    return [jar for jar in sorted(SUITES.glob("*.jar")) if not jar.name.startswith(_SPARKS_OWN)]


def resources() -> Path:
    """Return the folder with the tests' resources: suites open them as files, so no jar will do."""
    done = _ROOT / f"resources-{version()}"
    if not done.is_dir():
        work = done.with_name(f".{done.name}")
        shutil.rmtree(work, ignore_errors=True)
        for jar in SUITES.glob("spark-*-tests.jar"):
            with zipfile.ZipFile(jar) as archive:
                names = (n for n in archive.namelist() if not n.endswith(".class"))
                archive.extractall(work, (n for n in names if not n.startswith("META-INF/")))
        work.rename(done)
    return done


def agent() -> Path:
    """Return the jar of the Java agent that redirects the provider, with the reporter in it."""
    classes = compiled(_SCALA, *tests())
    jar = _ROOT / f"redirect-{classes.name}.jar"
    if not jar.is_file():
        work = jar.with_suffix(".part")
        with zipfile.ZipFile(work, "w") as archive:
            manifest = f"Manifest-Version: 1.0\r\nPremain-Class: {_PREMAIN}\r\n\r\n"
            archive.writestr("META-INF/MANIFEST.MF", manifest)
            for file in sorted(classes.rglob("*.class")):
                archive.write(file, file.relative_to(classes))
        work.rename(jar)
    return jar


def spark_version() -> str:
    """Return the version of the Spark that runs the suites."""
    found = re.search(r"spark-sql_2\.13-(.*)\.jar", next(SPARK_JARS.glob("spark-sql_*")).name)
    assert found is not None
    return found[1]


def for_other_spark() -> bool:
    """Return whether the tests are those of another minor version than the Spark that runs."""
    return version().rpartition(".")[0] != spark_version().rpartition(".")[0]
