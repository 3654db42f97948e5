"""What the agent tells a query before its first task if the state cannot go where it should."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond import savepoint
from millpond.agent.service import AgentService
from millpond.format import layout, spark_names
from millpond.storage import open_storage
from millpond.storage.s3 import S3Storage
from tests.agent_driver import CallError, Provider, call
from tests.checkpoints import CheckpointBuilder
from tests.s3_server import HADOOP, Fault, Request, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def check(server: S3Server, checkpoint: Path, uri: str, **more: Any) -> dict[str, Any]:
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text('{"id":"the-query"}')
    options = {
        "storage.uri": uri,
        "storage.s3.endpoint": server.endpoint,
        "storage.deadlineMs": 1000,
        **more,
    }
    return call(
        AgentService(),
        "check_start",
        root=f"file:{checkpoint}/state",
        options=options,
        hadoop=HADOOP,
    )


def test_a_look_a_write_a_deletion(server: S3Server, tmp_path: Path) -> None:
    """A check looks, writes and deletes once each.

    The roots have trailing slashes, spaces, percent signs and other letters. The check leaves no
    file, and decides nothing.
    """
    bucket = server.bucket()
    for prefix in ("", "/", "/a b%20/ü€/", "/a+b&c=d?e#f"):
        server.counts.clear()
        checkpoint = tmp_path / f"checkpoint{len(prefix)} %41 ü"
        answer = check(server, checkpoint, f"s3a://{bucket}{prefix}")
        assert answer == {"state": f"s3a://{bucket}{prefix}".rstrip("/") + "/the-query"}
        assert dict(server.counts) == {"GET": 2, "PUT": 1, "DELETE": 1}, (
            "one of the two GETs asks for the owner"
        )
        assert [path.name for path in checkpoint.iterdir()] == ["metadata"]
    assert list(server.storage(bucket).list("")) == []


def test_without_another_place_the_checkpoint_itself_is_tried(
    server: S3Server, tmp_path: Path
) -> None:
    root = f"s3://{server.bucket()}/the checkpoint %/state"
    options = {"storage.s3.endpoint": server.endpoint}
    answer = call(AgentService(), "check_start", root=root, options=options, hadoop=HADOOP)
    assert answer == {"state": root.removesuffix("/state")}
    (tmp_path / "ckpt").mkdir()
    assert call(AgentService(), "check_start", root=f"file:{tmp_path}/ckpt/state", options={}) == {
        "state": f"file:{tmp_path}/ckpt"
    }


@pytest.mark.parametrize("before", ["commits/", "offsets/", "metadata"])
def test_a_fork_that_was_killed_is_no_checkpoint(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """State is there, and Spark's logs are not. A query would begin at batch 0 above that state."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    built = CheckpointBuilder(tmp_path / "checkpoint", spark_format=2).build()
    new = f"s3://{server.bucket()}/new"
    if (child := os.fork()) == 0:  # pragma: no cover - the child does not report
        put = S3Storage.put_bytes

        def killed(self: S3Storage, key: str, data: bytes, *, if_absent: bool = False) -> None:
            if key.startswith(before):
                os.kill(os.getpid(), signal.SIGKILL)
            put(self, key, data, if_absent=if_absent)

        monkeypatch.setattr(S3Storage, "put_bytes", killed)
        try:
            savepoint.fork(built.root, new)
        finally:
            os._exit(3)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    storage = open_storage(new)
    left = {info.key for info in storage.list("")}
    assert any(key.startswith("state/") for key in left) and layout.CLAIM_KEY in left
    # Spark does this before it plans a query.
    storage.put_bytes(spark_names.QUERY_METADATA_KEY, b'{"id":"another"}')
    with pytest.raises(CallError) as refused:
        call(AgentService(), "check_start", root=f"{new}/state", options={})
    assert refused.value.kind == "CHECKPOINT_UNFINISHED"
    assert new in refused.value.message and "delete all that is below" in refused.value.hint
    files = {info.key for info in storage.list("")}
    with pytest.raises(CallError) as refused:  # the driver asks before that
        call(AgentService(), "rescale", checkpoint=new, partitions=4, options={}, file_sink="none")
    assert refused.value.kind == "CHECKPOINT_UNFINISHED"
    assert {info.key for info in storage.list("")} == files


DENIED = Fault(403, "AccessDenied")


