"""Random operations on each part of the shim, compared with a plain model by `Parts.scala`.

`MILLPOND_PARTS_SEEDS=5000` runs more seeds in the deep tests. `MILLPOND_PARTS_FIRST=17` begins with
that seed. A failure prints its part and its seed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import pytest

from integration.jvm import compile_parts, java_command, millpond_jar

_MAIN = "org.apache.spark.sql.millpond.testing.Parts"
# The number of seeds of each part in `make test`, and in all: the deep tests have the others.
_SEEDS = {
    "local-dirs": (20, 200),  # first: it wants a JVM without a folder
    "native-heap": (1, 2),  # it weighs the process
    "table": (10, 2000),
    "arena": (10, 500),
    "sorted-index": (20, 500),
    "key-sort": (500, 12500),
    "block": (80, 2000),
    "changelog": (25, 750),
    "disk-tier": (5, 100),
    "flush": (3, 60),
    "composed": (3, 70),
    "key-filter": (8, 200),
    "tier-filter": (3, 30),
    "point-reads": (2, 40),
    "rest": (3, 60),
    "late-rows": (12, 300),
    "worker-clocks": (10, 100),
    "flush-behind": (300, 3000),
    "former-family": (2, 10),
    "heap": (20, 200),
    "unloaded": (5, 50),
    "relief": (5, 50),
    "log-sync": (3, 30),
    "warm-up": (2, 20),
    "clock": (10, 100),
    "kept-reports": (10, 200),
    "report-ages": (10, 200),
    "large-value": (3, 30),
    "many-blocks": (2, 6),
    "single-reads": (10, 400),
    "map-reads": (100, 1000),
    "options": (300, 3000),
    "shares": (50, 1000),
    "old-heartbeats": (100, 1000),
    "another-spark": (12, 30),
    "languages": (100, 1000),
    "pasted-commands": (10, 100),
}


def test_each_part() -> None:
    """In one JVM: to start one takes longer than most parts."""
    _try({part: (0, few) for part, (few, _) in _SEEDS.items()})


@pytest.mark.deep
@pytest.mark.parametrize("part", _SEEDS)
def test_more_of_a_part(part: str) -> None:
    few, all_of_them = _SEEDS[part]
    seeds = int(os.environ.get("MILLPOND_PARTS_SEEDS", all_of_them - few))
    _try({part: (int(os.environ.get("MILLPOND_PARTS_FIRST", few)), seeds)})


def _try(parts: Mapping[str, tuple[int, int]]) -> None:
    """Run each of `parts` with so many seeds, from the first on."""
    classes, jar = compile_parts(), millpond_jar()
    assert jar is not None
    arguments = [
        argument
        for part, (first, seeds) in parts.items()
        for argument in (part, str(first), str(seeds))
    ]
    command = java_command(_MAIN, arguments, classpath=[classes, jar], heap="512m")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
    for part, (_, seeds) in parts.items():
        assert f"{part}: {seeds} seeds" in done.stdout
