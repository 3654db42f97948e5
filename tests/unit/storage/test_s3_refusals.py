"""Storage on S3 that is refused: what a server says, roots, credentials."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest

from millpond.errors import (
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.storage import open_storage
from millpond.storage.s3 import S3Storage
from millpond.storage.s3_client import S3Client
from millpond.storage.settings import S3Credentials, Secret
from tests.s3_server import HADOOP, SLOW_DOWN, Fault, S3Server, first

_prefixes = itertools.count()


@pytest.fixture
def s3(server: S3Server, bucket: str, client: S3Client) -> S3Storage:
    return server.storage(bucket, f"refused % of äö/{next(_prefixes)}", client=client)


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (404, "NoSuchBucket", ErrorKind.STORAGE_BUCKET_MISSING, "Create the bucket"),
        (403, "AccessDenied", ErrorKind.STORAGE_DENIED, "s3:PutObject on arn:aws:s3:::"),
        (403, "SignatureDoesNotMatch", ErrorKind.STORAGE_DENIED, "fs.s3a.secret.key"),
        (400, "ExpiredToken", ErrorKind.STORAGE_DENIED, "fs.s3a.session.token"),
        (403, "ExpiredTokenException", ErrorKind.STORAGE_DENIED, "hand over a new one"),
        (403, "InvalidTokenId", ErrorKind.STORAGE_DENIED, "hand over a new one"),
        (403, "InvalidAccessKeyId", ErrorKind.STORAGE_DENIED, "session has expired"),
        (400, "InvalidRegion", ErrorKind.STORAGE_MISCONFIGURED, "storage.s3.region"),
        (403, "RequestTimeTooSkewed", ErrorKind.STORAGE_UNAVAILABLE, "clock"),
        (
            400,
            "AuthorizationHeaderMalformed",
            ErrorKind.STORAGE_MISCONFIGURED,
            "storage.s3.region to eu-west-1",
        ),
        (403, "QuotaExceeded", ErrorKind.STORAGE_FULL, "Free space"),
        (507, "XMinioStorageFull", ErrorKind.STORAGE_FULL, "Free space"),
        (400, "KeyTooLongError", ErrorKind.INVALID_ARGUMENT, "Shorten"),
        (501, "NotImplemented", ErrorKind.STORAGE_UNSUPPORTED, "millpond storage check"),
        (400, "SomethingNew", ErrorKind.STORAGE_UNAVAILABLE, "service"),
    ],
)
def test_refusals(
    server: S3Server, s3: S3Storage, status: int, code: str, kind: ErrorKind, hint: str
) -> None:
    region = (("x-amz-bucket-region", "eu-west-1"),)
    with (
        server.faults(first(10**9, Fault(status, code, headers=region))),
        pytest.raises(MillpondError) as caught,
    ):
        s3.put_bytes("a/b", b"x")
    assert caught.value.kind is kind and hint in caught.value.hint
    assert "/a/b: PutObject: " + code in str(caught.value), (
        "the error names the call that failed, and its object"
    )
    assert server.endpoint in str(caught.value), "it names who said so"


@pytest.mark.parametrize("status", [400, 301])
def test_a_refusal_without_a_reason(server: S3Server, s3: S3Storage, status: int) -> None:
    """An answer to HEAD has no body: a token that has expired looks like another region."""
    region = (("x-amz-bucket-region", "eu-west-1"),)
    with (
        server.faults(first(10**9, Fault(status, headers=region))),
        pytest.raises(MillpondError) as caught,
    ):
        s3.stat("a")
    assert "eu-west-1" in str(caught.value) and "storage.s3.region" in caught.value.hint
    if status == 400:
        assert caught.value.kind is ErrorKind.STORAGE_DENIED
        assert "fs.s3a.session.token" in caught.value.hint
    else:
        assert caught.value.kind is ErrorKind.STORAGE_MISCONFIGURED


def test_a_refusal_to_read_may_hide_that_nothing_is_there(server: S3Server, s3: S3Storage) -> None:
    with server.faults(first(10**9, Fault(403, "AccessDenied"))):
        for call in (lambda: s3.read("a"), lambda: s3.stat("a")):
            with pytest.raises(UnavailableError) as caught:
                call()
            assert caught.value.kind is ErrorKind.STORAGE_DENIED
            assert "s3:GetObject" in caught.value.hint and "s3:ListBucket" in caught.value.hint
        with pytest.raises(UnavailableError) as caught:
            list(s3.list(""))
        assert "s3:ListBucket" in caught.value.hint


def test_some_keys_of_a_deletion_are_refused(
    server: S3Server, s3: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"Errors": [{"Key": "x/a", "Code": "AccessDenied", "Message": "no"}]}
    monkeypatch.setattr(s3._client, "call", lambda *_, **__: answer)
    with pytest.raises(UnavailableError, match="x/a") as caught:
        s3.delete(["a"])
    assert caught.value.kind is ErrorKind.STORAGE_DENIED and "s3:DeleteObject" in caught.value.hint


def test_a_listing_that_goes_on_without_saying_where(
    s3: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left out would count as absent, and a collection could delete what is needed."""
    monkeypatch.setattr(s3._client, "call", lambda *_, **__: {"IsTruncated": True})
    with pytest.raises(UnsupportedError, match="NextContinuationToken") as caught:
        list(s3.list("a/"))
    assert caught.value.kind is ErrorKind.STORAGE_UNSUPPORTED
    assert "millpond storage check" in caught.value.hint


