"""The JVM that a process of Python can use: its session's, or one of its own with Spark's jars and
the shim.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from millpond import _shim
from millpond.errors import UnsupportedError

# Spark on Java 17 reads JDK internals. org.apache.spark.launcher.JavaModuleOptions has the same
# list.
OPENS = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)
_DRIVER_MEMORY = "spark.driver.memory"


def java() -> str:
    """Return the path of the `java` that Spark would use.

    Raises: UnsupportedError: UNSUPPORTED: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not found or not os.path.exists(found):
        raise UnsupportedError(
            "no java was found, which is needed to run Spark, and for what only a JVM reaches:"
            " Spark's own state stores, and Hadoop's file systems",
            hint="Install Java 17 or newer, and put it on the PATH or set JAVA_HOME.",
        )
    return found


def command(main: str, conf: Mapping[str, str]) -> list[str]:
    """Return the command line of a JVM that runs the shim's class `main`.

    Args:
        conf: Spark's settings; `spark.driver.memory` is the heap.
    Raises: UnsupportedError: SHIM_MISSING, SHIM_VERSION_MISMATCH; UNSUPPORTED: no java.
    """
    jar = _shim.find_jar()
    spark = _shim.running_spark_jars()
    assert spark is not None, "the shim's jar was found for it"
    # Spark's own scripts put the same on the class path. SPARK_DIST_CLASSPATH may name connectors.
    classpath = [
        str(jar),
        os.environ.get("HADOOP_CONF_DIR", ""),
        f"{spark.directory}/*",
        os.environ.get("SPARK_DIST_CLASSPATH", ""),
    ]
    # What the JVM itself prints must not get into the middle of an answer, which is on its standard
    # output. The environment may have asked for it (JAVA_TOOL_OPTIONS=-Xlog:gc).
    own = ["-Xlog:disable", "-Xlog:all=warning:stderr", "-XX:+DisplayVMOutputToStderr"]
    heap = [f"-Xmx{conf[_DRIVER_MEMORY]}"] if _DRIVER_MEMORY in conf else []
    opens = [flag for module in OPENS for flag in ("--add-opens", f"{module}=ALL-UNNAMED")]
    return [
        java(),
        *heap,
        *own,
        "-XX:+UseParallelGC",
        *opens,
        "-cp",
        os.pathsep.join(filter(None, classpath)),
        main,
    ]


def answer_of(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a JVM of `command` answered in a line of its standard output.

    None: the line is no answer. The JVM itself prints there too: lines of its own log
    (`JAVA_TOOL_OPTIONS=-Xlog:gc`), warnings, and its threads if somebody asks by SIGQUIT.
    """
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def running_class(name: str) -> Any:
    """Return the shim's class or object `name` in the JVM of this process's session, through py4j.

    None if no session runs, or if its JVM has no shim.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext  # start-up time

    jvm: Any = SparkContext._jvm
    if jvm is None or SparkContext._active_spark_context is None:
        return None
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(name):
        return None
    found = jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found
