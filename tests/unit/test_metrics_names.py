"""The metrics of executors: the shim's table, the page, the rules and the dashboard agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

_TABLE = "jvm-shim/src/main/scala/observe/Metrics.scala"


def _declared(repository: Path) -> set[str]:
    text = (repository / _TABLE).read_text()
    return set(re.findall(r'^    "([a-z_]+)" ->', text, re.MULTILINE)) | {"report_age_seconds"}


def _named(text: str) -> set[str]:
    return set(re.findall(r"\bmillpond_([a-z_]+)", text))


def test_the_page_tells_each_metric(repository: Path) -> None:
    page = (repository / "docs/reference/metrics.md").read_text()
    section = page.split("## Of each executor")[1].split("\n## ")[0]
    rows = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z_]+)`", rows)) == _declared(repository)


def test_rules_and_dashboard_name_what_there_is(repository: Path) -> None:
    rules = (repository / "conf/prometheus-rules.yml").read_text()
    dashboard = json.loads((repository / "conf/grafana-dashboard.json").read_text())
    shown = " ".join(t["expr"] for panel in dashboard["panels"] for t in panel["targets"])
    assert _named(rules) <= _declared(repository)
    # `agent_starts_total` says no more than the restarts.
    assert _named(shown) == _declared(repository) - {"agent_starts_total"}


def test_the_dashboard_has_no_two_panels_in_one_place(repository: Path) -> None:
    dashboard = json.loads((repository / "conf/grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len({p["id"] for p in panels}) == len(panels)
    assert all(p["title"] and p["description"].endswith(".") for p in panels)
