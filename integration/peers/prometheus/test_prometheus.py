"""What Prometheus has of a running job, by the files in conf/. One cluster serves all tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster import STATE, Application, Cluster
from integration.jvm import REPO
from integration.peers.prometheus.server import Prometheus, program, version
from integration.processes import alive, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_CONF = REPO / "conf"
_RULES = (_CONF / "prometheus-rules.yml").read_text()
_WAIT_S = 90
_NAME = re.compile(r"\bmillpond[a-z_]*(?::[a-z_0-9]+)*")


def settings() -> dict[str, str]:
    """Return what conf/prometheus.conf sets, with a free port."""
    lines = (_CONF / "prometheus.conf").read_text().splitlines()
    said = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip() for name, value in said.items()} | {"spark.ui.port": "0"}


def expressions() -> set[str]:
    """Return each PromQL expression of the dashboard and of the rules, ready to be asked."""
    dashboard = json.loads((_CONF / "grafana-dashboard.json").read_text())
    found = {t["expr"] for panel in dashboard["panels"] for t in panel["targets"]}
    rules = re.findall(r"expr: (?:>-\n((?: {10}.*\n)+)|(.+))", _RULES)
    found |= {" ".join((folded or line).split()) for folded, line in rules}
    return {e.replace("$application", ".*").replace("$__rate_interval", "1m") for e in found}


def metrics() -> set[str]:
    """Return the name of each metric in the dashboard and the rules."""
    return {name for expression in expressions() for name in _NAME.findall(expression)} - {
        "millpond"  # the scrape's job
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def app(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application with a counting query that runs."""
    conf = {
        **settings(),
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "4",
        STATE + "maintenanceInterval": "300ms",
        STATE + "minDeltasForSnapshot": "2",
    }
    with Application(cluster, tmp_path_factory.mktemp("apps") / "orders", conf) as running:
        running.call("start", name="counts", query="rate", format=2)
        yield running


@pytest.fixture(scope="module")
def prometheus(
    app: Application, tmp_path_factory: pytest.TempPathFactory, versions: dict[str, str]
) -> Iterator[Prometheus]:
    """A Prometheus with the files of conf/, but in a hurry: it scrapes each second, and alerts wait
    for nothing.
    """
    versions["Prometheus"] = version()
    folder = tmp_path_factory.mktemp("prometheus")
    target = app.call("ui").removeprefix("http://")
    config = (_CONF / "prometheus.yml").read_text()
    assert config.count("driver.example:4040") == 1
    config = config.replace("driver.example:4040", target).replace(": 15s", ": 1s")
    (folder / "prometheus.yml").write_text(config)
    quick = re.sub(r"for: \d+m", "for: 0s", _RULES).replace("[5m]", "[30s]")
    # A stopped executor is lost to Spark after two minutes.
    quick = quick.replace("millpond_report_age_seconds > 60", "millpond_report_age_seconds > 8")
    (folder / "prometheus-rules.yml").write_text(quick)
    with Prometheus(folder / "prometheus.yml", folder / "run").running() as running:
        wait_until(running.ready, seconds=_WAIT_S, what="Prometheus to be ready")
        yield running


@pytest.mark.sample
def test_promtool_takes_the_files() -> None:
    for check in (["rules", "prometheus-rules.yml"], ["config", "prometheus.yml"]):
        done = subprocess.run(
            [program("promtool"), "check", *check],
            cwd=_CONF,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.sample
def test_each_alert_fires_for_its_cause_and_not_before(tmp_path: Path) -> None:
    """promtool plays series against the rules as they are, with their real durations."""
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(Path(__file__).with_name("alerts.yml"))],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = set(re.findall(r"alertname: (\w+)", Path(__file__).with_name("alerts.yml").read_text()))
    assert tried == set(re.findall(r"alert: (\w+)", _RULES))


def test_each_metric_has_a_value_for_each_executor(
    cluster: Cluster, app: Application, prometheus: Prometheus
) -> None:
    executors = {e.id for e in cluster.executors()}
    assert len(executors) == 2

    def all_there() -> bool:
        return all(
            {labels.get("executor") for labels, _ in prometheus.query(name)} >= executors
            for name in metrics()
        )

    wait_until(all_there, seconds=_WAIT_S, what="each metric of each executor")
    for name in metrics():
        for labels, value in prometheus.query(name):
            assert labels["application"] == "orders" and labels["job"] == "millpond"
            assert value >= 0
    for expression in expressions():
        prometheus.query(expression)  # an error would be raised


