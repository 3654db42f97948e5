"""How to reach a storage: from Millpond's options and Spark's Hadoop settings (`fs.s3a.*`,
`fs.azure.*`).

Pure: reads no environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.config import MIB, OptionValue, resolve
from millpond.errors import ErrorKind, InvalidInputError

_S3A = "fs.s3a."
_S3A_BUCKET = "fs.s3a.bucket."
_AZURE = "fs.azure."
# The settings that the shim hands over (S3Access.scala).
_NAMES = (
    "access.key",
    "secret.key",
    "session.token",
    "encryption.key",
    "encryption.algorithm",
    "endpoint",
    "endpoint.region",
    "path.style.access",
    "connection.ssl.enabled",
    "requester.pays.enabled",
    "aws.credentials.provider",
    "assumed.role.arn",
    "assumed.role.session.name",
    "assumed.role.sts.endpoint",
)
_KMS = {
    "SSE-KMS": "aws:kms",
    "AWS:KMS": "aws:kms",
    "DSSE-KMS": "aws:kms:dsse",
    "AES256": "AES256",
    "SSE-S3": "AES256",
}


class Secret:
    """A text that no log, message or traceback shows. Only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class HandedOver(dict[str, str]):
    """Entries of Spark's Hadoop configuration. Some are secrets, so its text hides all values."""

    def __repr__(self) -> str:
        return f"HandedOver({sorted(self)})"

    __str__ = __repr__


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Credentials:
    """The credentials that Spark hands over."""

    access_key: Secret | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    role_arn: str | None = None  # a role to assume with the keys; without keys, by boto3's chain
    role_session: str = "millpond"
    sts_endpoint: str | None = None
    anonymous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How to reach S3. None: boto3 finds it by itself (environment, profile, instance)."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    sse: str | None = None  # AES256, aws:kms, aws:kms:dsse
    kms_key_id: str | None = None
    encryption_not_done: str | None = None  # Hadoop's algorithm, which Millpond cannot do
    requester_pays: bool = False
    conditional_put: bool = True
    multipart_bytes: int = 16 * MIB  # objects above it move in parts
    part_bytes: int = 8 * MIB
    connections: int = 16
    credentials: S3Credentials | None = None  # None: boto3's chain


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How to reach the storage of one Spark checkpoint.

    Storages with equal settings may share connections.
    """

    uri: str | None = None  # option storage.uri
    fsync: bool = True
    deadline_ms: int = 60_000
    s3: S3Settings = S3Settings()
    s3_of_buckets: tuple[tuple[str, S3Settings], ...] = ()  # buckets with settings of their own
    azure: tuple[tuple[str, Secret], ...] = ()  # Spark's, for all accounts (azure_settings)
    azure_by_hadoop: bool = False  # option storage.azure.client

    def s3_of(self, bucket: str) -> S3Settings:
        """Return how to reach one bucket."""
        return dict(self.s3_of_buckets).get(bucket, self.s3)


def storage_settings(
    options: Mapping[str, OptionValue] | None = None, hadoop: Mapping[str, str] | None = None
) -> StorageSettings:
    """Return the settings from Millpond's options and Spark's Hadoop configuration.

    Args:
        options: resolved (`config.resolve`), by short name; None: the defaults. Options win.
        hadoop: entries below `fs.s3a.`, of which those below `fs.s3a.bucket.<name>.` win for their
            bucket, and below `fs.azure.`.
    Raises: InvalidInputError: INVALID_OPTION.
    """
    options = options if options is not None else resolve({})
    hadoop = hadoop or {}
    uri = options["storage.uri"]
    return StorageSettings(
        uri=None if uri is None else str(uri),
        fsync=options["commit.fsync"] is not False,
        deadline_ms=_int(options["storage.deadlineMs"]),
        s3=_s3(options, hadoop),
        s3_of_buckets=tuple(
            (bucket, _s3(options, {**hadoop, **own})) for bucket, own in _of_buckets(hadoop).items()
        ),
        azure=tuple(
            (name, Secret(text)) for name, text in sorted(hadoop.items()) if name.startswith(_AZURE)
        ),
        azure_by_hadoop=options["storage.azure.client"] == "hadoop",
    )


def _of_buckets(hadoop: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the entries of single buckets, by bucket. Each gets its name without the bucket."""
    found: dict[str, dict[str, str]] = {}
    for key, value in hadoop.items():
        if key.startswith(_S3A_BUCKET):
            # A bucket's name may hold dots.
            names = [name for name in _NAMES if key.endswith(f".{name}")]
            if names:
                name = max(names, key=len)
                bucket = key[len(_S3A_BUCKET) : -len(name) - 1]
                found.setdefault(bucket, {})[_S3A + name] = value
    return found


