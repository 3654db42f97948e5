"""The parts of the engine, each driven directly by random operations against a plain model: `Parts.scala`.

`MILLPOND_PARTS_SEEDS=5000` runs more of them, `MILLPOND_PARTS_FIRST=17` begins with that seed: what a failure prints.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from integration.jvm import compile_parts, java_command, millpond_jar

_MAIN = "org.apache.spark.sql.millpond.testing.Parts"
_SEEDS = {"table": 2000, "arena": 200, "sorted-index": 200, "key-sort": 5000}


@pytest.mark.parametrize("part", _SEEDS)
def test_part(part: str) -> None:
    classes, jar = compile_parts(), millpond_jar()
    assert jar is not None
    seeds = os.environ.get("MILLPOND_PARTS_SEEDS", str(_SEEDS[part]))
    first = os.environ.get("MILLPOND_PARTS_FIRST", "0")
    command = java_command(_MAIN, [first, seeds, part], classpath=[classes, jar], heap="512m")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
    assert f"{part}: {seeds} seeds" in done.stdout
