"""Events in the log of executors and agents. `tests/unit/test_events.py` tests their table."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster import STATE, Application, Cluster
from integration.damage_scene import written_scene
from integration.harness import Harness, Provider, ProviderError, Schema, Store, millponds_own
from integration.processes import wait_until
from integration.store_cases import open_provider
from millpond.events import EVENTS, STORE_FIELDS

pytestmark = millponds_own

WAIT_S = 90
SECRET = "a-secret-that-no-log-may-have"
_FIELD = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|\S*)')

Line = dict[str, str]


def events(log: str) -> list[Line]:
    """Return the events in a log, each as its fields by name, in their order.

    A line that is still being written is none.

    Raises: AssertionError: a line is not as the table says.
    """
    found = []
    for text in log[: log.rfind("\n") + 1].splitlines():
        if "event=" not in text or text.startswith(("  ", "\t")):
            continue
        fields = {
            name: json.loads(value) if value.startswith('"') else value
            for name, value in _FIELD.findall(text[text.index("event=") :])
        }
        info = EVENTS[fields["event"]]
        declared = [*(STORE_FIELDS if info.store else ()), *info.fields]
        assert sorted(fields) == sorted(["event", *declared]), text
        assert list(fields)[: 1 + 4 * info.store] == ["event", *STORE_FIELDS[: 4 * info.store]]
        level = "WARN" if info.level == "WARN" else "INFO"
        assert level in text.split("event=")[0], text
        for name in ("duration_ms", "bytes", "version", "partition", "operator", "agent_pid"):
            assert re.fullmatch(r"-?\d+", fields.get(name, "0")), text
        found.append(fields)
    return found


# ---- one store


_LOG = {"spark.millpond.harness.log": "INFO"}


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A JVM whose log has events."""
    started = Harness(tmp_path_factory.mktemp("harness"), conf=_LOG)
    yield started
    started.stop()


class Logging:
    """A JVM, and what it logs from now on."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._before = harness.log_path.read_bytes().rfind(b"\n") + 1

    def log(self) -> str:
        """Return what the JVM has logged since this was made."""
        return self.harness.log_path.read_bytes()[self._before :].decode()


@pytest.fixture
def logging(jvm: Harness) -> Logging:
    return Logging(jvm)


def test_an_attempt_that_lost_and_a_snapshot_that_is_damaged(
    logging: Logging, tmp_path: Path
) -> None:
    scene = written_scene(logging.harness, tmp_path, 2)
    newest = max(scene.states)
    run_id = str(uuid.uuid4())  # a run that begins later would end the first one's stores
    loser, winner = scene.open(run_id=run_id), scene.open(run_id=run_id)
    stores = [provider.store(newest, scene.ids[newest]) for provider in (loser, winner)]
    for store in stores:
        store.put(["lost", 1], ["x", 0])
    lost, won = (store.commit() for store in stores)
    assert lost.id != won.id
    loser.store(newest + 1, won.id).abort()
    for path in sorted((scene.directory / "sst").iterdir()):
        path.write_bytes(b"damaged")
    scene.read(newest)
    for provider in (loser, winner):
        provider.close()

    found = events(logging.log())
    (attempt,) = [e for e in found if e["event"] == "attempt_lost"]
    assert (attempt["version"], attempt["id"]) == (str(newest + 1), lost.id)
    passed = [e for e in found if e["event"] == "snapshot_passed_over"]
    assert passed and {e["error"] for e in passed} <= {"SST_DAMAGED", "SST_MISSING"}
    assert {e["version"] for e in passed} == {str(newest)}
    assert all(e["manifest"].endswith(".manifest") for e in passed)
    restores = [e for e in found if e["event"] == "restore_done"]
    # The last one had no snapshot left to begin with.
    assert restores[-1]["snapshot_version"] == "0" and int(restores[-1]["changelogs"]) > 0
    assert any(int(e["snapshot_version"]) > 0 for e in restores)


def test_what_the_storage_refuses(logging: Logging, tmp_path: Path) -> None:
    """The store's directory leads nowhere. The shim says so, and so does the agent."""
    scene = written_scene(logging.harness, tmp_path)
    newest = max(scene.states)
    writer = scene.open()
    store = writer.store(newest)
    store.put(["k", 1], ["secret value of a row", 0])
    scene.directory.rename(tmp_path / "aside")
    scene.directory.symlink_to(scene.directory)
    with pytest.raises(ProviderError):
        store.commit()
    reader = scene.open()
    with pytest.raises(ProviderError):
        reader.store(newest)
    found = events(logging.log())
    refused = [e for e in found if e["event"] == "storage_error"]
    assert [e["method"] for e in refused] == ["write_changelog", "open"]
    assert {e["error"] for e in refused} == {"STORAGE_UNAVAILABLE"}
    assert all(e["reason"] for e in refused)
    assert "secret value" not in logging.log()
    for provider in (writer, reader):
        provider.close()


