"""Storage on S3: the contract against a server over HTTP, and what only a network can do wrong."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import ssl
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    NotFoundError,
    UnavailableError,
)
from millpond.storage import Storage, s3_client
from millpond.storage.memory import MemoryStorage
from millpond.storage.paging import list_by_pages
from millpond.storage.s3 import S3Storage
from millpond.storage.s3_client import S3Client
from millpond.testing.storage_contract import StorageContract
from tests.s3_server import (
    ERROR,
    LOST,
    LOST_500,
    NO_BODY,
    RESET,
    SLOW_DOWN,
    Fault,
    Request,
    S3Server,
    first,
)

_prefixes = itertools.count()
Make = Callable[..., S3Storage]


@pytest.fixture
def make(server: S3Server, bucket: str, client: S3Client) -> Make:
    prefix = f"the checkpoint % of äö/{next(_prefixes)}"
    return lambda **changes: server.storage(bucket, prefix, client=client, **changes)


@pytest.fixture
def s3(make: Make) -> S3Storage:
    return make()


class TestS3Storage(StorageContract):
    @pytest.fixture
    def storage(self, s3: S3Storage) -> Storage:
        return s3


class TestS3StorageWithoutConditions(StorageContract):
    """A server without `If-None-Match`.

    Two writers that look at the same moment may both write. Then the last one wins, and knows it.
    """

    @pytest.fixture
    def storage(self, make: Make) -> Storage:
        return make(conditional_put=False)

    def test_put_if_absent_lets_one_of_many_win(self, storage: Storage) -> None:
        """Such a server cannot do that.

        It only promises that of several writers, one after the other, the first wins.
        """
        for i in range(3):
            with contextlib.suppress(ConflictError):
                storage.put_bytes("k/x", b"%d" % i, if_absent=True)
        assert storage.read("k/x") == b"0"


# ---- requests


def test_one_request_each(server: S3Server, s3: S3Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("PUT", lambda: s3.put_file("a/1.changelog", str(tmp_path / "file"))),
        ("PUT", lambda: s3.put_bytes("a/2", b"x", if_absent=True)),
        ("GET", lambda: s3.read("a/2")),
        ("GET", lambda: s3.read_range("a/2", 0, 100)),
        ("GET", lambda: s3.get_to_file("a/1.changelog", str(tmp_path / "back"))),
        ("HEAD", lambda: s3.stat("a/2")),
        ("LIST", lambda: list(s3.list("a/"))),
        ("DELETE", lambda: s3.delete(["a/1.changelog", "a/2", "a/3"])),
    ]
    for operation, call in calls:
        server.counts.clear()
        s3.usage.take()
        call()
        assert dict(server.counts) == {operation: 1}
        kind = {"HEAD": "get"}.get(operation, operation.lower())
        used = s3.usage.take()
        assert used.pop(f"{kind}_requests") == 1
        assert used in (
            {},
            {"sent_bytes": 4},
            {"sent_bytes": 1},
            {"received_bytes": 4},
            {"received_bytes": 1},
        )
        assert s3.usage.take() == {}


def test_requests_that_fail_are_counted(server: S3Server, s3: S3Storage) -> None:
    with server.faults(first(2, SLOW_DOWN)):
        s3.put_bytes("a/1", b"x")
    used = s3.usage.take()
    assert (used["put_requests"], used["failed_requests"]) == (3, 2)
    s3.put_bytes("a/2", b"x")
    assert "failed_requests" not in s3.usage.take()


def test_sums_encryption_and_payer_are_sent(server: S3Server, bucket: str) -> None:
    storage = server.storage(bucket, "kms", sse="aws:kms", kms_key_id="key-1", requester_pays=True)
    storage.put_bytes("a", b"data")
    headers = server.log[-1].headers
    assert headers["x-amz-checksum-crc32"] == "rfPzYw=="
    assert headers["x-amz-content-sha256"] == hashlib.sha256(b"data").hexdigest()
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert headers["x-amz-request-payer"] == "requester"
    assert storage.read("a") == b"data"
    assert server.log[-1].headers["x-amz-request-payer"] == "requester"


def test_a_listing_of_many_pages(s3: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    for i in range(8):
        s3.put_bytes(f"a/{i}", b"x")
    assert [info.key for info in s3.list("a/")] == [f"a/{i}" for i in range(8)]


def test_a_listing_by_pages_holds_one_page(
    server: S3Server, s3: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    for i in range(8):
        s3.put_bytes(f"a/{i}", b"x")
    server.counts.clear()
    listed = list_by_pages(s3, "a/")
    keys = [next(listed).key for _ in range(3)]
    assert server.counts["LIST"] == 1
    assert sorted([*keys, *(info.key for info in listed)]) == [f"a/{i}" for i in range(8)]
    assert server.counts["LIST"] == 3


def test_markers_of_directories_are_no_objects(s3: S3Storage, client: S3Client) -> None:
    s3.put_bytes("a/b", b"x")
    root = s3._root
    client.call("PutObject", root, Key=root, Body=b"")
    client.call("PutObject", f"{root}a/", Key=f"{root}a/", Body=b"")
    assert [info.key for info in s3.list("")] == ["a/b"]


# ---- large objects


@pytest.fixture
def large(make: Make) -> S3Storage:
    return make(multipart_bytes=100_000, part_bytes=40_000)


BODY = bytes(range(256)) * 2000  # 512,000 bytes


def test_large_objects_move_in_parts(server: S3Server, large: S3Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)
    server.counts.clear()
    large.put_file("sst/x.sst", str(tmp_path / "file"), if_absent=True)
    assert dict(server.counts) == {"HEAD": 1, "CREATE": 1, "PART": 13, "COMPLETE": 1}
    server.counts.clear()
    assert large.get_to_file("sst/x.sst", str(tmp_path / "back")) == zlib.crc32(
        (tmp_path / "back").read_bytes()
    )
    assert dict(server.counts) == {"GET": 1 + 11}
    assert (tmp_path / "back").read_bytes() == BODY == large.read("sst/x.sst")
    with pytest.raises(ConflictError):
        large.put_file("sst/x.sst", str(tmp_path / "file"), if_absent=True)
    large.put_file("sst/x.sst", str(tmp_path / "file"))
    assert [p.name for p in tmp_path.iterdir()] == ["file", "back"] or len(
        list(tmp_path.iterdir())
    ) == 2


@pytest.mark.parametrize(
    "fault", [RESET, ERROR, LOST, LOST_500, SLOW_DOWN, NO_BODY, replace(NO_BODY, applied=True)]
)
@pytest.mark.parametrize("operation", ["CREATE", "PART", "COMPLETE"])
def test_a_large_put_survives(
    server: S3Server, large: S3Storage, tmp_path: Path, operation: str, fault: Fault
) -> None:
    (tmp_path / "file").write_bytes(BODY)
    with server.faults(first(2, fault, operation)):
        large.put_file("x", str(tmp_path / "file"), if_absent=True)
    large.get_to_file("x", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == BODY


def test_a_large_put_that_fails_leaves_no_parts(
    server: S3Server, large: S3Storage, client: S3Client, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(BODY)
    with (
        server.faults(first(10**9, Fault(403, "AccessDenied"), "PART")),
        pytest.raises(UnavailableError) as caught,
    ):
        large.put_file("x", str(tmp_path / "file"))
    assert caught.value.kind is ErrorKind.STORAGE_DENIED and "s3:PutObject" in caught.value.hint
    uploads = client.call("ListMultipartUploads", "").get("Uploads", ())
    assert not [upload for upload in uploads if upload["Key"].startswith(large._root)]
    with pytest.raises(NotFoundError):
        large.stat("x")


@pytest.mark.parametrize("fault", [RESET, ERROR, Fault(cut=1), Fault(cut=30_000)])
def test_a_large_get_survives(
    server: S3Server, large: S3Storage, tmp_path: Path, fault: Fault
) -> None:
    large.put_bytes("x", BODY)
    with server.faults(lambda request: fault if request.number in (1, 3, 4, 7) else None):
        large.get_to_file("x", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == BODY


def test_an_object_replaced_while_it_is_fetched(
    server: S3Server, large: S3Storage, tmp_path: Path
) -> None:
    large.put_bytes("x", BODY)
    replaced = iter([True])

    def replace(request: Request) -> Fault | None:
        if request.operation == "GET" and request.number == 4 and next(replaced, False):
            large.put_bytes("x", BODY[::-1])
        return None

    with server.faults(replace):
        large.get_to_file("x", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == BODY[::-1]


# ---- what a network does


@pytest.mark.parametrize("fault", [RESET, ERROR, SLOW_DOWN, LOST, LOST_500])
def test_everything_is_repeated(
    server: S3Server, s3: S3Storage, tmp_path: Path, fault: Fault
) -> None:
    s3.put_bytes("old", b"old")
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: s3.put_bytes("a", b"data"), None),
        (lambda: s3.put_bytes("b", b"data", if_absent=True), None),
        (lambda: s3.read("old"), b"old"),
        (lambda: s3.read_range("old", 1, 1), b"l"),
        (lambda: s3.get_to_file("old", str(tmp_path / "back")), zlib.crc32(b"old")),
        (lambda: s3.stat("old").size_bytes, 3),
        (lambda: [i.key for i in s3.list("")], ["a", "b", "old"]),
        (lambda: s3.delete(["old"]), None),
    ]
    for call, expected in calls:
        with server.faults(first(3, fault)):
            assert call() == expected
    assert (tmp_path / "back").read_bytes() == b"old"
    assert [(i.key, i.size_bytes) for i in s3.list("")] == [("a", 4), ("b", 4)]


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_an_answer_that_does_not_come_in_time(
    server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """The client gives up before the server did what it was asked, or after that.

    It also gives up in the middle of a body.
    """
    monkeypatch.setattr(s3_client, "_READ_TIMEOUT_S", 0.1)
    s3 = server.storage(bucket, f"late {applied}")
    s3.put_bytes("old", b"old data")
    late = Fault(applied=applied, late_s=0.3)
    with server.faults(first(1, late, "PUT")):
        s3.put_bytes("new", b"data", if_absent=True)
    for fault in (late, Fault(cut=3, late_s=0.3)):
        with server.faults(first(1, fault, "GET")):
            assert s3.read("new") == b"data"
        with server.faults(first(1, fault, "GET")):
            s3.get_to_file("old", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"old data"
    with server.faults(first(1, late, "DELETE")):
        s3.delete(["old"])
    assert [info.key for info in s3.list("")] == ["new"]


def test_tls_that_breaks_in_the_middle_of_a_body(
    s3: S3Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib3 has an error of its own for that, which botocore hands on as it is."""
    s3.put_bytes("x", b"data")
    read, broken = http.client.HTTPResponse.read, 0

    def breaks(self: http.client.HTTPResponse, amount: int | None = None) -> bytes:
        nonlocal broken
        broken += 1
        if broken == 1:
            raise ssl.SSLEOFError("EOF occurred in violation of protocol")
        return read(self, amount)

    monkeypatch.setattr(http.client.HTTPResponse, "read", breaks)
    back = tmp_path / "back"
    calls: list[Callable[[], object]] = [
        lambda: s3.read("x"),
        lambda: s3.read_range("x", 0, 4),
        lambda: s3.get_to_file("x", str(back)) and back.read_bytes(),
    ]
    for call in calls:
        broken = 0
        assert call() == b"data" and broken > 1


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_put_whose_answers_are_all_lost(server: S3Server, s3: S3Storage, if_absent: bool) -> None:
    with server.faults(first(10**9, LOST, "PUT")):
        s3.put_bytes("a", b"data", if_absent=if_absent)
    assert s3.read("a") == b"data"


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_put_that_never_arrives(server: S3Server, s3: S3Storage, if_absent: bool) -> None:
    with server.faults(first(10**9, RESET, "PUT")), pytest.raises(UnavailableError) as caught:
        s3.put_bytes("a", b"data", if_absent=if_absent)
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE and "PutObject" in str(caught.value)
    assert list(s3.list("")) == []


