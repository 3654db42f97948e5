"""A browser, queries to look at, and the server that shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.jvm import MILLPOND
from integration.peers.browser import parts
from integration.processes import wait_until
from integration.shapes import named
from integration.streams import Input, Run, finish, start
from millpond import savepoint

_STATE = "spark.sql.streaming.stateStore."


@pytest.fixture(scope="session")
def browser(versions: dict[str, str]) -> Iterator[Any]:
    """Chromium without a window."""
    if not parts.fetched():
        pytest.skip("Chromium or Playwright are not there: make peer-browser fetches them")
    path, variables = parts.program()
    with parts.playwright().sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=path,
            env={**os.environ, **variables},
            # a container's user may be root, and its /dev/shm small
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        versions["Chromium"] = running.version
        yield running
        running.close()


@dataclass(frozen=True)
class Scene:
    """Places of all kinds, below one folder. `small` has an attempt that lost."""

    folder: Path
    empty: Path
    small: Path
    large: Path  # 200 partitions
    saved: Path


class Case:
    """A query over an input of its own."""

    def __init__(self, spark: SparkSession, work: Path, place: Path, **conf: str) -> None:
        self.spark, self.place = spark, place
        self.case = named("agg-update-odd-keys")
        ((schema, self.rows),) = self.case.inputs
        self.source, self.done = Input(work, schema), Run(place)
        self.conf = {f"{_STATE}providerClass": MILLPOND, **self.case.conf, **conf}

    def run(
        self,
        batches: range,
        *,
        fail_at: int | None = None,
        during: Callable[[int], None] | None = None,
    ) -> None:
        """Add the input of these batches, and run what there is."""
        for number in batches:
            self.source.add(self.rows[number])
        query = start(
            self.spark,
            self.case.build([self.source.stream(self.spark)]),
            self.done,
            output_mode=self.case.mode,
            conf=self.conf,
            fail_at=fail_at,
            during=during,
        )
        finish(query, self.done, fails=fail_at is not None)

    def has_snapshots(self, batch: int) -> None:
        """Wait, in a batch, until each store has a snapshot of what the batch before it made."""
        wait_until(
            lambda: len(list(self.place.glob(f"state/0/*/{batch}_*.manifest"))) == 2,
            seconds=30,
            what=f"snapshots of batch {batch - 1}",
        )


@pytest.fixture(scope="session")
def scene(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Return places that were made by queries and by commands."""
    root = tmp_path_factory.mktemp("scene")
    folder = root / "places"
    empty, small, large = (folder / "queries" / name for name in ("empty", "small", "large"))
    for log in ("offsets", "commits"):
        (empty / log).mkdir(parents=True)
    (empty / "metadata").write_text('{"id":"cea9ccb0-4299-49b0-89f2-c6a2514d49db"}')
    ids = {f"{_STATE}checkpointFormatVersion": "2", f"{_STATE}minDeltasForSnapshot": "1"}
    case = Case(spark, root / "input-small", small, **ids)
    case.run(range(3), fail_at=2)
    case.run(range(3, 5), during=case.has_snapshots)
    wide = Case(spark, root / "input-large", large, **{"spark.sql.shuffle.partitions": "200"})
    wide.rows = [
        [{**wide.rows[0][0], "s": f"{part}-{n}", "v": n} for n in range(count)]
        for part, count in enumerate((30_000, 10))
    ]
    wide.run(range(2))
    saved = folder / "saved"
    savepoint.create(str(small), str(saved))
    return Scene(folder, empty, small, large, saved)


class Shown:
    """A running `millpond ui`."""

    def __init__(self, *paths: Path | str, log: Path) -> None:
        self.log = log
        with log.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "millpond.cli.main", "ui", *map(str, paths)],
                stdout=subprocess.PIPE,
                stderr=said,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, log.read_text()
        self.address, _, self.token = line.partition("/?token=")

    def stop(self) -> int:
        """End it in order, and return its exit code."""
        assert self.process.stdout is not None
        self.process.terminate()
        self.process.stdout.close()
        return self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def shown(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """The server over all places."""
    server = Shown(scene.folder, scene.folder / "none", log=tmp_path_factory.mktemp("ui") / "log")
    yield server
    assert server.stop() == 0
    assert server.token not in server.log.read_text()
