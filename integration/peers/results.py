"""The results of the peers' runs, one file a peer, and the page that shows them.

`python -m integration.peers.results` makes docs/reference/peers.md anew.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyspark

from integration.jvm import REPO

_FOLDER = Path(__file__).with_name("results")
PAGE = REPO / "docs" / "reference" / "peers.md"

# What each peer is for, in the order of the page.
PEERS = {
    "spark": "Spark's own suites",
    "kafka": "Kafka as source and sink",
    "delta": "Delta tables as sinks",
    "minio": "State on MinIO, Spark checkpoints there by s3a",
    "radosgw": "State on Ceph's S3 gateway",
    "seaweedfs": "State on SeaweedFS",
    "azurite": "Spark checkpoints on Azurite by ABFS",
    "gcs": "Spark checkpoints on an emulator of Google Cloud Storage",
    "files": "Spark checkpoints on file systems of the machine",
    "hdfs": "Spark checkpoints on HDFS",
    "yarn": "Queries on YARN",
    "kubernetes": "Pods for Kubernetes, as Spark makes them",
    "network": "Hosts that are cut off for a minute",
    "runtimes": "Other Javas and Pythons",
    "prometheus": "A Prometheus that scrapes a job",
    "browser": "The pages of `millpond ui` in Chromium",
}

_HEAD = """\
# Peers

Each line is a run of Millpond beside another system: the real one, fetched by its package name.
The runs write this page. Tests that do not apply to a peer are below the table, with the reason.

| peer | command | versions | date | passed | failed | not applicable |
|---|---|---|---|---|---|---|
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """One run: the versions by name, the number of tests, and why some did not apply."""

    peer: str
    date: str
    versions: dict[str, str]
    passed: int
    failed: list[str]
    not_applicable: dict[str, str]

    @staticmethod
    def of(
        peer: str, versions: Mapping[str, str], outcomes: Mapping[str, tuple[str, str]]
    ) -> Result:
        """Return the result of a run that ended now. `outcomes` gives each test's outcome and
        reason.
        """
        said = sorted(outcomes.items())
        return Result(
            peer=peer,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            versions={"Spark": pyspark.__version__, **versions},
            passed=sum(outcome == "passed" for outcome, _ in outcomes.values()),
            failed=[_name(test) for test, (outcome, _) in said if outcome == "failed"],
            not_applicable={
                _name(test): why for test, (outcome, why) in said if outcome == "not applicable"
            },
        )


def save(result: Result) -> None:
    """Write a run's result over the one before, and make the page anew."""
    _FOLDER.mkdir(exist_ok=True)
    text = json.dumps(dataclasses.asdict(result), indent=2)
    (_FOLDER / f"{result.peer}.json").write_text(text + "\n")
    PAGE.write_text(page())


def page() -> str:
    """Return docs/reference/peers.md as the saved results make it."""
    results = [
        Result(**json.loads(path.read_text()))
        for path in sorted(_FOLDER.glob("*.json"), key=lambda p: list(PEERS).index(p.stem))
    ]
    return _HEAD + "".join(map(_row, results)) + "".join(map(_reasons, results))


def _row(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    cells = (
        PEERS[result.peer],
        f"`make peer-{result.peer}`",
        versions,
        result.date,
        result.passed,
        len(result.failed),
        len(result.not_applicable),
    )
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _reasons(result: Result) -> str:
    lines = [f"- failed: `{test}`" for test in result.failed]
    for why, tests in Counter(result.not_applicable.values()).items():
        lines.append(f"- not applicable: {why} ({tests} test{'s' if tests > 1 else ''})")
    return f"\n## {PEERS[result.peer]}\n" + "\n".join(lines) + "\n" if lines else ""


def _name(test: str) -> str:
    return test.split("::", 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
