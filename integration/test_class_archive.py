"""The JVMs of the tests map the archive of Spark's classes, if it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.jvm import CLASSES, LIGHT, REPO, compile_harness, java_command, millpond_jar

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(str(CLASSES) not in LIGHT, reason="there is no archive: make test makes it"),
]
_HARNESS = "org.apache.spark.sql.millpond.testing.ProviderHarness"
_SESSION = """
import sys
from pyspark.sql import SparkSession
from integration.jvm import LIGHT, classes_after_spark, compile_harness
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", f"{LIGHT} {sys.argv[1]}")
with classes_after_spark(compile_harness()):
    builder.getOrCreate().stop()
"""


@pytest.mark.parametrize("how", quick_first(["harness", "session"]))
def test_classes_come_from_the_archive(tmp_path: Path, how: str) -> None:
    """The JVM itself says where each class is from."""
    log = tmp_path / "loaded"
    tell = f"-Xlog:class+load:file={log}"
    if how == "harness":
        jar = millpond_jar()
        path = [compile_harness(), *([jar] if jar else [])]
        java, *rest = java_command(_HARNESS, [f"spark.local.dir={tmp_path}"], classpath=path)
        command = [java, tell, *rest]
    else:
        command = [sys.executable, "-c", _SESSION, tell]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    subprocess.run(
        command, stdin=subprocess.DEVNULL, check=True, capture_output=True, env=environment
    )
    loaded = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    archived = [line for line in loaded if "shared objects file (top)" in line]
    assert len(archived) > len(loaded) // 2 > 100, loaded[:5]
