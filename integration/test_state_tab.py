"""The tab *State* in Spark's own web pages: of a running application, and from the history."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import millpond
from integration.cluster import SPARK_HOME, STATE, Application, Cluster
from integration.harness import millponds_own
from integration.jvm import LIGHT, REPO
from integration.processes import wait_until

pytestmark = millponds_own

WAIT_S = 90
# The session of a test may be of another version of Spark than the environment says.
_KEPT = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}


class Tables(HTMLParser):
    """The tables of a page: by their id, rows of cells by column."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[dict[str, str]]] = {}
        self._id, self._head, self._row, self._cell = "", list[str](), list[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._id, self._head = dict(attrs).get("id") or "", []
            self.found[self._id] = []
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data: str) -> None:
        self._cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            self._head.append(self._cell.strip())
        elif tag == "td":
            self._row.append(self._cell.strip())
        elif tag == "tr" and self._row:
            self.found[self._id].append(dict(zip(self._head, self._row, strict=True)))


def get(url: str) -> str:
    """Return the body of a page. Raises: HTTPError."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def tables(url: str) -> dict[str, list[dict[str, str]]]:
    """Return the tables of the tab, by id, without the prefix."""
    found = Tables(get(url)).found
    return {name.removeprefix("millpond-"): rows for name, rows in found.items()}


@contextmanager
def job(work: Path, **settings: str) -> Iterator[dict[str, Any]]:
    """Run the application, and yield what it says about itself. It ends in order."""
    log = work / "job.log"
    set_ = {
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": LIGHT,
        "spark.sql.shuffle.partitions": "2",
        STATE + "maintenanceInterval": "300ms",
        STATE + "minDeltasForSnapshot": "2",
        **settings,
    }
    script = Path(__file__).with_name("state_tab_job.py")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(script), str(work), *(f"{k}={v}" for k, v in set_.items())],
            cwd=work,
            env=_KEPT | {"PYTHONPATH": os.pathsep.join([str(REPO), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
        )
    assert process.stdout is not None and process.stdin is not None
    try:
        said = process.stdout.readline()
        assert said, log.read_text()[-4000:]
        yield json.loads(said)
        process.stdin.close()
        assert process.wait(timeout=60) == 0, log.read_text()[-4000:]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def history_server(work: Path, logs: Path, *, with_jar: bool) -> Iterator[str]:
    """Run Spark's history server over a folder of event logs, and yield its URL."""
    log = work / f"history-{with_jar}.log"
    options = (
        f"{LIGHT} -Dspark.history.fs.logDirectory={logs.as_uri()} -Dspark.history.ui.port=0"
        " -Dspark.history.fs.update.interval=1s"
    )
    environment = _KEPT | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_HISTORY_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
    }
    if with_jar:
        environment["SPARK_DAEMON_CLASSPATH"] = millpond.jar()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin/spark-class"), "org.apache.spark.deploy.history.HistoryServer"],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        found: list[str] = []

        def announced() -> bool:
            assert process.poll() is None, log.read_text()
            ports = re.findall(r"started at http://[^:]+:(\d+)", log.read_text())
            found[:] = [f"http://127.0.0.1:{port}" for port in ports]
            return bool(found)

        wait_until(announced, seconds=WAIT_S, what="the history server")
        yield found[0]
    finally:
        process.kill()
        process.wait()


def page_of(server: str, app: str) -> str:
    """Return the page of an application on the history server, once the server knows it."""
    pages: list[str] = []

    def known() -> bool:
        try:
            pages[:] = [get(f"{server}/history/{app}/jobs/")]
        except urllib.error.HTTPError:
            return False
        return True

    wait_until(known, seconds=WAIT_S, what="the application on the history server")
    return pages[0]