@pytest.mark.parametrize(
    ("operation", "fault", "kind", "named", "hint"),
    [
        ("GET", DENIED, "STORAGE_DENIED", "GetObject", "s3:ListBucket"),
        ("PUT", DENIED, "STORAGE_DENIED", "PutObject", "s3:PutObject"),
        ("DELETE", DENIED, "STORAGE_DENIED", "DeleteObjects", "s3:DeleteObject"),
        (
            "GET",
            Fault(301, "PermanentRedirect"),
            "STORAGE_MISCONFIGURED",
            "GetObject",
            "storage.s3.region",
        ),
        (
            "GET",
            Fault(200, html=True),
            "STORAGE_MISCONFIGURED",
            "no S3 server",
            "storage.s3.endpoint",
        ),
        ("GET", Fault(404, html=True), "STORAGE_MISCONFIGURED", "GetObject", "storage.s3.endpoint"),
        (
            "GET",
            Fault(403, "InvalidAccessKeyId"),
            "STORAGE_DENIED",
            "GetObject",
            "fs.s3a.access.key",
        ),
        ("PUT", Fault(507, "QuotaExceeded"), "STORAGE_FULL", "PutObject", ""),
        (
            "GET",
            Fault(400, "ExpiredToken"),
            "STORAGE_DENIED",
            "GetObject: ExpiredToken",
            "fs.s3a.session.token",
        ),
        (
            "GET",
            Fault(
                400,
                "AuthorizationHeaderMalformed",
                headers=(("x-amz-bucket-region", "eu-west-1"),),
            ),
            "STORAGE_MISCONFIGURED",
            "the bucket is in eu-west-1",
            "storage.s3.region to eu-west-1",
        ),
    ],
)
def test_what_is_missing_is_named(
    server: S3Server, tmp_path: Path, operation: str, fault: Fault, kind: str, named: str, hint: str
) -> None:
    uri = f"s3://{server.bucket()}/states"

    def choose(request: Request) -> Fault | None:
        return fault if request.operation == operation else None

    with server.faults(choose), pytest.raises(CallError) as caught:
        check(server, tmp_path / "ckpt", uri)
    assert caught.value.kind == kind
    assert named in caught.value.message and uri.removeprefix("s3://") in caught.value.message
    assert hint in caught.value.hint
    assert [path.name for path in (tmp_path / "ckpt").iterdir()] == ["metadata"]
    assert (
        check(server, tmp_path / "ckpt", f"{uri}-elsewhere")["state"]
        == f"{uri}-elsewhere/the-query"
    )


def test_what_the_server_need_not_say(server: S3Server, tmp_path: Path) -> None:
    for uri, kind in (
        ("s3://no-such-bucket/x", "STORAGE_BUCKET_MISSING"),
        (f"s3://{server.bucket()}/{'long/' * 200}", "INVALID_ARGUMENT"),
        ("s3://Not_A_Bucket!/x", "INVALID_ARGUMENT"),
        ("relative/path", "INVALID_ARGUMENT"),
        ("s3:///x", "INVALID_ARGUMENT"),
    ):
        with pytest.raises(CallError) as caught:
            check(server, tmp_path / "ckpt", uri)
        assert caught.value.kind == kind, uri
    with pytest.raises(CallError) as caught:
        check(server, tmp_path / "ckpt", "s3://b/x", **{"storage.s3.endpoint": "127.0.0.1:9"})
    assert caught.value.kind == "STORAGE_MISCONFIGURED"
    with pytest.raises(CallError) as caught:
        check(
            server, tmp_path / "ckpt", "s3://b/x", **{"storage.s3.endpoint": "http://127.0.0.1:9"}
        )
    assert caught.value.kind == "STORAGE_UNAVAILABLE" and "GetObject" in caught.value.message


def test_a_place_that_was_settled_stays(server: S3Server, tmp_path: Path) -> None:
    uri = f"s3://{server.bucket()}/states"
    check(server, tmp_path / "ckpt", uri)
    store = Provider(AgentService(), tmp_path / "ckpt", tmp_path / "local")
    store.options, store.hadoop = (
        {"storage.uri": uri, "storage.s3.endpoint": server.endpoint},
        HADOOP,
    )
    store.open(0)
    with pytest.raises(CallError) as caught:
        check(server, tmp_path / "ckpt", f"{uri}-elsewhere")
    assert caught.value.kind == "STORAGE_MOVED"
    assert check(server, tmp_path / "ckpt", uri)["state"] == f"{uri}/the-query"