def test_what_cannot_be_collected(logging: Logging, tmp_path: Path) -> None:
    """The sweep does not know what the other partition's snapshot names."""
    scene = written_scene(logging.harness, tmp_path)
    other = scene.directory.parent / "1"
    other.mkdir()
    (other / "1.manifest").write_bytes(b"damaged")
    provider = scene.open()
    provider.store(max(scene.states)).abort()
    provider.cleanup()
    provider.close()
    (failed,) = [e for e in events(logging.log()) if e["event"] == "collection_failed"]
    assert (failed["error"], failed["version"]) == ("MANIFEST_DAMAGED", str(max(scene.states)))
    assert "state/0/1/1.manifest" in failed["reason"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Harness]:
    """A JVM in which no other test's stores have memory."""
    started = Harness(tmp_path, conf=_LOG)
    yield started
    started.stop()


def test_a_store_that_gives_memory_back(alone: Harness, tmp_path: Path) -> None:
    """A neighbour takes memory while the store has three quarters of the budget."""

    def filled(name: str, memory_bytes: int) -> tuple[Provider, Store]:
        provider = open_provider(
            alone,
            tmp_path / name,
            schema=Schema("k string, n bigint", "v string"),
            operator="dedupe",
            conf={"millpond.memory.budget": "1m"},
        )
        store, rows = provider.store(0), 0
        while store.metrics()["memory_bytes"] < memory_bytes:
            store.put_many([(["k", rows + i], ["x" * 150]) for i in range(100)])
            rows += 100
        return provider, store

    provider, store = filled("large", 750_000)
    store.commit()
    neighbour, busy = filled("small", 500_000)
    provider.store(1).abort()
    (shrunk,) = [e for e in events(alone.log_path.read_text()) if e["event"] == "memory_shrunk"]
    assert int(shrunk["bytes"]) > 100_000 and shrunk["version"] == "1"
    busy.abort()
    for each in (provider, neighbour):
        each.close()


def test_a_snapshot_that_a_spill_would_prevent_and_that_fails(
    alone: Harness, tmp_path: Path
) -> None:
    """The batch goes on: a spill mixes its rows into the disk tier, so no snapshot is made."""
    provider = open_provider(
        alone,
        tmp_path / "query",
        schema=Schema("k string, n bigint", "v string"),
        operator="dedupe",
        conf={"millpond.memory.budget": "1m", "minDeltasForSnapshot": 1},
    )
    store = provider.store(0)
    store.put(["k", 0], ["x"])
    store.commit()
    alone.arm("snapshot.checkpoint", kind="IO", last=1_000_000)
    store = provider.store(1)
    for part in range(30):
        store.put_many([(["k", 1000 * part + i], ["x" * 150]) for i in range(1000)])
    assert store.commit().version == 2
    assert alone.disarm() == 1
    found = events(alone.log_path.read_text())
    assert [e for e in found if e["event"] == "spilled"]
    (failed,) = [e for e in found if e["event"] == "snapshot_failed"]
    assert (failed["version"], failed["snapshot_version"]) == ("1", "0")
    assert failed["error"] == "java.io.IOException"
    assert alone.report()["metrics"]["snapshot_failures_total"] == 1
    provider.close()


