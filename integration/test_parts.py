"""Random operations on each part of the shim, compared with a plain model by `Parts.scala`.

`MILLPOND_PARTS_SEEDS=5000` runs more seeds. `MILLPOND_PARTS_FIRST=17` begins with that seed. A
failure prints its seed.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from integration.jvm import compile_parts, java_command, millpond_jar

_MAIN = "org.apache.spark.sql.millpond.testing.Parts"
# The number of seeds of each part in `make test`. The deep tests go on with nine times as many.
_SEEDS = {
    "table": 200,
    "arena": 50,
    "sorted-index": 50,
    "key-sort": 1250,
    "block": 200,
    "changelog": 75,
    "disk-tier": 10,
    "flush": 6,
    "composed": 7,
    "key-filter": 20,
    "point-reads": 4,
    "rest": 6,
    "late-rows": 30,
    "flush-behind": 300,
    "map-reads": 100,
}


@pytest.mark.parametrize("part", _SEEDS)
def test_part(part: str) -> None:
    _try(part, 0, _SEEDS[part])


@pytest.mark.deep
@pytest.mark.parametrize("part", _SEEDS)
def test_more_of_a_part(part: str) -> None:
    _try(part, _SEEDS[part], 9 * _SEEDS[part])


def _try(part: str, first: int, seeds: int) -> None:
    classes, jar = compile_parts(), millpond_jar()
    assert jar is not None
    seeds = int(os.environ.get("MILLPOND_PARTS_SEEDS", seeds))
    first = int(os.environ.get("MILLPOND_PARTS_FIRST", first))
    arguments = [str(first), str(seeds), part]
    command = java_command(_MAIN, arguments, classpath=[classes, jar], heap="512m")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
    assert f"{part}: {seeds} seeds" in done.stdout
