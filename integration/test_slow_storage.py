"""A slow storage. A restore and a snapshot take longer than a call to the agent may take."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.gate import Gate
from integration.harness import (
    Harness,
    Provider,
    ProviderError,
    Schema,
    Store,
    millponds_own,
    module_harness,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.processes import agents_below, below, wait_until
from integration.store_model import write_spark_metadata
from tests.s3_server import HADOOP, Request, S3Server, s3_server

pytestmark = [pytest.mark.spark, millponds_own]

CALL_TIMEOUT_S = 1
SNAPSHOTS = 3

# The first store of a JVM sets the time of a call to the agent. Here that is short.
harness = module_harness


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


class Pond:
    """Two stores of a query. A test can make requests for their SSTs wait."""

    def __init__(self, harness: Harness, server: S3Server, checkpoint: Path) -> None:
        self.harness, self.server = harness, server
        self.root = write_spark_metadata(
            checkpoint, operator_name="stateStoreSave", partitions=2, provider_class=MILLPOND
        )
        (checkpoint / "metadata").write_text('{"id":"the-query"}')
        self.bucket = server.bucket()
        self.held: str | None = None  # operation on an SST that waits
        self.waiting, self.release = threading.Event(), threading.Event()
        self.asked: Counter[str] = Counter()  # operation and key of an SST
        self._lock = threading.Lock()
        self._passing = 0

    def hold(self, operation: str, *, passing: int = 0) -> None:
        """Let requests for SSTs of partition 0 wait from now on, except the first `passing`."""
        self.waiting.clear()
        self.release.clear()
        self.held, self._passing = operation, passing

    def gate(self, request: Request) -> None:
        """Count a request for an SST. Wait if the test holds it."""
        if not request.path.endswith(".sst") or "/0/0/" not in request.path:
            return
        with self._lock:
            self.asked[f"{request.operation} {request.path}"] += 1
            passes = request.operation != self.held or self._passing > 0
            self._passing -= 1
        if not passes:
            self.waiting.set()
            assert self.release.wait(60)

    def provider(self, partition: int, call_timeout_s: int = CALL_TIMEOUT_S) -> Provider:
        conf = short_conf(
            {
                "minDeltasForSnapshot": 1,
                "millpond.storage.uri": f"s3://{self.bucket}/states",
                "millpond.storage.s3.endpoint": self.server.endpoint,
                "millpond.storage.cache.size": "0",
                "millpond.agent.callTimeoutMs": call_timeout_s * 1000,
            }
        ) | {"spark.sql.shuffle.partitions": "2"}
        return self.harness.open(
            self.root,
            provider_class=MILLPOND,
            schema=Schema(),
            conf=conf,
            hadoop=HADOOP,
            partition=partition,
        )

    def agent(self) -> int:
        (pid,) = agents_below(self.harness.pid)
        return pid

    def work_until_it_is_late(self, quick: Provider, version: int) -> int:
        """Commit in the other store, for four times the longest call. Return its version."""
        begun, store = time.monotonic(), None
        while time.monotonic() < begun + 4 * CALL_TIMEOUT_S:
            store = quick.store(version)
            store.put(["quick", version], ["x", version])
            version = store.commit().version
        assert self.waiting.is_set() and not self.release.is_set()
        return version


@pytest.fixture
def pond(harness: Harness, server: S3Server, tmp_path: Path) -> Iterator[Pond]:
    made = Pond(harness, server, tmp_path / "checkpoint")
    with server.faults(made.gate):
        yield made
        made.release.set()


def filled(pond: Pond) -> tuple[Provider, dict[str, int]]:
    """Return a provider whose store has an SST for each snapshot, and the store's row counts."""
    provider = pond.provider(0)
    for version in range(SNAPSHOTS):
        store = provider.store(version)
        store.put_many([([f"{version}", i], ["x" * 100, i]) for i in range(50)])
        store.commit()
        provider.store(version + 1).abort()
        provider.snapshot()
    store = provider.store(SNAPSHOTS)
    store.put(["last", 0], ["", 0])
    store.commit()
    return provider, {str(version): 50 for version in range(SNAPSHOTS)} | {"last": 1}


def rows(store: Store) -> Counter[str]:
    return Counter(key[0] for key, _ in store.scan())


# In short: `tests/unit/agent/test_pending.py`.
@pytest.mark.deep
def test_slow_calls_hold_up_no_other_store(pond: Pond) -> None:
    slow, expected = filled(pond)
    quick = pond.provider(1)
    agent, version = pond.agent(), 0
    store = slow.store(SNAPSHOTS + 1)
    store.put(["more", 0], ["", 0])
    store.commit()
    slow.store(SNAPSHOTS + 2).abort()
    pond.hold("PUT")
    snapshot = pond.harness.begin("snapshot", p=slow.name)
    assert pond.waiting.wait(60)
    version = pond.work_until_it_is_late(quick, version)
    pond.release.set()
    pond.harness.join(snapshot)
    store = slow.store(SNAPSHOTS + 2)
    store.put(["more", 1], ["", 0])
    store.commit()
    slow.close()
    assert max(count for key, count in pond.asked.items() if key.startswith("PUT")) == 1

    pond.hold("GET")
    slow, store = pond.provider(0), Store(slow, "slow")
    restore = pond.harness.begin("get_store", p=slow.name, s=store.name, version=SNAPSHOTS + 3)
    assert pond.waiting.wait(60)
    pond.work_until_it_is_late(quick, version)
    pond.release.set()
    pond.harness.join(restore)
    assert rows(store) == expected | {"more": 2}
    store.abort()
    assert pond.agent() == agent, "the shim killed the agent for a slow call"
    assert max(count for key, count in pond.asked.items() if key.startswith("GET")) == 1
    slow.close()
    quick.close()


