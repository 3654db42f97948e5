"""Each third-party package with weight or reach enters Millpond by one door."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import millpond

PACKAGE = Path(millpond.__file__).parent


@cache
def imported() -> dict[str, set[str]]:
    """Return the packages that each module of Millpond imports, by its path below the package.

    Imports in functions count too.
    """
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        packages = found.setdefault(path.relative_to(PACKAGE).as_posix(), set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                packages.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                packages.add((node.module or "").split(".")[0])
    return found


def importers(package: str) -> set[str]:
    """Return the modules of Millpond that import `package`, as paths below the package."""
    return {module for module, packages in imported().items() if package in packages}


@pytest.mark.parametrize(
    ("package", "door"),
    [
        ("py4j", "agent/gateway.py"),
        ("rocksdict", "local/rocks.py"),
        ("starlette", "web/server.py"),
        ("uvicorn", "web/server.py"),
    ],
)
def test_one_module_imports(package: str, door: str) -> None:
    assert importers(package) == {door}


def test_boto3_is_the_s3_storage_only() -> None:
    assert importers("boto3") | importers("botocore") == {"storage/s3_client.py"}


def test_pyspark_is_imported_where_sessions_jobs_and_jvms_are_found_only() -> None:
    # what runs in Spark's own workers lives on their pyspark
    assert {name for name in importers("pyspark") if not name.startswith("transport/")} == {
        "spark/session.py",
        "spark/job.py",
        "spark/job_script.py",
        "_jvm.py",
    }


def test_nothing_unpickles_storage() -> None:
    assert importers("pickle") == {
        "transport/key_frames.py",  # these four: what the worker's own JVM sends
        "transport/session.py",
        "transport/wire.py",
        "transport/worker.py",
        "operations/spread.py",
        "operations/spread_worker.py",
    }  # a process and its own children send each other such data
    assert importers("marshal") == importers("shelve") == set()