def test_the_numbers_are_those_of_the_query(prometheus: Prometheus) -> None:
    def total(name: str) -> float:
        return sum(value for _, value in prometheus.query(name))

    assert total("millpond_stores") == 4
    wait_until(lambda: total("millpond_snapshots_total") > 3, seconds=_WAIT_S, what="snapshots")
    assert total("millpond_snapshot_failures_total") == 0
    wait_until(  # at the least one for each key and batch
        lambda: total("millpond_lookups_total") > 100, seconds=_WAIT_S, what="point reads"
    )
    assert total("millpond_disk_reads_total") <= total("millpond_lookups_total")
    assert 0 < total("millpond_memory_used_bytes") < total("millpond_memory_budget_bytes")
    assert total("millpond_agent_restarts_total") == 0
    assert 0 < max(v for _, v in prometheus.query("millpond_snapshot_age_seconds")) < 60
    assert {v for _, v in prometheus.query("millpond_report_age_seconds") if v > 60} == set()
    (hit_ratio, *_) = [v for _, v in prometheus.query("millpond:hit_ratio:rate5m")]
    assert 0 <= hit_ratio <= 1


def test_the_number_of_series_does_not_depend_on_that_of_stores(
    app: Application, prometheus: Prometheus
) -> None:
    def series() -> int:
        return len(prometheus.query('{job="millpond", executor!="", __name__!~".*:.*"}'))

    before = series()
    app.call("start", name="more", query="rate", format=2)
    wait_until(
        lambda: sum(v for _, v in prometheus.query("millpond_stores")) == 8,
        seconds=_WAIT_S,
        what="the stores of another query",
    )
    assert series() == before
    app.call("stop", name="more")


def test_an_alert_fires_when_agents_are_killed(cluster: Cluster, prometheus: Prometheus) -> None:
    assert "MillpondAgentRestarts" not in prometheus.firing()
    victim = cluster.executors()[0]
    killed: set[int] = set()

    def fires() -> bool:
        restarts = {
            labels["executor"]: value
            for labels, value in prometheus.query("millpond_agent_restarts_total")
        }
        # The next one dies only when this one has come up.
        if restarts[victim.id] == len(killed):
            agents = {e.agent for e in cluster.executors() if e.id == victim.id and e.agent}
            for agent in agents - killed:
                os.kill(agent, signal.SIGKILL)
                killed.add(agent)
        return "MillpondAgentRestarts" in prometheus.firing()

    wait_until(fires, seconds=_WAIT_S, what="the alert about the agent")
    (labels,) = prometheus.firing()["MillpondAgentRestarts"]
    assert labels["executor"] == victim.id
    assert len(killed) >= 3


def test_an_alert_fires_while_an_executor_is_stopped(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    assert "MillpondExecutorSilent" not in prometheus.firing()
    victim = cluster.executors()[-1]
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: any(
                labels["executor"] == victim.id
                for labels in prometheus.firing().get("MillpondExecutorSilent", [])
            ),
            seconds=_WAIT_S,
            what="the alert about the executor",
        )
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    wait_until(
        lambda: "MillpondExecutorSilent" not in prometheus.firing(),
        seconds=_WAIT_S,
        what="the end of the alert",
    )


def test_an_executor_that_is_gone_has_no_metrics(
    cluster: Cluster, app: Application, prometheus: Prometheus
) -> None:
    victim = cluster.executors()[0]
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: not alive(victim.pid), seconds=_WAIT_S, what="the executor's death")

    def scraped() -> str:
        with urllib.request.urlopen(app.call("ui") + "/metrics/prometheus", timeout=10) as answer:
            return str(answer.read().decode())

    wait_until(
        lambda: f"_millpondExecutors_{victim.id}_" not in scraped(),
        seconds=_WAIT_S,
        what="the end of its metrics",
    )

    def stores() -> dict[str, float]:
        return {labels["executor"]: v for labels, v in prometheus.query("millpond_stores")}

    wait_until(
        lambda: victim.id not in stores() and sum(stores().values()) == 4,
        seconds=_WAIT_S,
        what="its stores on other executors",
    )