def test_no_bucket(server: S3Server) -> None:
    storage = server.storage("there-is-no-such-bucket")
    for call in (
        lambda: storage.read("a"),
        lambda: storage.put_bytes("a", b""),
        lambda: list(storage.list("")),
    ):
        with pytest.raises(InvalidInputError) as caught:
            call()
        assert caught.value.kind is ErrorKind.STORAGE_BUCKET_MISSING


def test_the_endpoint_is_no_s3(server: S3Server, s3: S3Storage) -> None:
    with server.faults(first(10**9, Fault(404, html=True))):
        for call in (
            lambda: s3.read("a"),
            lambda: list(s3.list("")),
            lambda: s3.put_bytes("a", b""),
        ):
            with pytest.raises(MillpondError) as caught:
                call()
            assert (
                caught.value.kind is ErrorKind.STORAGE_MISCONFIGURED
                and "storage.s3.endpoint" in caught.value.hint
            )


def test_nobody_answers(server: S3Server, bucket: str) -> None:
    storage = server.storage(bucket, endpoint="http://127.0.0.1:1")
    with pytest.raises(UnavailableError) as caught:
        storage.read("a")
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE and "127.0.0.1:1" in str(caught.value)
    with pytest.raises(InvalidInputError) as wrong:
        server.storage(bucket, endpoint="no endpoint").read("a")
    assert wrong.value.kind is ErrorKind.STORAGE_MISCONFIGURED


def test_a_key_too_long(server: S3Server, bucket: str, client: S3Client) -> None:
    with pytest.raises(InvalidInputError, match="would be longer") as caught:
        server.storage(bucket, "ä" * 400, client=client)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_a_key_too_long_below_a_root(s3: S3Storage) -> None:
    for call in (lambda: s3.put_bytes("ä" * 600, b""), lambda: s3.stat("ä" * 600)):
        with pytest.raises(InvalidInputError, match="S3 allows 1024"):
            call()


@pytest.mark.parametrize(
    ("root", "prefix"),
    [
        ("s3://{}/a b/ü%20é/", "a b/ü%20é/"),
        ("s3a://{}//x//./y///", "x/y/"),
        ("S3A://{}/a+b?c#d", "a+b?c#d/"),
        ("s3://{}", ""),
        ("s3://{}/", ""),
    ],
)
def test_roots(server: S3Server, client: S3Client, root: str, prefix: str) -> None:
    bucket = server.bucket()
    storage = open_storage(root.format(bucket), server.settings())
    storage.put_bytes("state/0/ä b%20", b"x")
    assert storage.read("state/0/ä b%20") == b"x"
    assert [info.key for info in storage.list("state/")] == ["state/0/ä b%20"]
    listed = S3Client(bucket, server.settings().s3).call("ListObjectsV2", "")
    assert [entry["Key"] for entry in listed["Contents"]] == [prefix + "state/0/ä b%20"]


@pytest.mark.parametrize("root", ["s3:///x", "s3:x", "s3://b/../c", "s3a://" + "b" * 300 + "/x"])
def test_bad_roots(server: S3Server, root: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_storage(root, server.settings()).read("a")
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


# ---- credentials


def test_secrets_stay_secret(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    keys = S3Credentials(
        access_key=Secret("the access key"),
        secret_key=Secret("the secret key"),
        session_token=Secret("the token"),
    )
    storage = server.storage(bucket, "secret", credentials=keys)
    storage.put_bytes("a", b"x")
    assert server.log[-1].headers["x-amz-security-token"] == "the token"
    with server.faults(first(2, SLOW_DOWN)):
        storage.read("a")
    with (
        server.faults(first(10**9, Fault(403, "AccessDenied"))),
        pytest.raises(UnavailableError) as caught,
    ):
        storage.read("a")
    shown = (
        f"{caplog.text} {caught.value!r} {caught.value.hint} {storage!r} {keys!r}"
        f" {storage.__dict__}"
    )
    assert "trying again" in shown
    assert (
        "the secret key" not in shown and "the token" not in shown and "the access key" not in shown
    )


def test_a_role_is_assumed(server: S3Server, bucket: str) -> None:
    keys = S3Credentials(
        access_key=Secret(HADOOP["fs.s3a.access.key"]),
        secret_key=Secret(HADOOP["fs.s3a.secret.key"]),
        role_arn="arn:aws:iam::123456789012:role/state",
        sts_endpoint=server.endpoint,
    )
    storage = server.storage(bucket, "role", credentials=keys)
    storage.put_bytes("a", b"x")
    assert server.log[-1].headers["x-amz-security-token"], "temporary credentials have a token"
    assert "Credential=ASIA" in server.log[-1].headers["authorization"]


def test_anonymous(server: S3Server, bucket: str) -> None:
    storage = server.storage(bucket, "anonymous", credentials=S3Credentials(anonymous=True))
    with pytest.raises(NotFoundError):
        storage.stat("a")
    assert "authorization" not in server.log[-1].headers


def test_no_credentials(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(UnavailableError) as caught:
        server.storage(bucket, credentials=None).read("a")
    assert (
        caught.value.kind is ErrorKind.STORAGE_DENIED and "fs.s3a.access.key" in caught.value.hint
    )
    monkeypatch.setenv("AWS_PROFILE", "of-nobody")
    with pytest.raises(UnavailableError, match="of-nobody"):
        server.storage(bucket, credentials=None).read("a")


def test_the_package_is_missing(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(MillpondError) as caught:
        server.storage(bucket).read("a")
    assert (
        caught.value.kind is ErrorKind.STORAGE_PACKAGE_MISSING
        and "millpond[s3]" in caught.value.hint
    )
