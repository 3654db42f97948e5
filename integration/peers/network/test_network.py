"""A host is cut off for a minute, from the storage or from the rest of the cluster. No row is lost
or doubled, and the query goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.cluster import Application
from integration.demo.verify import Verified, verify
from integration.gate import Gate
from integration.peers.network.conftest import OnHosts, Store
from integration.test_cluster import Query, two_executors
from tests.s3_server import environment

pytestmark = [pytest.mark.spark, pytest.mark.peer]

CUT_S = 60


class Remote(Query):
    """A query whose state is on the server, where this process does not reach it."""

    wait_s = 240  # Spark starts executors anew, and TCP tries again with growing pauses

    def verified(self) -> Verified:
        """Run the command on the server's host."""
        cluster = self.app.cluster
        assert isinstance(cluster, OnHosts)
        return verify(self.checkpoint, self.app.work, cluster.tag, cluster.lan.on("store"))


@pytest.fixture
def new_query(
    app: Application, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Query]]:
    """Return a function that makes queries. At the end drop them."""
    for name, value in environment(store.endpoint).items():
        monkeypatch.setenv(name, value)
    made: list[Query] = []

    def make(name: str, **arguments: Any) -> Query:
        made.append(Remote(app, tmp_path, name, **arguments))
        return made[-1]

    yield make
    for query in made:
        app.call("drop", name=query.name, seconds=Remote.wait_s)


@pytest.mark.parametrize("during", ["commit", "snapshot"])
@pytest.mark.parametrize("network", ["storage", "cluster"])
@pytest.mark.parametrize("format_", [1, 2])
def test_an_executor_is_cut_off_for_a_minute(
    app: Application,
    cluster: OnHosts,
    gate: Gate,
    new_query: Callable[..., Query],
    during: str,
    network: str,
    format_: int,
) -> None:
    query = new_query(f"{network}-{during}-{format_}", format_=format_)
    query.settle()
    two_executors(query)
    held = gate.hold(query.name, 1, snapshot=during == "snapshot")
    query.feed()
    if during == "snapshot":
        query.settle()
        query.feed()
    caught = held.wait()
    host = cluster.host_of(caught["jvm"])
    (executor,) = [e.id for e in cluster.executors() if e.pid == caught["jvm"]]
    lost = f"Lost executor {executor} on {cluster.lan.address('cluster', host)}"
    cluster.lan.cut(network, host)
    held.release()
    threading.Event().wait(CUT_S)  # the fault itself lasts that long
    # Spark gives the executor up only if it does not hear from it. Without the storage, the agent
    # tries again for a minute, and then Spark tries the task again.
    assert (lost in app.log_path.read_text()) == (network == "cluster")
    cluster.lan.mend(network, host)
    query.settle()
    query.feed(2)
    query.settle()
    two_executors(query)
    query.check()
