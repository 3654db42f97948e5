"""A small standalone Spark cluster on loopback, with real processes, and a driver on it.

`Cluster` is a master and its workers, one core each. `Application` is `spark-submit` of
`cluster_job.py` with the settings of `conf/standalone.conf`. Every process has a tag in its
environment. By the tag, the cluster finds and ends all processes, even those whose parent is dead.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyspark

import millpond
from integration.demo import processes as tagged
from integration.jvm import LIGHT, LIGHT_DRIVER, REPO
from integration.processes import Process, below, is_agent, processes, wait_until

SPARK_HOME = Path(pyspark.__file__).parent
STATE = "spark.sql.streaming.stateStore."
TAG = "MILLPOND_TEST_CLUSTER"
START_S = 90
END_S = 20.0


def documented_settings(master: str) -> dict[str, str]:
    """Return the settings of `conf/standalone.conf`, with this machine's paths.

    Raises: AssertionError: the file and `millpond conf` say different things.
    """
    settings: dict[str, str] = {}
    for line in (REPO / "conf" / "standalone.conf").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, value = line.split(None, 1)
            settings[name] = value.strip()
    done = subprocess.run(
        [sys.executable, "-m", "millpond.cli.main", "conf", "--master", "standalone"],
        check=True,
        capture_output=True,
        text=True,
    )
    printed = dict(
        line.split(None, 1) for line in done.stdout.splitlines() if not line.startswith("#")
    )
    assert settings.keys() >= printed.keys(), printed.keys() - settings.keys()
    assert Path(settings["spark.jars"]).name == Path(printed["spark.jars"]).name
    assert printed["spark.jars"] == millpond.jar()
    return settings | printed | {"spark.master": master, "spark.pyspark.python": sys.executable}


@dataclass(frozen=True)
class Executor:
    """A live executor: its id in the application, its JVM, and its agent; 0 if no agent runs."""

    id: str
    pid: int
    agent: int


class Cluster:
    """Master and workers below `work`. The end of the context ends all their processes.

    Args:
        workers: the number of workers. Each has one core: one executor, with one task at a time.
        memory_mb: of each worker, for executors.
    """

    def __init__(self, work: Path, *, workers: int = 2, memory_mb: int = 1024) -> None:
        self.work = work
        self.tag = uuid.uuid4().hex
        self.scratch = work / "scratch"
        self.scratch.mkdir(parents=True)
        self.local.mkdir()
        self.daemons: list[subprocess.Popen[bytes]] = []
        try:
            self.url = self._start_master()
            self.add_workers(workers, memory_mb)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def local(self) -> Path:
        """Return the workers' local disk. Executors keep their files below it.

        The workers set this folder. The application cannot.
        """
        return self.work / "local"

    def address(self, host: int) -> str:
        """Return the address of a host. Host 0 has the master and the driver, host n worker n - 1.

        Each worker has its own: Spark runs no speculative copy on the first attempt's host.
        """
        return f"127.0.0.{host + 1}"

    def on(self, host: int) -> list[str]:
        """Return what precedes a command that runs on a host."""
        return []

    def _daemon(self, log: str, host: int, *arguments: str) -> None:
        with (self.work / log).open("ab") as out:
            self.daemons.append(
                subprocess.Popen(
                    [
                        *self.on(host),
                        *(str(SPARK_HOME / "bin" / "spark-class"), *arguments),
                        *("--host", self.address(host), "--port", "0", "--webui-port", "0"),
                    ],
                    env=self.environment()
                    | {"SPARK_LOCAL_DIRS": str(self.local), "SPARK_LOCAL_IP": self.address(host)},
                    cwd=self.work,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def _start_master(self) -> str:
        main = "org.apache.spark.deploy.master.Master"
        self._daemon("master.log", 0, main)
        log = self.work / "master.log"
        found: list[str] = []

        def announced() -> bool:
            found[:] = re.findall(
                rf"Starting Spark master at (spark://{re.escape(self.address(0))}:\d+)",
                log.read_text(errors="replace"),
            )
            return bool(found)

        wait_until(announced, seconds=START_S, what="the master to say where it is")
        return found[0]

    def add_workers(self, count: int, memory_mb: int = 1024) -> None:
        """Start more workers, and wait until the master knows them."""
        before = len(self.daemons) - 1  # the master is the first
        for number in range(before, before + count):
            self._start_worker(number, memory_mb)
        wait_until(
            lambda: (
                (self.work / "master.log").read_text(errors="replace").count("Registering worker")
                >= before + count
            ),
            seconds=START_S,
            what="the workers to register",
        )

    def _start_worker(self, number: int, memory_mb: int) -> None:
        with_options = (
            "--cores",
            "1",
            "--memory",
            f"{memory_mb}m",
            "--work-dir",
            str(self.work / f"worker-{number}"),
            self.url,
        )
        self._daemon(
            f"worker-{number}.log",
            number + 1,
            "org.apache.spark.deploy.worker.Worker",
            *with_options,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of the cluster.

        It has nothing of the machine's own Spark. Addresses are on loopback. Scratch files lie
        below `work`.
        """
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SPARK_", "PYSPARK_", "HADOOP_CONF", "MILLPOND"))
        }
        return kept | {
            TAG: self.tag,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": self.address(0),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{LIGHT} -Djava.io.tmpdir={self.scratch}",
            "TMPDIR": str(self.scratch),
        }

    def executors(self) -> list[Executor]:
        """Return the live executors, by id."""
        found = []
        for process in self.processes():
            id_ = re.search(r"--executor-id (\d+) ", process.command)
            if id_ and "CoarseGrainedExecutorBackend" in process.command and process.state != "Z":
                agents = [p.pid for p in below(process.pid) if is_agent(p) and p.state != "Z"]
                found.append(Executor(id_[1], process.pid, agents[0] if agents else 0))
        return sorted(found, key=lambda e: int(e.id))

    def processes(self) -> list[Process]:
        """Return all live processes of the cluster and of its applications."""
        mine = {p.pid for p in tagged.find(self.tag, TAG)}
        return [p for p in processes() if p.pid in mine]

    def stop(self) -> None:
        """End all processes. Raises: TimeoutError: a process survived a kill -9."""
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

        def none_left() -> bool:
            left = tagged.find(self.tag, TAG)
            tagged.kill(left)
            return not left

        if not tagged.wait_until(none_left, timeout_s=END_S):
            raise TimeoutError(f"still alive: {tagged.find(self.tag, TAG)}")


