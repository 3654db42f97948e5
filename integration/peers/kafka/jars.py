"""Where the broker's and the connector's jars are. `pom.xml` has the versions."""

from __future__ import annotations

import re
from pathlib import Path

from integration.jvm import REPO, SPARK_JARS
from integration.peers import maven

_POM = Path(__file__).with_name("pom.xml")
_ROOT = REPO / "build" / "peers" / "kafka"
BROKER = _ROOT / "broker"
_CONNECTOR = _ROOT / "connector"
_OLDER = _ROOT / "older"
_ALL = (BROKER, _CONNECTOR, _OLDER)


def fetch() -> None:
    """Fetch all sets, unless they are there.

    Raises: FetchError: no mvn, or Maven Central is out of reach.
    """
    for target in _ALL:
        maven.fetch(_POM, target.name, target)


def fetched() -> bool:
    """Return whether all sets are there."""
    return all(maven.is_fetched(_POM, target.name, target) for target in _ALL)


def versions() -> dict[str, str]:
    """Return the versions of the broker and of the connector, as the pom names them."""
    return {
        "Apache Kafka": maven.version(_POM, "kafka.version"),
        "spark-sql-kafka-0-10": maven.version(_POM, "connector.version"),
    }


def connector() -> list[Path]:
    """Return the connector's jars, without those that Spark brings itself."""
    own = {_artifact(jar) for jar in SPARK_JARS.glob("*.jar")}
    return sorted(jar for jar in _CONNECTOR.glob("*.jar") if _artifact(jar) not in own)


def older() -> Path:
    """Return the jar of the connector of an older Spark."""
    (jar,) = _OLDER.glob("*.jar")
    return jar


def _artifact(jar: Path) -> str:
    return re.sub(r"-\d[\w.-]*\.jar$", "", jar.name)
