"""Rare ways in which Spark uses stores, over a failed batch and a restart.

The coordinator forces snapshots. A sink computes each batch twice. Spark unloads stores after every
commit. Tasks run again: after they committed their state, and with half of it written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.corner_job import CORNERS, FAILS_AT, FILES, Corner, rows_of
from integration.depth import asked_for
from integration.harness import providers_to_test
from integration.jvm import MILLPOND, REPO, ROCKSDB
from millpond.operations.inspect.verify import verify
from millpond.storage.local import LocalStorage

pytestmark = pytest.mark.deep
PROVIDER = MILLPOND if MILLPOND in providers_to_test() else ROCKSDB


@pytest.fixture(scope="module")
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run the corners of this test run in one JVM. Return its folder and its report."""
    work = tmp_path_factory.mktemp("corners")
    ids = [corner.id for corner in asked_for(request, "corner")]
    path = os.pathsep.join(
        [str(REPO), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])]
    )
    done = subprocess.run(
        [sys.executable, "-m", "integration.corner_job", str(work), PROVIDER, *ids],
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    yield work, json.loads((work / "report.json").read_text())


def _counts(files: int) -> list[list[Any]]:
    """Return key, number of values and their sum, over the first files."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in range(files):
        for row in rows_of(0, file):
            counts[row["k"]][0] += 1
            counts[row["k"]][1] += row["v"]
    return sorted([k, n, s] for k, (n, s) in counts.items())


def _joined() -> list[list[Any]]:
    lefts, rights = (
        [row for file in range(FILES) for row in rows_of(side, file)] for side in (0, 1)
    )
    return sorted(
        [a["k"], a["v"], b["v"]]
        for a in lefts
        for b in rights
        if a["k"] == b["k"] and abs((a["ts"] - b["ts"]).total_seconds()) <= 2
    )


@pytest.mark.parametrize("corner", CORNERS, ids=lambda c: c.id)
def test_results_equal_the_batch_computation(
    job: tuple[Path, dict[str, Any]], corner: Corner
) -> None:
    report = job[1][corner.id]
    rows = report["rows"]
    assert {int(batch): found for batch, found in rows["count"].items()} == {
        b: _counts(b + 1) for b in range(FILES)
    }
    assert sorted(row for found in rows["join"].values() for row in found) == _joined()
    for batch in range(FILES):
        expected = {k: s for k, _, s in _counts(batch + 1)}
        touched = {row["k"] for row in rows_of(0, batch)}
        assert dict(rows["sum"][str(batch)]) == {k: expected[k] for k in touched}
    # The state reader can read every committed version. Of a replaced attempt it reads the final
    # one.
    assert {int(batch): found for batch, found in report["versions"].items()} == {
        b: _counts(b + 1) for b in range(FILES)
    }


@pytest.mark.parametrize("corner", CORNERS, ids=lambda c: c.id)
def test_it_was_that_corner(job: tuple[Path, dict[str, Any]], corner: Corner) -> None:
    """The faults and the snapshots happened. The files on storage are right afterwards."""
    work, reports = job
    report = reports[corner.id]
    if corner.retry:
        # One task fails for each query, batch and action. The batch that failed in the sink runs
        # again.
        assert report["failures"]["committed"] >= 2 * (FILES + 1) * corner.actions
        assert report["failures"]["half"] >= FILES - FAILS_AT
    else:
        assert report["failures"] == {"committed": 0, "half": 0}
    if PROVIDER != MILLPOND:
        return
    assert report["local"] == [], "closed stores left local files"
    # No maintenance ran in "forced". In "unloaded" no store lives long enough for it, except the
    # stores of joins: Spark does not unload those.
    least = {"forced": 2 * 3, "unloaded": 2 * 2}.get(corner.name, 0)
    assert report["manifests"] >= least, (
        "too few snapshots at commits, or when Spark unloaded stores"
    )
    for query in ("count", "join", "sum"):
        found = verify(LocalStorage(str(work / corner.id / query)), query)
        assert found.problems == []
        assert found.checked.versions >= FILES
