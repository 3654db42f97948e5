"""`file:` on the file systems of this machine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.jvm import REPO
from integration.peers.matrix import (
    Place,
    PlaceContract,
    PlaceQueries,
    note,
)

pytestmark = [pytest.mark.spark, pytest.mark.peer]

# By the kind of the file system: a directory where it may be mounted.
_CANDIDATES = {"ext4": [REPO / "build", Path(tempfile.gettempdir())], "tmpfs": [Path("/dev/shm")]}


def _kind(directory: Path) -> str:
    said = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(directory)]
    done = subprocess.run(said, check=False, capture_output=True, text=True)
    kinds = done.stdout.split()  # of all that is mounted there, the uppermost last
    return kinds[-1] if kinds else ""


@pytest.fixture(params=sorted(_CANDIDATES))
def place(request: pytest.FixtureRequest, versions: dict[str, str]) -> Iterator[Place]:
    """A directory of the test on the file system that the parameter names."""
    found = [d for d in _CANDIDATES[request.param] if d.is_dir() and _kind(d) == request.param]
    if not found:
        pytest.skip(f"this machine has no {request.param} where tests may write")
    release = Path("/proc/sys/kernel/osrelease").read_text()
    versions["Linux"] = ".".join(release.split(".")[:2])
    directory = Path(tempfile.mkdtemp(prefix="millpond-peer-", dir=found[0]))
    yield Place(storage=f"`file:` on {request.param}", door="Millpond", root=f"file:{directory}")
    shutil.rmtree(directory)


class TestContract(PlaceContract):
    pass


@pytest.mark.sample
def test_what_it_can_do(place: Place) -> None:
    note(place, "creates_once", "replaces_whole", "lists_at_once")


class TestQueries(PlaceQueries):
    @pytest.mark.sample
    def test_a_savepoint_and_a_rescale(
        self, spark: SparkSession, place: Place, tmp_path: Path
    ) -> None:
        super().test_a_savepoint_and_a_rescale(spark, place, tmp_path)
