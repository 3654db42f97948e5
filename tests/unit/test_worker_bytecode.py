"""Spark's Python workers find bytecode in the zip files that they import from."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from integration.worker_bytecode import LIBRARY, add_bytecode

# An import that would compile a source of a zip file ends with an error.
_NEVER_COMPILE = "import zipimport; zipimport._compile_source = None; "


def _imports(code: str, *archives: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, archives))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    made = tmp_path / "lib.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("some/__init__.py", "")
        file.writestr("some/part.py", "def fails():\n    return 1 / 0  # on purpose\n")
        file.writestr("some/tests/test_part.py", "this is no Python")
        file.writestr("some/table.json", "{}")
    return made


def test_nothing_is_compiled_at_an_import(archive: Path) -> None:
    before = _imports(f"{_NEVER_COMPILE} import some.part", archive)
    assert "'NoneType' object is not callable" in before.stderr
    assert add_bytecode(archive) == 2
    after = _imports(f"{_NEVER_COMPILE} import some.part", archive)
    assert after.returncode == 0, after.stderr


def test_sources_and_tracebacks_are_as_before(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        before = {name: file.read(name) for name in file.namelist()}
    fails = """
import some.part, traceback
try:
    some.part.fails()
except ZeroDivisionError:
    traceback.print_exc()
"""
    said = _imports(fails, archive).stderr
    assert "# on purpose" in said
    add_bytecode(archive)
    with zipfile.ZipFile(archive) as file:
        assert {name: file.read(name) for name in before} == before
        more = {*file.namelist()} - before.keys()
    assert more == {"some/__init__.pyc", "some/part.pyc"}
    assert _imports(fails, archive).stderr == said
    assert list(archive.parent.iterdir()) == [archive]


def test_a_second_time_does_nothing(archive: Path) -> None:
    add_bytecode(archive)
    first = archive.stat()
    assert add_bytecode(archive) == 0
    assert (archive.stat().st_ino, archive.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)


def test_a_worker_compiles_nothing_of_pyspark() -> None:
    archives = sorted(LIBRARY.glob("*.zip"))
    with zipfile.ZipFile(LIBRARY / "pyspark.zip") as file:
        if "pyspark/worker.pyc" not in file.namelist():
            pytest.skip("there is no bytecode: make test makes it")
    done = _imports(f"{_NEVER_COMPILE} import pyspark.worker as w; print(w.__file__)", *archives)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(LIBRARY / "pyspark.zip/pyspark/worker.pyc")