def test_a_put_over_an_older_object_that_never_arrives(server: S3Server, s3: S3Storage) -> None:
    s3.put_bytes("a", b"data")
    with server.faults(first(10**9, RESET, "PUT")), pytest.raises(UnavailableError):
        s3.put_bytes("a", b"data")  # the same bytes are there, but this put did not write them


def test_nobody_can_tell(server: S3Server, s3: S3Storage) -> None:
    with server.faults(first(10**9, LOST)), pytest.raises(UnavailableError) as caught:
        s3.put_bytes("a", b"data")
    assert "PutObject" in str(caught.value), "the put failed, not the look"


def test_a_lost_answer_is_told_from_another_writer(server: S3Server, s3: S3Storage) -> None:
    def choose(request: Request) -> Fault | None:
        if request.operation == "PUT" and request.number == 1:
            s3.put_bytes("a", b"the other's")
            return RESET
        return None

    with server.faults(choose), pytest.raises(ConflictError):
        s3.put_bytes("a", b"mine", if_absent=True)
    assert s3.read("a") == b"the other's"


@pytest.mark.parametrize("fault", [RESET, LOST, LOST_500, Fault(503, "SlowDown")])
def test_a_copy_whose_answer_does_not_come(server: S3Server, s3: S3Storage, fault: Fault) -> None:
    s3.put_bytes("a", b"data")
    with server.faults(first(2, fault, "COPY")):
        assert s3.copy_from(s3, "a", "b") is not None
    assert s3.read("b") == b"data"


