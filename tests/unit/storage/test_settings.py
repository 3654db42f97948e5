"""What options and Spark's `fs.s3a.*` make of the settings of S3."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from millpond.config import resolve
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.storage import settings
from millpond.storage.parts import MAX_PARTS, plan_parts
from millpond.storage.s3_client import S3Client
from millpond.storage.settings import (
    HandedOver,
    S3Credentials,
    S3Settings,
    Secret,
    storage_settings,
)

KEYS = {"access.key": "A", "secret.key": "S"}


def s3(options: dict[str, object] | None = None, **hadoop: str) -> S3Settings:
    return storage_settings(
        resolve(options or {}), {f"fs.s3a.{k}": v for k, v in hadoop.items()}
    ).s3


def test_defaults() -> None:
    assert storage_settings().s3 == S3Settings() == s3()
    assert storage_settings().uri is None and storage_settings().deadline_ms == 60_000


@pytest.mark.parametrize(
    ("options", "hadoop", "endpoint", "path_style"),
    [
        (
            {},
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false"},
            "http://minio:9000",
            True,
        ),
        ({}, {"endpoint": "minio:9000"}, "https://minio:9000", True),
        ({}, {"endpoint": "s3.amazonaws.com"}, None, False),
        (
            {},
            {"endpoint": "s3.eu-west-1.amazonaws.com"},
            "https://s3.eu-west-1.amazonaws.com",
            False,
        ),
        ({}, {"path.style.access": "true"}, None, True),
        ({"storage.s3.pathStyle": "false"}, {"path.style.access": "true"}, None, False),
        ({"storage.s3.endpoint": "http://a"}, {"endpoint": "b"}, "http://a", True),
    ],
)
def test_endpoints(
    options: dict[str, object], hadoop: dict[str, str], endpoint: str | None, path_style: bool
) -> None:
    found = s3(options, **hadoop)
    assert (found.endpoint, found.path_style) == (endpoint, path_style)


@pytest.mark.parametrize(
    ("options", "hadoop", "sse", "key"),
    [
        ({"storage.s3.sse": "AES256"}, {}, "AES256", None),
        ({"storage.s3.kmsKeyId": "k"}, {}, "aws:kms", "k"),
        ({}, {"encryption.algorithm": "SSE-KMS", "encryption.key": "k"}, "aws:kms", "k"),
        ({}, {"encryption.algorithm": "AES256"}, "AES256", None),
        ({"storage.s3.sse": "none"}, {"encryption.algorithm": "AES256"}, None, None),
        (
            {"storage.s3.sse": "none"},
            {"encryption.algorithm": "SSE-KMS", "encryption.key": "k"},
            None,
            None,
        ),
        (
            {"storage.s3.sse": "aws:kms"},
            {"encryption.algorithm": "SSE-C", "encryption.key": "secret"},
            "aws:kms",
            None,
        ),
        ({}, {"encryption.key": "k"}, None, None),
        (
            {"storage.s3.kmsKeyId": "own"},
            {"encryption.algorithm": "DSSE-KMS", "encryption.key": "k"},
            "aws:kms:dsse",
            "own",
        ),
    ],
)
def test_encryption(
    options: dict[str, object], hadoop: dict[str, str], sse: str | None, key: str | None
) -> None:
    found = s3(options, **hadoop)
    assert (found.sse, found.kms_key_id) == (sse, key)


@pytest.mark.parametrize("algorithm", ["SSE-C", "CSE-KMS", "cse-custom"])
def test_encryption_that_is_not_there(algorithm: str) -> None:
    """The key of SSE-C is a secret, and nobody would notice that the state is not encrypted."""
    found = s3({}, **{"encryption.algorithm": algorithm, "encryption.key": "secret"})
    assert found.kms_key_id is None
    with pytest.raises(UnsupportedError) as caught:
        S3Client("bucket", found)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "hadoop"),
    [({"storage.s3.sse": "AES256"}, {}), ({}, {"encryption.algorithm": "AES256"})],
)
def test_a_kms_key_without_kms(options: dict[str, object], hadoop: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        s3({"storage.s3.kmsKeyId": "k"} | options, **hadoop)
    assert caught.value.kind is ErrorKind.INVALID_OPTION


@pytest.mark.parametrize(
    ("hadoop", "expected"),
    [
        ({}, None),
        ({"access.key": "A"}, None),
        (KEYS, S3Credentials(access_key=Secret("A"), secret_key=Secret("S"))),
        (
            {**KEYS, "session.token": "T"},
            S3Credentials(
                access_key=Secret("A"), secret_key=Secret("S"), session_token=Secret("T")
            ),
        ),
        (
            {
                "aws.credentials.provider": "x.AssumedRoleCredentialProvider",
                "assumed.role.arn": "arn:r",
            },
            S3Credentials(role_arn="arn:r"),
        ),
        ({"assumed.role.arn": "arn:r"}, None),
        (
            {"aws.credentials.provider": "x.AnonymousAWSCredentialsProvider"},
            S3Credentials(anonymous=True),
        ),
    ],
)
def test_credentials(hadoop: dict[str, str], expected: S3Credentials | None) -> None:
    assert s3({}, **hadoop).credentials == expected


def test_a_bucket_with_settings_of_its_own() -> None:
    hadoop = {
        "fs.s3a.endpoint.region": "eu-west-1",
        "fs.s3a.access.key": "A",
        "fs.s3a.secret.key": "S",
        "fs.s3a.bucket.my.bucket.secret.key": "T",
        "fs.s3a.bucket.my.bucket.endpoint": "minio:9000",
        "fs.s3a.bucket.my.bucket.unknown": "x",
    }
    found = storage_settings(None, hadoop)
    assert found.s3_of("other") == found.s3 and found.s3.endpoint is None
    own = found.s3_of("my.bucket")
    assert (own.endpoint, own.region) == ("https://minio:9000", "eu-west-1")
    assert own.credentials == S3Credentials(access_key=Secret("A"), secret_key=Secret("T"))


def test_the_shim_hands_over_all_that_is_read(repository: Path) -> None:
    scala = (repository / "jvm-shim/src/main/scala/agent/S3Access.scala").read_text()
    python = (repository / "python/src/millpond/storage/settings.py").read_text()
    handed = set(re.findall(r'"([a-z.]+)"', scala)) - {
        "fs.s3a.",
        "fs.s3a.bucket.",
        ".",
        "core-default.xml",
    }
    assert handed == set(settings._NAMES)
    read = re.findall(r'(?:\{_S3A\}|secret\(\s*"|_true\(\s*hadoop, ")([a-z.]+)', python)
    assert set(read) == handed


def test_the_shim_hands_over_all_that_azure_needs(repository: Path) -> None:
    scala = (repository / "jvm-shim/src/main/scala/agent/AzureAccess.scala").read_text()
    python = (repository / "python/src/millpond/storage/azure_settings.py").read_text()
    python = python.replace("{_OAUTH}", "fs.azure.account.oauth2")
    read = set(re.findall(r'"fs\.azure\.([a-z0-9.-]+)"', python)) - {"account.oauth2"}
    assert read == set(re.findall(r'"([a-z0-9.-]+)"', scala)) - {"fs.azure.", "abfs"}


def test_settings_show_no_secret() -> None:
    handed = HandedOver({"fs.s3a.secret.key": "hush"})
    found = storage_settings(
        resolve({}),
        {"fs.s3a.access.key": "a key", "fs.s3a.secret.key": "hush", "fs.azure.account.key": "hush"},
    )
    shown: list[Any] = [handed, found, Secret("hush"), f"{found.s3.credentials} {handed}"]
    assert all(
        "hush" not in repr(thing) and "hush" not in str(thing) and "a key" not in repr(thing)
        for thing in shown
    )
    assert len({found, found}) == 1


@pytest.mark.parametrize(
    ("size_bytes", "part_bytes", "count"),
    [(0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2), (10**6, 8, 10_000)],
)
def test_parts(size_bytes: int, part_bytes: int, count: int) -> None:
    parts = plan_parts(size_bytes, part_bytes)
    assert len(parts) == count <= MAX_PARTS
    assert sum(length for _, length in parts) == size_bytes
    assert all(end == start for (a, n), (start, _) in itertools.pairwise(parts) for end in [a + n])
