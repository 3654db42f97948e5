"""Puts on S3 that begin while their file grows: what is sent when, and every way to end one."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.processes import wait_until
from millpond.errors import NotFoundError, UnavailableError
from millpond.storage.growing import GrowingPut, begin_growing, drop_unfinished
from millpond.storage.memory import MemoryStorage
from millpond.storage.s3 import S3Storage
from millpond.storage.s3_client import S3Client
from millpond.storage.s3_growing import S3GrowingPut
from millpond.storage.split import SplitStorage
from tests.s3_server import Fault, Request, S3Server

PART = 1000  # S3's least is 5 MiB; moto was told otherwise
LEAST = 3000  # bytes of a file that is sent before it is complete
KEY = "state/0/0/1_0123456789abcdef.changelog"
_prefixes = itertools.count()


@pytest.fixture
def s3(server: S3Server, client: S3Client) -> S3Storage:
    server.counts.clear()
    sizes = {"multipart_bytes": LEAST, "part_bytes": PART}
    return server.storage(client.bucket, f"growing/{next(_prefixes)}", client=client, **sizes)


class Growing:
    """A file that grows, beside its put."""

    def __init__(self, server: S3Server, s3: S3Storage, path: Path, fixed_from: int = 100) -> None:
        self.server, self.s3, self.path = server, s3, path
        path.write_bytes(b"\0" * fixed_from)
        put = begin_growing(s3, KEY, str(path), fixed_from)
        assert put is not None
        self.put: GrowingPut = put

    def grow(self, size_bytes: int) -> None:
        with self.path.open("ab") as file:
            file.write(os.urandom(size_bytes - file.tell()))
        self.put.grown(size_bytes)

    def complete(self) -> bytes:
        """Write the header: what only now is known."""
        with self.path.open("r+b") as file:
            file.write(b"the header")
        return self.path.read_bytes()

    def at_rest(self) -> None:
        """Wait until nothing is on its way."""
        assert isinstance(self.put, S3GrowingPut)
        futures = self.put._futures
        wait_until(
            lambda: all(future.done() for future in futures), seconds=30, what="all parts to end"
        )

    def sent(self, **counts: int) -> None:
        """Wait until the server has had so many requests, and check that it had no others."""
        wait_until(lambda: dict(self.server.counts) == counts, seconds=30, what=f"{counts}")

    def send_four(self) -> None:
        """Wait until the four parts behind the first are sent."""
        self.grow(5 * PART)
        self.sent(CREATE=1, PART=4)


@pytest.fixture
def growing(server: S3Server, s3: S3Storage, tmp_path: Path) -> Growing:
    return Growing(server, s3, tmp_path / "file")


def unfinished(s3: S3Storage) -> list[str]:
    """Return the keys of the uploads that have begun and not ended."""
    uploads = s3._client.call("ListMultipartUploads", "").get("Uploads", ())
    return [upload["Key"] for upload in uploads if upload["Key"].startswith(s3._root)]


class Gate:
    """Holds the requests of one kind until they are let through. Then they meet the fault."""

    def __init__(self, operation: str, fault: Fault | None = None, first: int = 1) -> None:
        self.operation, self.fault, self.first = operation, fault, first
        self.waits, self.open = threading.Event(), threading.Event()
        self._seen = itertools.count(1)

    def __call__(self, request: Request) -> Fault | None:
        if request.operation != self.operation or next(self._seen) < self.first:
            return None
        self.waits.set()
        assert self.open.wait(30)
        return self.fault


def always(operation: str, fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.operation == operation else None


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as e:
            results.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_a_small_file_is_not_sent(server: S3Server, growing: Growing) -> None:
    growing.grow(LEAST)
    assert not growing.put.finish()
    assert not server.counts


def test_parts_are_sent_as_they_are_complete(
    server: S3Server, s3: S3Storage, growing: Growing
) -> None:
    growing.grow(LEAST + 500)
    growing.sent(CREATE=1, PART=2)  # the second and the third
    growing.put.grown(2 * PART)  # an old message changes nothing
    growing.grow(6 * PART)
    growing.sent(CREATE=1, PART=5)
    growing.grow(7 * PART + 10)
    growing.sent(CREATE=1, PART=6)
    with pytest.raises(NotFoundError):
        s3.stat(KEY)
    body = growing.complete()
    server.counts.clear()
    assert growing.put.finish()
    assert dict(server.counts) == {"PART": 2, "COMPLETE": 1}, "the first part, and the last"
    assert s3.read(KEY) == body
    assert unfinished(s3) == []
    s3.get_to_file(KEY, f"{growing.path}-back")
    assert Path(f"{growing.path}-back").read_bytes() == body


def test_the_object_has_the_name_of_its_put(s3: S3Storage, growing: Growing) -> None:
    """So a commit whose answer got lost finds out. Of the bytes only the parts have check sums."""
    growing.grow(5 * PART)
    growing.complete()
    with growing.server.faults(always("COMPLETE", Fault(500, "InternalError", applied=True))):
        assert growing.put.finish()
    metadata = s3._requests.head(s3._key(KEY))["Metadata"]
    assert list(metadata) == ["millpond-put"]


def test_what_may_change_is_not_sent(server: S3Server, s3: S3Storage, tmp_path: Path) -> None:
    growing = Growing(server, s3, tmp_path / "file", fixed_from=2 * PART + 1)
    growing.grow(6 * PART)
    growing.sent(CREATE=1, PART=3)  # the fourth to the sixth
    with growing.path.open("r+b") as file:
        file.write(b"h" * (2 * PART + 1))
    assert growing.put.finish()
    assert s3.read(KEY) == growing.path.read_bytes()


def test_a_copy_of_the_object_passes_through_this_machine(
    server: S3Server, s3: S3Storage, growing: Growing
) -> None:
    """A copy by the server needs the sum of all bytes, which nobody knew when the put began."""
    growing.grow(5 * PART)
    assert growing.put.finish()
    assert s3.copy_from(s3, KEY, "copy") is None


# ---- the end comes while parts are on their way


def test_the_commit_waits_for_parts_in_flight_and_sends_those_that_wait(
    server: S3Server, s3: S3Storage, growing: Growing
) -> None:
    gate = Gate("PART")
    with server.faults(gate):
        growing.grow(30 * PART)
        assert gate.waits.wait(30)
        body = growing.complete()
        thread, results = in_thread(growing.put.finish)
        gate.open.set()
        thread.join()
    assert results == [True]
    assert server.counts["PART"] == 30, "each part once"
    assert s3.read(KEY) == body


def test_an_abort_waits_for_parts_in_flight_before_it_drops_them(
    server: S3Server, s3: S3Storage, growing: Growing
) -> None:
    """A part that came after the abort would stay for good. The caller does not wait."""
    gate = Gate("PART")
    with server.faults(gate):
        growing.grow(30 * PART)
        assert gate.waits.wait(30)
        growing.put.abandon()
        assert server.counts["ABORT"] == 0
        gate.open.set()
        wait_until(lambda: server.counts["ABORT"] == 1, seconds=30, what="the end")
    assert server.counts["PART"] <= 4, "what waited was not sent"
    wait_until(lambda: unfinished(s3) == [], seconds=30, what="the end")
    growing.grow(40 * PART)
    assert not growing.put.finish()
    growing.put.abandon()
    assert server.counts["CREATE"] == server.counts["ABORT"] == 1


def test_an_abort_before_anything_was_sent(server: S3Server, growing: Growing) -> None:
    growing.grow(LEAST)
    growing.put.abandon()
    assert not growing.put.finish()
    assert not server.counts


def test_an_abort_after_the_commit_does_nothing(
    server: S3Server, s3: S3Storage, growing: Growing
) -> None:
    growing.grow(5 * PART)
    body = growing.complete()
    assert growing.put.finish()
    growing.put.abandon()
    assert not growing.put.finish()
    assert s3.read(KEY) == body and server.counts["ABORT"] == 0


# ---- what goes wrong


@pytest.mark.parametrize("operation", ["CREATE", "PART"])
@pytest.mark.parametrize("fault", [Fault(), Fault(503, "SlowDown"), Fault(403, "AccessDenied")])
def test_a_failure_in_the_batch_stops_the_sending(
    server: S3Server, s3: S3Storage, growing: Growing, operation: str, fault: Fault
) -> None:
    gate = Gate(operation, fault)
    with server.faults(gate):
        gate.open.set()
        growing.grow(4 * PART)
        growing.at_rest()
        made = dict(server.counts)
        growing.grow(8 * PART)
    assert dict(server.counts) == made, "one attempt, and nothing more"
    body = growing.complete()
    finished = growing.put.finish()
    assert finished == (operation == "PART"), "the commit sends what is missing, or all"
    if finished:
        assert s3.read(KEY) == body
    assert unfinished(s3) == []


@pytest.mark.parametrize("fault", [Fault(), Fault(503, "SlowDown"), Fault(500, applied=True)])
@pytest.mark.parametrize("operation", ["PART", "COMPLETE"])
def test_the_end_is_repeated(
    server: S3Server, s3: S3Storage, growing: Growing, operation: str, fault: Fault
) -> None:
    growing.send_four()
    body = growing.complete()
    once = iter([fault])
    with server.faults(lambda r: next(once, None) if r.operation == operation else None):
        assert growing.put.finish()
    assert s3.read(KEY) == body


@pytest.mark.parametrize("when", ["before the parts", "before the end"])
def test_an_upload_that_somebody_removed(
    server: S3Server, s3: S3Storage, growing: Growing, when: str
) -> None:
    growing.send_four()
    growing.complete()
    # moto has no such answer.
    gone = always("COMPLETE" if when == "before the end" else "PART", Fault(404, "NoSuchUpload"))
    with server.faults(gone):
        assert not growing.put.finish(), "the caller puts the whole file"
    with pytest.raises(NotFoundError):
        s3.stat(KEY)
    assert unfinished(s3) == []


@pytest.mark.parametrize("operation", ["PART", "COMPLETE"])
def test_a_server_that_refuses_the_end(
    server: S3Server, s3: S3Storage, growing: Growing, operation: str
) -> None:
    """Perhaps it wants parts of other lengths: the caller puts the whole file."""
    growing.send_four()
    with server.faults(always(operation, Fault(400, "EntityTooSmall"))):
        assert not growing.put.finish()
    assert unfinished(s3) == []


@pytest.mark.parametrize("operation", ["PART", "COMPLETE"])
def test_a_server_that_is_gone_at_the_end(
    server: S3Server, s3: S3Storage, growing: Growing, operation: str
) -> None:
    growing.send_four()
    with server.faults(always(operation, Fault())), pytest.raises(UnavailableError):
        growing.put.finish()
    assert unfinished(s3) == []
    with pytest.raises(NotFoundError):
        s3.stat(KEY)


def test_a_file_that_is_gone(server: S3Server, s3: S3Storage, growing: Growing) -> None:
    growing.send_four()
    growing.path.unlink()
    growing.put.grown(9 * PART)
    assert not growing.put.finish()
    assert unfinished(s3) == []


# ---- what nobody finished


def test_uploads_that_nobody_finished_go(server: S3Server, s3: S3Storage, growing: Growing) -> None:
    growing.send_four()
    for number in range(3):
        key = s3._key(f"state/1/0/{number}.sst")
        s3._client.call("CreateMultipartUpload", key, Key=key)
    now_ms = server.uploads_began_ms
    split = SplitStorage(MemoryStorage(), s3)
    assert drop_unfinished(split, "state/0/", now_ms - 3_600_000) == 0
    assert len(unfinished(s3)) == 4
    s3.usage.take()
    assert drop_unfinished(split, "state/1/", now_ms + 3_600_000) == 3
    used: dict[str, Any] = s3.usage.take()
    assert used == {"list_requests": 1, "delete_requests": 3}
    assert unfinished(s3) == [s3._key(KEY)]
    assert drop_unfinished(split, "state/", now_ms + 3_600_000) == 1


def test_other_storages_take_only_files_that_are_complete() -> None:
    assert begin_growing(MemoryStorage(), KEY, "/x", 0) is None
    assert drop_unfinished(MemoryStorage(), "", 0) == 0