def test_a_copy_of_what_is_replaced_meanwhile(server: S3Server, s3: S3Storage) -> None:
    s3.put_bytes("a", b"data")

    def choose(request: Request) -> Fault | None:
        return Fault(412, "PreconditionFailed") if request.operation == "COPY" else None

    with server.faults(choose), pytest.raises(NotFoundError):
        s3.copy_from(s3, "a", "b")
    assert [info.key for info in s3.list("")] == ["a"]


def test_what_the_server_does_not_copy(server: S3Server, s3: S3Storage, bucket: str) -> None:
    """The server cannot copy from another server, or with other credentials.

    It does not copy an object without a check sum of Millpond's. Then the caller moves the bytes.
    """
    s3.put_bytes("a", b"data")
    other = server.storage(bucket, "", endpoint="http://elsewhere.invalid")
    assert other.copy_from(s3, "a", "b") is None and s3.copy_from(MemoryStorage(), "a", "b") is None
    s3._client.call("PutObject", "of another tool", Key=s3._key("c"), Body=b"data")
    assert s3.copy_from(s3, "c", "b") is None


def test_an_answer_that_says_nothing_is_none(server: S3Server, s3: S3Storage) -> None:
    """A listing would say that all files are gone, a put or a deletion that it was done."""
    calls: list[tuple[str, Callable[[], object], object]] = [
        ("PUT", lambda: s3.put_bytes("a", b"data"), None),
        ("PUT", lambda: s3.put_bytes("b", b"", if_absent=True), None),
        ("HEAD", lambda: s3.stat("a").size_bytes, 4),
        ("LIST", lambda: [info.key for info in s3.list("")], ["a", "b"]),
        ("DELETE", lambda: s3.delete(["a", "none"]), None),
    ]
    for operation, call, expected in calls:
        with server.faults(first(2, NO_BODY, operation)):
            assert call() == expected
        with server.faults(first(10**9, NO_BODY, operation)):
            with pytest.raises(UnavailableError, match=r"the answer has no \w+") as caught:
                call()
            assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
    assert [info.key for info in s3.list("")] == ["b"]