class Application:
    """One driver on the cluster, run by `spark-submit`. The end of the context ends it.

    It obeys commands: see `cluster_job.py`.

    Args:
        work: folder of this application: its Spark checkpoints, output and logs.
        settings: Spark settings beside those of `conf/standalone.conf`.
        home: folder of the Spark checkpoints and the output, if they outlive this application.
        job: the script.
    """

    def __init__(
        self,
        cluster: Cluster,
        work: Path,
        settings: Mapping[str, str],
        *,
        home: Path | None = None,
        job: Path = REPO / "integration" / "cluster_job.py",
    ) -> None:
        self.cluster = cluster
        self.work = work
        self.home = home or work
        work.mkdir(parents=True)
        (work / "commands").mkdir()
        (work / "answers").mkdir()
        self._asked = 0
        self.settings = documented_settings(cluster.url) | {
            # A test's machine is small.
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "256m",
            "spark.driver.memory": "512m",
            "spark.local.dir": str(work / "local"),  # the driver's
            "spark.sql.warehouse.dir": str(work / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.driver.host": cluster.address(0),
            "spark.driver.bindAddress": cluster.address(0),
            "spark.sql.session.timeZone": "UTC",
            "spark.executor.extraJavaOptions": f"{LIGHT} -Djava.io.tmpdir={cluster.scratch}",
            "spark.driver.extraJavaOptions": f"{LIGHT_DRIVER} -Djava.io.tmpdir={cluster.scratch}",
            # the agent's log says which executor opened which store
            "spark.executorEnv.MILLPOND_LOG": "INFO",
            **settings,
        }
        properties = work / "spark.conf"
        properties.write_text("".join(f"{name} {value}\n" for name, value in self.settings.items()))
        python_path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH", "")]))
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *cluster.on(0),
                    *(
                        str(SPARK_HOME / "bin" / "spark-submit"),
                        "--properties-file",
                        str(properties),
                    ),
                    *(str(job), str(work), str(self.home), str(os.getpid())),
                ],
                env=cluster.environment() | {"PYTHONPATH": python_path},
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.call("ping", seconds=START_S)
        except BaseException:
            self.stop()
            raise

    @property
    def log_path(self) -> Path:
        """Return the file with the output of driver and spark-submit."""
        return self.work / "driver.log"

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def call(self, do: str, *, seconds: float = 60, **arguments: Any) -> Any:
        """Let the driver do something.

        Raises: AssertionError: the driver failed, or gave no answer in time.
        """
        self._asked += 1
        name = f"{self._asked:04d}.json"
        hidden = self.work / "commands" / f".{name}"
        hidden.write_text(json.dumps({"do": do, **arguments}))
        hidden.rename(self.work / "commands" / name)
        answer = self.work / "answers" / name
        wait_until(
            lambda: answer.exists() or self.process.poll() is not None,
            seconds=seconds,
            what=f"an answer to '{do}'",
        )
        assert answer.exists(), f"the driver ended at '{do}':\n{self.tail()}"
        said = json.loads(answer.read_text())
        assert "error" not in said, f"'{do}' failed: {said['error']}"
        return said["ok"]

    def executor_logs(self) -> dict[str, str]:
        """Return what each executor and its agent wrote to stderr, by executor id."""
        app = self.call("app")
        return {
            path.parent.name: path.read_text(errors="replace")
            for path in self.cluster.work.glob(f"worker-*/{app}/*/stderr")
        }

    def tail(self, lines: int = 60) -> str:
        """Return the end of the driver's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the driver in order, or by force if it does not answer. Its executors end too."""
        if self.process.poll() is None:
            (self.work / "commands" / "quit").touch()
            try:
                self.process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        wait_until(lambda: not self.cluster.executors(), seconds=END_S, what="the executors to end")