def _s3(options: Mapping[str, OptionValue], hadoop: Mapping[str, str]) -> S3Settings:
    endpoint = _text(options["storage.s3.endpoint"]) or _endpoint(hadoop)
    path_style = options["storage.s3.pathStyle"]
    if path_style is None:
        # Nobody can tell Hadoop's default, false, from a user's choice. A private server rarely has
        # a host name for every bucket, so it gets path style.
        path_style = _true(hadoop, "path.style.access") or (
            endpoint is not None and "amazonaws.com" not in endpoint
        )
    algorithm = hadoop.get(f"{_S3A}encryption.algorithm", "").upper()
    own_sse, hadoop_sse = _text(options["storage.s3.sse"]), _KMS.get(algorithm)
    sse = own_sse or hadoop_sse
    kms_key_id = _text(options["storage.s3.kmsKeyId"])
    if kms_key_id and sse in (None, "none"):
        sse = "aws:kms"
    elif not kms_key_id and _is_kms(sse) and _is_kms(hadoop_sse):
        # of other algorithms it may be the secret itself
        kms_key_id = hadoop.get(f"{_S3A}encryption.key")
    if sse == "aes256":
        sse = "AES256"
    if sse == "AES256" and kms_key_id:
        raise InvalidInputError(
            "storage.s3.kmsKeyId goes with storage.s3.sse=aws:kms, not with AES256",
            kind=ErrorKind.INVALID_OPTION,
        )
    requester_pays = options["storage.s3.requesterPays"] is True or _true(
        hadoop, "requester.pays.enabled"
    )
    return S3Settings(
        endpoint=endpoint,
        region=_text(options["storage.s3.region"]) or hadoop.get(f"{_S3A}endpoint.region"),
        path_style=path_style is True,
        sse=None if sse == "none" else sse,
        encryption_not_done=(
            algorithm if own_sse is None and algorithm.startswith(("SSE-C", "CSE-")) else None
        ),
        kms_key_id=kms_key_id,
        requester_pays=requester_pays,
        conditional_put=options["storage.s3.conditionalPut"] is not False,
        multipart_bytes=_int(options["storage.s3.multipartThreshold"]),
        part_bytes=_int(options["storage.s3.partSize"]),
        connections=_int(options["storage.s3.connections"]),
        credentials=_credentials(hadoop),
    )


def _is_kms(sse: str | None) -> bool:
    return sse is not None and sse.startswith("aws:kms")


def _credentials(hadoop: Mapping[str, str]) -> S3Credentials | None:
    def secret(name: str) -> Secret | None:
        text = hadoop.get(_S3A + name)
        return Secret(text) if text else None

    access_key, secret_key = secret("access.key"), secret("secret.key")
    role_arn = hadoop.get(f"{_S3A}assumed.role.arn") or None
    # Of Hadoop's providers, two say something that boto3's chain does not find out by itself:
    # anonymous access, and a role to assume.
    providers = hadoop.get(f"{_S3A}aws.credentials.provider", "")
    anonymous = "AnonymousAWSCredentialsProvider" in providers and access_key is None
    if role_arn is not None and "AssumedRole" not in providers:
        role_arn = None
    if (access_key is None or secret_key is None) and role_arn is None and not anonymous:
        return None
    return S3Credentials(
        access_key=access_key if secret_key else None,
        secret_key=secret_key if access_key else None,
        session_token=secret("session.token") if access_key and secret_key else None,
        role_arn=role_arn,
        role_session=hadoop.get(f"{_S3A}assumed.role.session.name") or "millpond",
        sts_endpoint=hadoop.get(f"{_S3A}assumed.role.sts.endpoint") or None,
        anonymous=anonymous,
    )


def _endpoint(hadoop: Mapping[str, str]) -> str | None:
    endpoint = hadoop.get(f"{_S3A}endpoint", "").strip()
    # Hadoop's names for AWS itself: there the region is enough.
    if not endpoint or endpoint in ("s3.amazonaws.com", "central"):
        return None
    if "://" in endpoint:
        return endpoint
    plain = hadoop.get(f"{_S3A}connection.ssl.enabled", "true").strip().lower() == "false"
    return f"{'http' if plain else 'https'}://{endpoint}"


def _true(hadoop: Mapping[str, str], name: str) -> bool:
    return hadoop.get(_S3A + name, "").strip().lower() == "true"


def _text(value: OptionValue) -> str | None:
    return str(value) if value is not None else None


def _int(value: OptionValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(f"{value!r} is no whole number", kind=ErrorKind.INVALID_OPTION)
    return value