# ---- a query on a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.deep
@pytest.mark.parametrize("structured", [False, True])
def test_the_night_of_a_query(cluster: Cluster, tmp_path: Path, structured: bool) -> None:
    """All that goes wrong and well with one query on a cluster is in the executors' logs."""
    conf = {
        "spark.sql.shuffle.partitions": "4",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.log.structuredLogging.enabled": str(structured).lower(),
        "spark.executorEnv.MILLPOND_LOG": "",
        "spark.sql.streaming.minBatchesToRetain": "2",
        STATE + "maintenanceInterval": "300ms",
        STATE + "minDeltasForSnapshot": "2",
        STATE + "millpond.memory.budget": "1m",
        STATE + "millpond.gc.graceMs": "1000",
        STATE + "millpond.gc.intervalMs": "0",
    }
    with Application(cluster, tmp_path / "app", conf) as app:
        query = app.call("start", name="counts", query="rate", format=1, keys=60000, rows=20000)

        def logged() -> list[Line]:
            logs = "\n".join(app.executor_logs().values())
            return structured_events(logs) if structured else events(logs)

        def wait_for(*names: str) -> None:
            wanted = set(names)
            wait_until(
                lambda: wanted <= {e["event"] for e in logged()},
                seconds=WAIT_S,
                what=f"{wanted} in the log",
            )

        wait_for("agent_started", "restore_done", "snapshot_made", "flushed", "spilled")
        if not structured:
            wait_for("files_deleted")  # the agent's
            victim = cluster.executors()[0]
            os.kill(victim.agent, signal.SIGKILL)
            wait_for("agent_lost")
            (lost,) = [e for e in logged() if e["event"] == "agent_lost"]
            assert lost["agent_pid"] == str(victim.agent) and lost["error"] == "AGENT_LOST"
            wait_until(
                lambda: any(e.get("starts") == "2" for e in logged()),
                seconds=WAIT_S,
                what="the next agent",
            )
            # Directories lie where the next manifests must go: snapshots fail, commits do not.
            for partition in range(4):
                for version in range(1000):
                    path = app.home / "checkpoints/counts/state/0" / str(partition)
                    if not (path / f"{version}.manifest").exists():
                        (path / f"{version}.manifest" / "in-the-way").mkdir(parents=True)
            wait_for("snapshot_failed")
            assert all(e["error"] for e in logged() if e["event"] == "snapshot_failed")
            assert app.call("failed", name="counts") is None
        runs = {e["run_id"] for e in logged() if "run_id" in e}
        assert runs == {app.call("run", name="counts")} != {query}
        assert {e["operator"] for e in logged() if "operator" in e} == {"0"}
        assert {e["partition"] for e in logged() if "partition" in e} == {"0", "1", "2", "3"}
        assert not [text for text in app.executor_logs().values() if SECRET in text]
        app.call("stop", name="counts")


def structured_events(log: str) -> list[Line]:
    """Return the events of Spark's structured log: each is the `context` of a line of JSON."""
    found = []
    for text in log.splitlines():
        if not text.startswith("{"):
            continue
        said = json.loads(text)
        if "event" in said.get("context", {}):
            name = said["context"]["event"]
            info = EVENTS[name]
            declared = {"event", *(STORE_FIELDS if info.store else ()), *info.fields}
            fields = {k: v for k, v in said["context"].items() if k in declared}
            assert fields.keys() == declared, text
            assert said["msg"].startswith(f"event={name}") and said["level"] == info.level
            found.append(fields)
    return found