@pytest.mark.deep
def test_the_tab_of_a_running_application_and_from_the_history(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        # one file of text, which the test reads and changes
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    with job(tmp_path, **conf) as said:
        url = f"{said['ui']}/state/"
        assert ">State</a>" in get(said["ui"] + "/jobs/")
        wait_until(
            lambda: (
                len(tables(url).get("stores", [])) == 10
                and all(s["Newest snapshot"] not in ("", "0") for s in tables(url)["stores"])
            ),
            seconds=WAIT_S,
            what="ten stores with snapshots",
        )
        live = tables(url)
        check_tables(live, said)
        before = max(int(s["Version"]) for s in live["stores"])
        wait_until(
            lambda: min(int(s["Version"]) for s in tables(url)["stores"]) > before,
            seconds=20,
            what="later versions",
        )
        (report,) = json.loads(get(url + "json"))
        assert report["gone"] is False
        assert len(report["report"]["stores"]) == 10
        links = set(re.findall(r'href="([^"]*StreamingQuery[^"]*id=[^"]*)"', get(url)))
        assert {link.rpartition("=")[2] for link in links} == set(said["runs"].values())
        for link in links:
            assert link.rpartition("=")[2] in get(said["ui"] + link)
    # The end of the queries killed tasks: that is no news.
    assert not re.findall(r"event=(?:storage_error|agent_lost)", (tmp_path / "job.log").read_text())
    with history_server(tmp_path, logs, with_jar=True) as server:
        assert ">State</a>" in page_of(server, said["app"])
        past = tables(f"{server}/history/{said['app']}/state/")
        check_tables(past, said)
    with history_server(tmp_path, logs, with_jar=False) as server:
        page = page_of(server, said["app"])  # all else is there
        assert ">State</a>" not in page and ">Stages</a>" in page
    forged(tmp_path, logs, said)


def check_tables(found: dict[str, list[dict[str, str]]], said: dict[str, Any]) -> None:
    """The tables show one executor, and the stores of both queries."""
    (executor,) = found["executors"]
    assert executor["Executor"] == "driver"
    assert executor["Stores"] == "10" and executor["Agent"].startswith("pid ")
    assert executor["Agent restarts"] == executor["Failed snapshots"] == "0"
    assert int(executor["Snapshots"]) > 0
    assert re.fullmatch(r"\d+ %", executor["Used"]) and executor["Budget"].endswith("iB")
    assert re.fullmatch(r"\d+\.\d %", executor["Hit ratio"])
    by_run = {
        run: [s for s in found["stores"] if s["Run"] == run[:8]] for run in said["runs"].values()
    }
    assert [len(stores) for stores in by_run.values()] == [2, 8]
    assert {s["Store"] for s in by_run[said["runs"]["pairs"]]} > {"left-keyToNumValues"}
    for store in found["stores"]:
        assert store["Executor"] == "driver" and int(store["Version"]) > 0
        assert re.fullmatch(r"[\d.]+ (?:[KM]i)?B", store["Memory"])
        assert re.fullmatch(r"\d+ %", store["Of the budget"])
        assert int(store["Versions after it"]) >= 0


def forged(work: Path, logs: Path, said: dict[str, Any]) -> None:
    """Whatever an event log says is text on the page."""
    other = work / "forged"
    other.mkdir()
    evil = "<script>alert(1)</script>"
    (log,) = [p for p in logs.rglob("*") if p.is_file() and said["app"] in p.name]
    text = log.read_text()
    assert "StateReportEvent" in text and "PassingReportEvent" not in text
    text = text.replace("left-keyToNumValues", evil).replace('"host\\":\\"', f'"host\\":\\"{evil}')
    assert evil in text
    (other / log.name).write_text(text)
    with history_server(work, other, with_jar=True) as server:
        page_of(server, said["app"])
        page = get(f"{server}/history/{said['app']}/state/?page=<script>")
        assert evil not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.deep
def test_no_tab_where_there_are_no_pages_or_no_query_of_millpond_s(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with job(tmp_path / "one", **{"spark.ui.enabled": "false"}) as said:
        assert said["ui"] is None
    (tmp_path / "other").mkdir()
    hdfs = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    with job(tmp_path / "other", **{STATE + "providerClass": hdfs}) as said:
        assert ">State</a>" not in get(said["ui"] + "/jobs/")


@pytest.mark.deep
def test_the_tab_of_a_cluster(tmp_path: Path) -> None:
    """Each executor has its stores. One that is killed is gone, and another has its stores."""
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.sql.shuffle.partitions": "4",
        STATE + "maintenanceInterval": "300ms",
    }
    with (
        Cluster(tmp_path / "cluster") as cluster,
        Application(cluster, tmp_path / "a", conf) as app,
    ):
        app.call("start", name="counts", query="rate", format=2)
        url = app.call("ui") + "/state/"

        def holders() -> list[str]:
            try:
                return [s["Executor"] for s in tables(url).get("stores", [])]
            except urllib.error.HTTPError:  # no query has been planned yet
                return []

        wait_until(
            lambda: len(holders()) == 4 and len(set(holders())) == 2,
            seconds=WAIT_S,
            what="the stores of both executors",
        )

        def agents() -> dict[str, str]:
            return {row["Executor"]: row["Agent"] for row in tables(url)["executors"]}

        # A store is reported from its creation on. Its first load starts the agent.
        wait_until(
            lambda: all(agents().get(e.id) == f"pid {e.agent}" for e in cluster.executors()),
            seconds=WAIT_S,
            what="the agents of both executors",
        )
        executors = {e.id: e for e in cluster.executors()}
        shown = {row["Executor"]: row for row in tables(url)["executors"]}
        for executor in executors.values():
            assert f"(pid {executor.pid})" in shown[executor.id]["Host"]
        victim = min(executors)
        os.kill(executors[victim].pid, signal.SIGKILL)
        wait_until(
            lambda: (
                {r["Executor"]: r["Last report"] for r in tables(url)["executors"]}[victim]
                == "gone"
                and len(holders()) == 4
                and victim not in holders()
            ),
            seconds=WAIT_S,
            what="the stores of the executor that was killed",
        )
