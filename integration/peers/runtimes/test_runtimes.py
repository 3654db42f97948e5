"""Each Java and Python builds jar and wheel, and runs a sample of the tests with the wheel."""

from __future__ import annotations

import functools
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import millpond
from integration.jvm import REPO
from integration.peers.runtimes.found import (
    RUNTIMES,
    Missing,
    Runtime,
    build,
    find_java,
    find_python,
    is_prepared,
)

pytestmark = pytest.mark.peer

# An operator of each kind, transformWithState in Python and in Scala, the store by itself, Spark's
# state reader, the agent killed with -9.
_QUERIES = {
    "joins": "(asks_for and 3)",
    "operators": "join-full-v3 or row-processing-time or scala-event-time-avro",
    "every_type": "1-variant or 1-time",
    "checkpoint_format": "keeps_its_checkpoint_format",
    "readers": "(change_feed and format2)",
    "crash": "of_the_agent",
    "store_machine": "(Millpond and format2-prefix and not heap)",
}
# Python's own part, without a Spark session. Each is a folder of tests/unit. The 735 tests of
# `operations` are not among them: with them the sample does not fit into twenty minutes.
_UNIT = ["agent", "cli", "format", "local", "model", "rows", "spark", "state", "storage", "store"]
_SPREAD = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# How a report marks a test that did not pass.
_BAD = {"failure", "error", "skipped"}
_WITH_ALL = pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
_WITH_PYTHONS = pytest.mark.parametrize(
    "runtime", [r for r in RUNTIMES if r.language == "Python"], ids=lambda runtime: runtime.name
)


@functools.cache
def built(runtime: Runtime) -> Path:
    """Build and install the wheel, once a run. Skip the test if the runtime is not there."""
    try:
        (find_java if runtime.language == "Java" else find_python)(runtime)
    except Missing as missing:
        pytest.skip(f"{runtime.title} is not on the machine: {missing}")
    if not is_prepared(runtime):
        pytest.skip(f"{runtime.title} has no environment: make peer-runtimes makes it")
    return build(runtime)


def outcomes(runtime: Runtime, report: Path, *arguments: str) -> dict[str, Counter[str]]:
    """Run tests with the installed wheel. Return the outcomes, counted by module."""
    built(runtime)
    # Without python/src on the path, `import millpond` takes the wheel.
    own_path = ("-o", "pythonpath=. jvm-shim", "-p", "no:cacheprovider", f"--junitxml={report}")
    done = subprocess.run(
        [runtime.interpreter, "-m", "pytest", "-q", *own_path, *_SPREAD, *arguments],
        cwd=REPO,
        env=runtime.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    counted: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = next((part.tag for part in case if part.tag in _BAD), "passed")
        counted.setdefault(case.get("classname", ""), Counter())[outcome] += 1
    return counted


@_WITH_ALL
@pytest.mark.sample
def test_the_wheel_is_built(runtime: Runtime) -> None:
    """The wheel has a jar for this Spark, of class files that Java 17 reads too. An environment
    finds Millpond and the jar where the wheel was installed.
    """
    with zipfile.ZipFile(built(runtime)) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".jar")]
        with wheel.open(name) as file, zipfile.ZipFile(file) as jar:
            classes = [name for name in jar.namelist() if name.endswith(".class")]
            majors = {jar.read(name)[6:8] for name in classes}
    assert Path(name).name == Path(millpond.jar()).name
    assert len(classes) > 100
    assert majors == {(61).to_bytes(2, "big")}
    say = "import sys, millpond; print(sys.prefix, millpond.__file__, millpond.jar(), sep='\\n')"
    said = subprocess.run(
        [runtime.interpreter, "-c", say], env=runtime.environ(), capture_output=True, check=True
    )
    prefix, package, found = map(Path, said.stdout.decode().splitlines())
    assert prefix != Path(sys.prefix)
    assert package.is_relative_to(prefix) and found.is_relative_to(prefix)


@_WITH_ALL
@pytest.mark.spark
def test_queries_run(runtime: Runtime, tmp_path: Path) -> None:
    """Operators equal Spark's own store, batch for batch. Each module of the sample has a test."""
    files = [f"integration/test_{name}.py" for name in _QUERIES]
    chosen = " or ".join(_QUERIES.values())
    found = outcomes(runtime, tmp_path / "report.xml", *files, "-k", chosen)
    assert set(found) == {f"integration.test_{name}" for name in _QUERIES}
    assert all(counted.keys() == {"passed"} for counted in found.values()), found


@_WITH_PYTHONS
def test_the_unit_tests_pass(runtime: Runtime, tmp_path: Path) -> None:
    """They cover what Python decides: files, plans, storages, commands."""
    folders = [f"tests/unit/{name}" for name in _UNIT]
    found = outcomes(runtime, tmp_path / "report.xml", *folders, "-m", "not deep")
    passed = sum(counted["passed"] for counted in found.values())
    assert passed > 1400, found