def test_bodies_are_checked(server: S3Server, s3: S3Storage, tmp_path: Path) -> None:
    s3.put_bytes("a.sst", b"0123456789")
    for fault in (Fault(cut=4), Fault(flip=True)):
        with server.faults(first(1, fault, "GET")):
            assert s3.read("a.sst") == b"0123456789"
        with server.faults(first(1, fault, "GET")):
            s3.get_to_file("a.sst", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"0123456789"
    (tmp_path / "back").unlink()
    with server.faults(first(10**9, Fault(flip=True), "GET")):
        for call in (
            lambda: s3.read("a.sst"),
            lambda: s3.get_to_file("a.sst", str(tmp_path / "back")),
        ):
            with pytest.raises(FormatError) as caught:
                call()
            assert caught.value.kind is ErrorKind.SST_DAMAGED
    assert list(tmp_path.iterdir()) == []


def test_an_empty_object(s3: S3Storage, tmp_path: Path) -> None:
    s3.put_bytes("a", b"")
    s3.get_to_file("a", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"" == s3.read_range("a", 0, 5)


@pytest.mark.parametrize("status", [501, 405])
def test_a_server_without_conditional_writes(server: S3Server, make: Make, status: int) -> None:
    s3 = make()

    def refuse(request: Request) -> Fault | None:
        return Fault(status, "NotImplemented") if "if-none-match" in request.headers else None

    with server.faults(refuse):
        s3.put_bytes("a", b"1", if_absent=True)
        with pytest.raises(ConflictError):
            s3.put_bytes("a", b"2", if_absent=True)
        with server.faults(
            lambda r: refuse(r) or (LOST if r.operation == "PUT" and r.number < 4 else None)
        ):
            s3.put_bytes("b", b"3", if_absent=True)
    assert (s3.read("a"), s3.read("b")) == (b"1", b"3")
