"""A stateful query on YARN, with the settings of conf/yarn.conf and the archive of the guide. Its
executors are killed with -9.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import millpond
from integration.cases import EVENTS, events
from integration.cluster import SPARK_HOME
from integration.jvm import LIGHT, REPO
from integration.peers.yarn.cluster import Yarn
from integration.processes import wait_until
from integration.streams import Input
from millpond.operations.inspect import verify
from millpond.storage import open_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_FILES = 8
_STATE = "spark.sql.streaming.stateStore."


def _documented() -> dict[str, str]:
    """Return the settings of conf/yarn.conf, with the archive, and with this machine's jar."""
    settings: dict[str, str] = {}
    for line in (REPO / "conf" / "yarn.conf").read_text().splitlines():
        name, _, value = line.removeprefix("# ").partition(" ")
        shipped = name == "spark.archives" or value.strip() == "./env/bin/python"
        if name.startswith("spark.") and (shipped or not line.startswith("#")):
            settings[name] = value.strip()
    assert settings["spark.archives"].endswith("/millpond-env.tar.gz#env")
    assert settings["spark.pyspark.python"] == "./env/bin/python"
    return settings | {"spark.jars": millpond.jar()}


def _settings(mode: str, work: Path) -> dict[str, str]:
    small = f"{LIGHT} -XX:-UsePerfData"
    return _documented() | {
        "spark.submit.deployMode": mode,
        # The nodes have Spark's jars: this machine is all of them.
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "384m",
        "spark.driver.memory": "512m",
        "spark.yarn.am.memory": "256m",
        "spark.driver.extraJavaOptions": small,
        "spark.executor.extraJavaOptions": small,
        "spark.yarn.am.extraJavaOptions": small,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work / "driver"),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.executor.maxNumFailures": "20",
        "spark.executorEnv.MILLPOND_LOG": "INFO",
        f"{_STATE}minDeltasForSnapshot": "2",
        f"{_STATE}checkpointFormatVersion": "2",
        **({"spark.pyspark.driver.python": sys.executable} if mode == "client" else {}),
    }


class Submitted:
    """One application. It writes each batch to `<work>/out`."""

    def __init__(self, yarn: Yarn, work: Path, settings: dict[str, str], *arguments: str) -> None:
        self._yarn = yarn
        self.log = work / "submit.log"
        properties = work / "spark.conf"
        properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        job = str(Path(__file__).with_name("job.py"))
        line = [str(SPARK_HOME / "bin" / "spark-submit"), "--properties-file", str(properties)]
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                [*line, job, *arguments],
                env=yarn.environment(),
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def report(self) -> str:
        """Return what everybody said, for a failed test."""
        return self.log.read_text()[-5000:] + self._yarn.container_logs() + self._yarn.said()

    def wait_for(self, done: Path) -> None:
        """Wait for a file. Raises: AssertionError: the application ended before."""
        wait_until(
            lambda: done.exists() or self.process.poll() is not None,
            seconds=240,
            what=f"{done}; {self.log} says more",
        )
        assert done.exists(), self.report()

    def end(self) -> None:
        """Wait for the end, which must be a good one."""
        code = self.process.wait(timeout=240)
        assert code == 0, self.report()


def _rows(batch: int) -> list[dict[str, Any]]:
    return events(*((f"k{(batch * 3 + n) % 11}", float(batch), batch * n) for n in range(30)))


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_executors_are_killed(
    yarn: Yarn, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All executors are killed twice. The sink's rows and the state equal the batch computation."""
    source, out = Input(tmp_path / "input", EVENTS), tmp_path / "out"
    out.mkdir()
    checkpoint = f"{yarn.hdfs.uri}/queries/{mode}"
    settings = _settings(mode, tmp_path)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for batch in range(_FILES):
        source.add(_rows(batch))
        for row in _rows(batch):
            counts[row["k"]][0] += 1
            counts[row["k"]][1] += row["v"]
    app = Submitted(yarn, tmp_path, settings, f"file:{tmp_path}/input", checkpoint, str(out))
    try:
        for batch in (1, 4):
            app.wait_for(out / f"{batch}.json")
            assert yarn.kill_executors() >= 1, app.report()
        app.end()
    finally:
        app.process.kill()
        app.process.wait()
    assert "the storage was not tried" not in app.log.read_text()
    told = {
        key: values
        for batch in range(_FILES)
        for key, *values in json.loads((out / f"{batch}.json").read_text())
    }
    assert told == dict(counts)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.hdfs.conf))
    state = millpond.read_state(checkpoint).to_pylist()
    found = {row["key"]["k"]: [row["value"]["count"], row["value"]["sum"]] for row in state}
    assert found == dict(counts)
    assert verify(open_checkpoint(checkpoint), checkpoint).problems == []
