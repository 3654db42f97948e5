"""`millpond storage check`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.cli.main import main
from millpond.storage import open_storage
from tests.s3_server import HADOOP, Fault, S3Server, s3_server

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", HADOOP["fs.s3a.access.key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", HADOOP["fs.s3a.secret.key"])
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def check(server: S3Server, uri: str, *more: str) -> int:
    options = [f"storage.s3.endpoint={server.endpoint}", "storage.deadlineMs=1000"]
    return main(
        ["storage", "check", uri, *more, *(word for option in options for word in ("-o", option))]
    )


def test_a_bucket_that_serves(server: S3Server, capsys: Captured) -> None:
    bucket = server.bucket()
    storage = open_storage(f"s3://{bucket}", server.settings())
    storage.put_bytes("mine/x", b"stays")
    assert check(server, f"s3://{bucket}/mine/") == 0
    out = capsys.readouterr().out
    assert f"storage   s3://{bucket}/mine\n" in out and "failed" not in out
    passed, of = (int(word) for word in out.splitlines()[-1].split() if word.isdigit())
    assert passed == of > 30
    assert [info.key for info in storage.list("")] == ["mine/x"], (
        "the check removes what it wrote, and nothing else"
    )


def test_a_directory(tmp_path: Path, capsys: Captured) -> None:
    assert main(["storage", "check", str(tmp_path), "--quick", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [step["error"] for step in answer["steps"]] == [None] * 7 and answer[
        "skipped"
    ] == "left out by --quick"


@pytest.mark.parametrize("more", [[], ["--quick"]])
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_left_in_a_directory(
    tmp_path: Path, capsys: Captured, there: bool, more: list[str]
) -> None:
    (tmp_path / "mine").mkdir()
    place = tmp_path if there else tmp_path / "mistyped" / "below"
    assert main(["storage", "check", str(place), *more]) == 0, capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


@pytest.mark.deep
def test_a_server_that_ignores_conditions(
    server: S3Server, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{server.bucket()}"
    monkeypatch.setattr(server, "ignores_conditions", True)
    assert check(server, uri, "--quick") == 1
    _, err = capsys.readouterr()
    assert "STORAGE_UNSUPPORTED" in err and "storage.s3.conditionalPut to false" in err
    option = "storage.s3.conditionalPut=false"
    assert check(server, uri, "--quick", "-o", option) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("operation", "fault", "step", "kind", "hint"),
    [
        ("PUT", Fault(403, "AccessDenied"), "write", "STORAGE_DENIED", "s3:PutObject"),
        ("LIST", Fault(403, "AccessDenied"), "look", "STORAGE_DENIED", "s3:ListBucket"),
        ("GET", Fault(403, "AccessDenied"), "read", "STORAGE_DENIED", "s3:GetObject"),
        (
            "LIST",
            Fault(301, "PermanentRedirect"),
            "look",
            "STORAGE_MISCONFIGURED",
            "storage.s3.region",
        ),
        ("LIST", Fault(404, "", html=True), "look", "STORAGE_MISCONFIGURED", "storage.s3.endpoint"),
    ],
)
def test_what_is_missing_is_named(
    server: S3Server,
    capsys: Captured,
    operation: str,
    fault: Fault,
    step: str,
    kind: str,
    hint: str,
) -> None:
    uri = f"s3://{server.bucket()}/x"
    with server.faults(lambda request: fault if request.operation == operation else None):
        assert check(server, uri) == 1
    out, err = capsys.readouterr()
    assert (
        f"{step} " in out.splitlines()[-2]
        and "failed" in out.splitlines()[-2]
        and "not run" in out.splitlines()[-1]
    )
    assert kind in err and hint in err


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("s3://no-such-bucket-anywhere/x", "STORAGE_BUCKET_MISSING"),
        ("s3:///x", "INVALID_ARGUMENT"),
        ("s3://bucket/" + "x" * 900, "INVALID_ARGUMENT"),
        ("gs://bucket/x", "STORAGE_UNSUPPORTED"),
    ],
)
def test_bad_uris(server: S3Server, capsys: Captured, uri: str, kind: str) -> None:
    assert check(server, uri) in (1, 2)
    assert kind in capsys.readouterr().err


def test_bad_options(capsys: Captured) -> None:
    assert main(["storage", "check", "s3://b/x", "-o", "storage.s3.endpoint"]) == 2
    assert main(["storage", "check", "s3://b/x", "-o", "storage.s3.endpont=x"]) == 2
    assert "storage.s3.endpoint" in capsys.readouterr().err
