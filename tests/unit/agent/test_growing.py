"""The agent sends a changelog while its batch runs, and the commit finds little left."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.processes import wait_until
from millpond.agent.collecting import UNFINISHED_MS
from millpond.agent.service import AgentService
from millpond.format import layout
from millpond.format.changelog import ChangelogReader
from millpond.model.ids import VersionId, new_id
from millpond.storage import Storage, StorageSettings
from millpond.storage.s3 import S3Storage
from tests.agent_driver import CallError, Provider
from tests.s3_server import Fault, Request, S3Server, s3_server

PART, LEAST = 1000, 3000


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


class Agents:
    """Agents of one query whose state is on S3."""

    def __init__(self, server: S3Server, tmp_path: Path) -> None:
        self.server, self.tmp_path = server, tmp_path
        self.s3: S3Storage = server.storage(
            server.bucket(), "q", multipart_bytes=LEAST, part_bytes=PART
        )
        self.now_ms = server.uploads_began_ms
        self.number = 0

    def service(self) -> AgentService:
        def opened(uri: str, settings: StorageSettings) -> Storage:
            return self.s3

        return AgentService(opener=opened, clock_ms=lambda: self.now_ms)

    def provider(self, service: AgentService | None = None, **more: Any) -> Provider:
        self.number += 1
        provider = Provider(
            service or self.service(),
            self.tmp_path / "checkpoint",
            self.tmp_path / f"local-{self.number}",
            storage=self.s3,
            **({"spark_format": 2} | more),
        )
        provider.open(0)
        return provider

    def unfinished(self) -> int:
        return len(self.s3._client.call("ListMultipartUploads", "").get("Uploads", ()))

    def all_sent(self) -> None:
        """Wait until all that was to be sent before a commit is sent."""
        ahead = self.s3._ahead
        # A thread comes to the barrier when it has done what was asked of it before.
        barrier = threading.Barrier(ahead._workers)
        ahead.run([partial(barrier.wait, 30)] * ahead._workers)

    def changelog(self, provider: Provider, version: VersionId) -> bytes:
        return self.s3.read(layout.changelog_key(provider.store, version, 2))


@pytest.fixture
def agents(server: S3Server, tmp_path: Path) -> Agents:
    made = Agents(server, tmp_path)
    server.counts.clear()
    return made


def stage(provider: Provider, id: str, size_bytes: int = 10 * PART) -> str:
    """Write a staged file whose last bytes nobody looks at."""
    path = provider.stage(1, id)
    with open(path, "ab") as file:
        file.write(os.urandom(size_bytes - file.tell()))
    return path


def grew(provider: Provider, id: str, staged: str, **more: Any) -> bool:
    request = {"version": 1, "id": id, "staged": staged, "fixed_from": 0}
    request["bytes"] = os.path.getsize(staged)
    sends: bool = provider.call("changelog_grew", **request | more)["sends"]
    return sends


def publish(provider: Provider, id: str, staged: str) -> None:
    answer = provider.call("publish_changelog", version=1, id=id, staged=staged)
    assert answer["path"] == staged


def test_the_commit_sends_the_first_part_and_the_last(agents: Agents, server: S3Server) -> None:
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id, 10 * PART + 5)
    assert grew(provider, id, staged)
    wait_until(lambda: server.counts["PART"] == 9, seconds=30, what="the parts")
    server.counts.clear()
    publish(provider, id, staged)
    assert dict(server.counts) == {"PART": 2, "COMPLETE": 1}
    provider.call("changelog_ended", staged=staged)
    data = agents.changelog(provider, VersionId(1, id))
    assert data == Path(staged).read_bytes()
    with open(staged, "rb") as file:
        assert ChangelogReader(file).header.id == id
    assert agents.unfinished() == 0


def test_a_batch_that_is_taken_back(agents: Agents, server: S3Server) -> None:
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id)
    assert grew(provider, id, staged)
    wait_until(lambda: server.counts["PART"] == 9, seconds=30, what="the parts")
    os.unlink(staged)
    provider.call("changelog_ended", staged=staged)
    wait_until(lambda: server.counts["ABORT"] == 1, seconds=30, what="the end")
    wait_until(lambda: agents.unfinished() == 0, seconds=30, what="the end")


def test_two_attempts_of_one_version(agents: Agents, server: S3Server) -> None:
    """Each has an upload and an object of its own, whatever the order of their ends."""
    slow, quick = agents.provider(), agents.provider()
    ids = [new_id(), new_id()]
    files = [stage(slow, ids[0]), stage(quick, ids[1])]
    assert grew(slow, ids[0], files[0]) and grew(quick, ids[1], files[1])
    wait_until(lambda: server.counts["PART"] == 18, seconds=30, what="the parts")
    publish(quick, ids[1], files[1])
    assert agents.changelog(quick, VersionId(1, ids[1])) == Path(files[1]).read_bytes()
    publish(slow, ids[0], files[0])
    for provider, id, staged in zip((slow, quick), ids, files, strict=True):
        assert agents.changelog(provider, VersionId(1, id)) == Path(staged).read_bytes()
    # The speculative task was killed instead.
    killed = stage(slow, third := new_id())
    assert grew(slow, third, killed)
    slow.call("changelog_ended", staged=killed)
    wait_until(lambda: agents.unfinished() == 0, seconds=30, what="the end")
    assert agents.changelog(quick, VersionId(1, ids[1])) == Path(files[1]).read_bytes()


def test_an_agent_that_died_meanwhile(agents: Agents, server: S3Server) -> None:
    """The next one puts the whole file. A collection drops what the first one had sent."""
    first, id = agents.provider(), new_id()
    staged = stage(first, id)
    assert grew(first, id, staged)
    wait_until(lambda: server.counts["PART"] == 9, seconds=30, what="the parts")
    first.service = agents.service()
    publish(first, id, staged)
    assert agents.changelog(first, VersionId(1, id)) == Path(staged).read_bytes()
    assert agents.unfinished() == 1
    for hours, left in ((0, 1), (UNFINISHED_MS // 3_600_000 + 1, 0)):
        agents.now_ms += hours * 3_600_000
        first.call("collect", anchor_version=1, anchor_id=id, force=True)
        assert agents.unfinished() == left
    server.counts.clear()
    first.call("collect", anchor_version=1, anchor_id=id, force=True)
    assert "uploads" not in {request.query for request in server.log[-server.counts.total() :]}, (
        "a collection looks for them once an hour"
    )


def test_a_bucket_that_does_not_tell_of_its_uploads(agents: Agents, server: S3Server) -> None:
    provider, id = agents.provider(), new_id()
    publish(provider, id, stage(provider, id))

    def refuse(request: Request) -> Fault | None:
        return Fault(403, "AccessDenied") if request.query.startswith("uploads") else None

    with server.faults(refuse):
        answer = provider.call("collect", anchor_version=1, anchor_id=id, force=True)
    assert answer["deleted_files"] == 0


def test_a_message_that_comes_after_the_commit(agents: Agents, server: S3Server) -> None:
    """The shim ends each batch, so what the message has begun ends, too."""
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id)
    publish(provider, id, staged)
    assert grew(provider, id, staged)
    provider.call("changelog_ended", staged=staged)
    wait_until(lambda: agents.unfinished() == 0, seconds=30, what="the end")
    assert agents.changelog(provider, VersionId(1, id)) == Path(staged).read_bytes()


def test_a_message_that_comes_while_the_commit_sends(agents: Agents, server: S3Server) -> None:
    """It was under way when the commit took the upload, and began another one for nothing."""
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id)
    assert grew(provider, id, staged)
    wait_until(lambda: server.counts["PART"] == 9, seconds=30, what="the parts")
    publish(provider, id, staged)
    assert grew(provider, id, staged)
    agents.all_sent()
    assert server.counts["CREATE"] == 1
    provider.call("changelog_ended", staged=staged)
    assert not provider.service._growing._puts, "the agent remembers a batch that has ended"


def test_a_message_that_comes_after_the_end_of_the_store(agents: Agents, server: S3Server) -> None:
    """Nobody would close the store again."""
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id)
    provider.call("close")
    assert grew(provider, id, staged)
    provider.call("changelog_ended", staged=staged)
    assert not provider.service._contexts._stores
    assert server.counts["CREATE"] == 0


def test_a_failure_in_the_batch_does_not_fail_the_commit(agents: Agents, server: S3Server) -> None:
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id)
    with server.faults(lambda r: Fault(403, "AccessDenied") if r.operation == "CREATE" else None):
        assert grew(provider, id, staged)
        wait_until(lambda: server.counts["CREATE"] >= 1, seconds=30, what="the begin")
    publish(provider, id, staged)
    assert agents.changelog(provider, VersionId(1, id)) == Path(staged).read_bytes()
    assert agents.unfinished() == 0


def test_a_failed_commit_is_made_again(agents: Agents, server: S3Server) -> None:
    provider, id = agents.provider(), new_id()
    staged = stage(provider, id)
    assert grew(provider, id, staged)
    wait_until(lambda: server.counts["PART"] == 9, seconds=30, what="the parts")
    with (
        server.faults(lambda r: Fault() if r.operation == "COMPLETE" else None),
        pytest.raises(CallError, match="STORAGE_UNAVAILABLE"),
    ):
        publish(provider, id, staged)
    publish(provider, id, staged)
    assert agents.changelog(provider, VersionId(1, id)) == Path(staged).read_bytes()
    assert agents.unfinished() == 0


def test_format_1_sends_at_the_commit(agents: Agents, server: S3Server) -> None:
    """Attempts share a name there, and S3 may prefer the upload that began later."""
    provider, id = agents.provider(spark_format=1), new_id()
    assert not grew(provider, id, stage(provider, id))
    assert server.counts["CREATE"] == 0


def test_a_file_system_sends_nothing(tmp_path: Path) -> None:
    provider = Provider(AgentService(), tmp_path / "c", tmp_path / "local", spark_format=2)
    provider.open(0)
    id = new_id()
    assert not grew(provider, id, provider.stage(1, id))


def test_a_file_that_is_none_of_the_store(agents: Agents, tmp_path: Path) -> None:
    provider, id = agents.provider(), new_id()
    other = tmp_path / f"{layout.STAGING_PREFIX}{uuid.uuid4().hex}"
    other.write_bytes(b"x")
    with pytest.raises(CallError, match="staging file"):
        grew(provider, id, str(other))