def test_a_session_with_more_patience_than_the_one_that_started_the_agent(pond: Pond) -> None:
    """The first one's connections wait for one second. The agent must say "not done yet" sooner."""
    first, expected = filled(pond)
    first.close()
    pond.hold("GET")
    agent = pond.agent()
    patient = pond.provider(0, call_timeout_s=60)
    store = Store(patient, "patient")
    restore = pond.harness.begin("get_store", p=patient.name, s=store.name, version=SNAPSHOTS + 1)
    assert pond.waiting.wait(60)
    quick = pond.provider(1)
    pond.work_until_it_is_late(quick, 0)
    pond.release.set()
    pond.harness.join(restore)
    assert rows(store) == expected
    store.abort()
    assert pond.agent() == agent, "the shim killed the agent for a call that was at work"
    patient.close()
    quick.close()


def test_an_error_of_the_connection_has_no_word_of_the_request(pond: Pond) -> None:
    """A request has the keys of the storage. Spark writes an error into logs and pages."""
    quick = pond.provider(1)
    quick.store(0).abort()
    agent = pond.agent()
    os.kill(agent, signal.SIGSTOP)
    threads = Path(f"/proc/{agent}/task")
    wait_until(
        lambda: all(") T " in (t / "stat").read_text() for t in threads.iterdir()),
        seconds=60,
        what="the agent to stand still",
    )
    told = pond.harness.call("ask_once", request='{"of": "a-secret-of-the-user"}')
    os.kill(agent, signal.SIGCONT)
    assert "SocketTimeoutException" in told
    assert "a-secret-of-the-user" not in told
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not pond.harness.call("agent_runs"), seconds=60, what="the agent's end")
    assert "Py4JNetworkException" in pond.harness.call("ask_once", request="{}")
    assert "a-secret-of-the-user" not in pond.harness.log_path.read_text()
    quick.close()


def test_a_task_that_is_killed_while_it_waits_asks_no_more(pond: Pond) -> None:
    slow, expected = filled(pond)
    slow.close()
    pond.hold("GET")
    slow, store = pond.provider(0), Store(slow, "killed task")
    agent = pond.agent()
    restore = pond.harness.begin(
        "get_store", p=slow.name, s=store.name, version=SNAPSHOTS + 1, task="killed"
    )
    assert pond.waiting.wait(60)
    pond.harness.kill_task("killed")
    with pytest.raises(ProviderError, match="TaskKilledException"):
        pond.harness.join(restore)
    assert not pond.release.is_set()
    pond.harness.end_task("killed")
    pond.release.set()
    store = slow.store(SNAPSHOTS + 1)
    assert rows(store) == expected
    store.abort()
    slow.close()
    assert pond.agent() == agent


def test_a_restore_whose_agent_is_killed_goes_on_with_the_files_it_has(pond: Pond) -> None:
    slow, expected = filled(pond)
    slow.close()
    pond.hold("GET", passing=SNAPSHOTS - 1)
    slow, store = pond.provider(0), Store(slow, "killed")
    agent = pond.agent()
    restore = pond.harness.begin("get_store", p=slow.name, s=store.name, version=SNAPSHOTS + 1)
    assert pond.waiting.wait(60)
    folder = pond.harness.local_dir
    wait_until(
        lambda: (
            len(list(folder.glob("millpond-*/0-0-default-*/g*/db-*.unfinished/*.sst")))
            == SNAPSHOTS - 1
        ),
        seconds=60,
        what="the other files",
    )
    os.kill(agent, signal.SIGKILL)
    pond.release.set()
    pond.harness.join(restore)
    assert rows(store) == expected
    store.abort()
    assert pond.agent() != agent
    asked = [count for key, count in pond.asked.items() if key.startswith("GET")]
    assert sorted(asked) == [1] * (SNAPSHOTS - 1) + [2]
    slow.close()


@pytest.mark.deep
def test_an_agent_that_is_late_is_asked_again_and_not_killed(tmp_path: Path) -> None:
    """A commit on a file system is stuck in its thread. Other stores commit.

    In the end the stuck commit succeeds too.
    """
    gate = Gate(tmp_path / "gate")
    conf = {"spark.millpond.harness.log": "WARN"}
    harness = Harness(tmp_path, conf=conf)
    root = write_spark_metadata(
        tmp_path / "checkpoint",
        operator_name="stateStoreSave",
        partitions=2,
        provider_class=MILLPOND,
    )
    options = short_conf(
        {"millpond.agent.callTimeoutMs": 4000, "millpond.agent.python": str(gate.interpreter)}
    ) | {"spark.sql.shuffle.partitions": "2"}
    stuck, quick = (
        harness.open(root, provider_class=MILLPOND, schema=Schema(), conf=options, partition=i)
        for i in (0, 1)
    )
    store = stuck.store(0)
    store.put(["a", 0], ["x", 0])
    held = gate.hold("checkpoint", 0)
    commit = harness.begin("commit", s=store.name)
    agent = held.wait()["agent"]
    other = quick.store(0)
    other.put(["b", 0], ["y", 0])
    assert other.commit().version == 1
    wait_until(
        lambda: "event=agent_slow " in harness.log_path.read_text(), seconds=60, what="the time-out"
    )
    held.release()
    assert harness.join(commit)["version"] == 1
    assert rows(stuck.store(1)) == {"a": 1}
    assert [p.pid for p in below(harness.pid) if "held_agent" in p.command] == [agent]
    harness.stop()
