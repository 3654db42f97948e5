"""On S3 the changelog of a large batch is sent while the batch runs, and the commit sends the rest.

However the batch ends, the bucket has the whole changelog or nothing of it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.growing import PARTS, ROWS, Scene
from integration.harness import Harness, Numbered, ProviderError, millponds_own, module_harness
from integration.processes import agents_below, alive, wait_until
from tests.s3_server import Fault, Request, S3Server, s3_server

pytestmark = [pytest.mark.spark, millponds_own]

harness = module_harness


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def scene(server: S3Server, harness: Harness, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(server, harness, tmp_path / "checkpoint")
    yield made
    made.provider.close()


def test_the_commit_sends_what_is_left(scene: Scene, server: S3Server) -> None:
    store = scene.batch()
    scene.sent()
    assert len(scene.keys()) == 1, "nobody sees it before the commit"
    done = store.commit()
    assert server.counts["PART"] == 7, "each once: the first, the last and perhaps one more"
    assert server.counts["CREATE"] == server.counts["COMPLETE"] == 1
    assert server.counts["PUT"] == 0
    scene.all_end()
    scene.check(done.id)
    used = store.metrics()["custom"]
    assert used["millpondStoragePutRequests"] >= PARTS + 4


def test_a_batch_that_is_taken_back(scene: Scene, server: S3Server) -> None:
    store = scene.batch()
    scene.sent(1)
    store.abort()
    scene.all_end()
    assert server.counts["COMPLETE"] == 0 and len(scene.keys()) == 1
    done = scene.batch().commit()
    scene.all_end()
    scene.check(done.id)


@pytest.mark.deep
def test_two_attempts_of_one_version(scene: Scene) -> None:
    """As Spark's speculation makes them. Each has an object of its own."""
    slow = scene.batch()
    scene.sent()
    other = scene.open(scene.harness)
    quick = other.store(1, scene.first.id)
    quick.put_numbered(Numbered(100, "quick", 20))
    won = quick.commit()
    lost = slow.commit()
    assert won.id != lost.id and len(scene.keys()) == 3
    scene.all_end()
    scene.check(lost.id)
    store = other.store(2, won.id)
    store.check_numbered([Numbered(100, "quick", 20)])
    store.abort()
    other.close()


def test_a_message_that_waited_until_the_commit(scene: Scene, server: S3Server) -> None:
    """Messages of all stores go out one by one. The commit sends the file: nobody else begins to.

    The first message of a run waits for the owner of the state. Behind it wait one of the store
    that commits, and another one of the first, which shows that all before it were sent.
    """
    rival = scene.open(scene.harness)
    waits, go_on = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.path.endswith("/owner.json"):
            waits.set()
            assert go_on.wait(60)
        elif request.operation == "COMPLETE":
            before = scene.parts()
            go_on.set()
            scene.sent(before + PARTS)

    with server.faults(hold):
        first = rival.store(1, scene.first.id)
        first.put_numbered(Numbered(20_000, "rival", 400))
        assert waits.wait(60)
        store = scene.batch()
        first.put_numbered(Numbered(80_000, "rival", 400, first=20_000))
        done = store.commit()
    first.abort()
    scene.all_end()
    begun = [request.path for request in server.log if request.operation == "CREATE"]
    assert len([path for path in begun if str(done.id) in path]) == 1
    scene.check(done.id)
    rival.close()


@pytest.mark.parametrize("operation", quick_first(["CREATE", "PART"]))
def test_a_server_that_fails_in_the_batch(scene: Scene, server: S3Server, operation: str) -> None:
    with server.faults(lambda r: Fault(403, "AccessDenied") if r.operation == operation else None):
        store = scene.batch()
        wait_until(lambda: server.counts[operation] >= 1, seconds=60, what="the refusal")
    done = store.commit()
    scene.all_end()
    scene.check(done.id)


@pytest.mark.deep
def test_a_server_that_does_not_answer_does_not_hold_the_batch(
    scene: Scene, server: S3Server
) -> None:
    """All rows are written while the first request still waits for its answer."""
    asked, answered = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.operation == "CREATE":
            asked.set()
            assert answered.wait(60)

    with server.faults(hold):
        store = scene.batch()
        assert asked.wait(60)
        assert server.counts["PART"] == 0
        answered.set()
        done = store.commit()
    scene.all_end()
    scene.check(done.id)


def test_an_agent_that_dies_in_the_batch(scene: Scene, harness: Harness) -> None:
    """The next one sends the whole file. What the first one sent goes with a collection."""
    store = scene.batch()
    scene.sent()
    (agent,) = agents_below(harness.pid)
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not alive(agent), seconds=30, what="the agent's end")
    done = store.commit()
    scene.check(done.id)
    assert scene.unfinished() == 1
    # moto says of each upload that it began in 2010.
    scene.provider.store(2, done.id).abort()
    scene.provider.cleanup()
    scene.all_end()
    scene.check(done.id)


@pytest.mark.deep
def test_kill_9_in_the_batch(scene: Scene, server: S3Server, tmp_path: Path) -> None:
    doomed = Harness(tmp_path)
    provider = scene.open(doomed)
    provider.store(1, scene.first.id).put_numbered(ROWS)
    scene.sent()
    doomed.kill()
    assert scene.unfinished() == 1 and len(scene.keys()) == 1
    done = scene.batch().commit()
    assert scene.drop_unfinished(server.uploads_began_ms) == 0
    assert scene.drop_unfinished(server.uploads_began_ms + 1) == 1
    scene.check(done.id)


def test_a_commit_that_fails_is_made_again(scene: Scene, server: S3Server) -> None:
    store = scene.batch()
    scene.sent()
    refusal = Fault(403, "AccessDenied")
    with (
        server.faults(lambda r: refusal if r.method in ("PUT", "POST") else None),
        pytest.raises(ProviderError, match="STORAGE_DENIED"),
    ):
        store.commit()
    done = store.commit()
    scene.all_end()
    scene.check(done.id)
