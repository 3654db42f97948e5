"""One client of S3: its settings, its requests, its errors. The only module that imports boto3.

It never repeats a request.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import lru_cache
from typing import Any

from millpond._version import __version__
from millpond.errors import (
    ErrorKind,
    InvalidInputError,
    MillpondError,
    UnavailableError,
    UnsupportedError,
)
from millpond.storage import s3_errors
from millpond.storage.retry import Pace, TransientError
from millpond.storage.settings import S3Credentials, S3Settings

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 20  # for one wait on the socket, not for a whole body
# Connections for tasks that commit, beside those of the parts in flight.
_SPARE_CONNECTIONS = 32

PAYS = {"RequestPayer": "requester"}


class Refused(Exception):
    """An answer that the caller expects and handles. `code` is the server's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class S3Client:
    """One boto3 client, made at the first request. Thread-safe.

    Args:
        bucket: the bucket of every request.
    Raises: UnsupportedError: STORAGE_UNSUPPORTED: an encryption that Millpond cannot do.
    """

    def __init__(self, bucket: str, settings: S3Settings) -> None:
        if settings.encryption_not_done is not None:
            raise UnsupportedError(
                f"fs.s3a.encryption.algorithm is {settings.encryption_not_done}, which Millpond"
                " cannot do: nothing would encrypt the state with that key. Set storage.s3.sse to"
                " what the state shall have",
                kind=ErrorKind.STORAGE_UNSUPPORTED,
            )
        self.bucket = bucket
        self.pace = Pace()
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self.read_args: dict[str, Any] = PAYS if settings.requester_pays else {}
        self.write_args: dict[str, Any] = dict(self.read_args)
        if settings.sse is not None:
            self.write_args["ServerSideEncryption"] = settings.sse
        if settings.kms_key_id is not None:
            self.write_args["SSEKMSKeyId"] = settings.kms_key_id

    def where(self, key: str) -> str:
        """Return how messages name an object of the bucket."""
        return f"s3://{self.bucket}/{key}"

    def shares_server_with(self, other: S3Client) -> bool:
        """Return whether one server, with one set of credentials, answers both clients.

        Such a server can copy from bucket to bucket.
        """
        mine, theirs = self._settings, other._settings
        return (mine.endpoint, mine.credentials) == (theirs.endpoint, theirs.credentials)

    def call(
        self, operation: str, key: str, *, expect: frozenset[str] = frozenset(), **parameters: Any
    ) -> Any:
        """Send one request about `key` and return the parsed answer.

        Args:
            operation: its name in S3's API, such as `PutObject`.
            key: the object's key, for messages.
            expect: codes of the server to raise as `Refused`.
            parameters: those of the operation, except Bucket. None means: leave it out.
        Raises:
            Refused: the server answered with a code of `expect`.
            TransientError: the same request may succeed later.
            MillpondError: it will not.
        """
        client = self._get()
        # Start-up time: boto3, an extra.
        from botocore import exceptions, xform_name
        from botocore.parsers import ResponseParserError

        where = self.where(key)
        given = {name: value for name, value in parameters.items() if value is not None}
        try:
            return getattr(client, xform_name(operation))(Bucket=self.bucket, **given)
        except exceptions.ClientError as e:
            error = e.response.get("Error", {})
            metadata = e.response.get("ResponseMetadata", {})
            code, status = str(error.get("Code", "")), int(metadata.get("HTTPStatusCode", 0))
            if code in expect:
                raise Refused(code) from e
            region = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region", "") or error.get(
                "Region", ""
            )
            reads = operation in ("GetObject", "HeadObject")
            message = str(error.get("Message", ""))
            raise s3_errors.classify(
                operation,
                where,
                code,
                status,
                message,
                region=region,
                endpoint=str(client.meta.endpoint_url),
                exists_unknown=reads,
            ) from e
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as e:
            raise UnavailableError(
                f"{where}: {operation}: {e}",
                kind=ErrorKind.STORAGE_DENIED,
                hint=(
                    "boto3 finds no credentials: set fs.s3a.access.key and fs.s3a.secret.key in"
                    " Spark, or give the executors a role."
                ),
            ) from e
        except (exceptions.ParamValidationError, exceptions.UnsupportedS3ConfigurationError) as e:
            raise InvalidInputError(
                f"{where}: {operation}: {e}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint=(
                    "Correct the URI or the option that the message names; `millpond storage"
                    " check <uri>` tries it."
                ),
            ) from e
        except ResponseParserError as e:
            raise s3_errors.unparsable(operation, where, str(e)) from e
        except exceptions.BotoCoreError as e:
            raise _passing(operation, where, e) from e

    def read_some(self, body: Any, key: str, amount: int | None = None) -> bytes:
        """Return up to `amount` bytes of a body; b"" at its end.

        Raises: TransientError: the connection broke.
        """
        # Start-up time.
        from botocore import exceptions
        from urllib3.exceptions import HTTPError

        try:
            data: bytes = body.read(amount)
            return data
        # botocore has no error of its own for TLS that breaks in the middle of a body.
        except (exceptions.BotoCoreError, HTTPError) as e:
            raise _passing("GetObject", self.where(key), e) from e

    def _get(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def _make(self) -> Any:
        try:  # here and not above for start-up time
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config
        except ImportError as e:
            raise UnsupportedError(
                f"s3://{self.bucket} needs the package boto3: {e}",
                kind=ErrorKind.STORAGE_PACKAGE_MISSING,
            ) from e
        # At level DEBUG boto3 logs headers, and with them a session token.
        for name in ("boto3", "botocore", "urllib3", "s3transfer"):
            logging.getLogger(name).setLevel(logging.WARNING)
        settings, credentials = self._settings, self._settings.credentials or S3Credentials()
        config = Config(
            region_name=settings.region,
            signature_version=UNSIGNED if credentials.anonymous else "s3v4",
            # The signature covers the SHA-256 of each body, and the server compares it. Over https
            # too.
            s3={
                "addressing_style": "path" if settings.path_style else "auto",
                "payload_signing_enabled": True,
            },
            # One attempt: `storage.retry` decides about more. boto3's own "adaptive" mode falls to
            # one request in two seconds.
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            max_pool_connections=settings.connections + _SPARE_CONNECTIONS,
            tcp_keepalive=True,
            # Millpond itself sends and compares check sums: servers disagree about boto3's.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            user_agent_extra=f"millpond/{__version__}",
        )
        keys = (credentials.access_key, credentials.secret_key, credentials.session_token)
        access_key, secret_key, token = (
            secret.reveal() if secret is not None else None for secret in keys
        )
        try:
            session = boto3.session.Session(
                aws_access_key_id=access_key,
                aws_secret_access_key=secret_key,
                aws_session_token=token,
            )
            if credentials.role_arn is not None:
                session = _assuming(session, credentials, settings.region)
            return session.client("s3", endpoint_url=settings.endpoint, config=config)
        except (ValueError, TypeError) as e:
            raise InvalidInputError(
                f"s3://{self.bucket}: {e}",
                kind=ErrorKind.STORAGE_MISCONFIGURED,
                hint="Correct the option storage.s3.endpoint: http://host:port or https://host.",
            ) from e
        except Exception as e:  # a bad profile, file or metadata service: boto3 raises anything
            raise UnavailableError(
                f"s3://{self.bucket}: boto3 cannot be set up: {type(e).__name__}: {e}",
                kind=ErrorKind.STORAGE_UNAVAILABLE,
                hint="Check the AWS configuration of this machine (AWS_PROFILE, ~/.aws/config).",
            ) from e


@lru_cache(maxsize=32)
def shared_client(bucket: str, settings: S3Settings) -> S3Client:
    """Return this process's one client for a bucket with these settings.

    To make a client takes a tenth of a second. A shared client also keeps its connections.
    """
    return S3Client(bucket, settings)


# Two processes that share a connection read each other's answers.
os.register_at_fork(after_in_child=shared_client.cache_clear)


def _assuming(session: Any, credentials: S3Credentials, region: str | None) -> Any:
    """Return a session with the role's credentials. They renew themselves before they expire."""
    # Start-up time: few jobs assume a role.
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.session import Session

    source = session.get_credentials()

    def create_client(service: str, **arguments: Any) -> Any:
        return session.client(
            service, region_name=region, endpoint_url=credentials.sts_endpoint, **arguments
        )

    fetcher = AssumeRoleCredentialFetcher(
        create_client,
        source,
        credentials.role_arn,
        extra_args={"RoleSessionName": credentials.role_session},
    )
    inner = Session()
    inner._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    return boto3.session.Session(botocore_session=inner)


def _passing(operation: str, where: str, e: Exception) -> MillpondError | TransientError:
    # For example: connection refused, reset or timed out; a name that does not resolve; a body cut
    # off; credentials that could not be renewed.
    text = " ".join(str(e).split())
    return TransientError(
        UnavailableError(
            f"{where}: {operation}: {text}",
            kind=ErrorKind.STORAGE_UNAVAILABLE,
            hint=(
                "Check the option storage.s3.endpoint and the network between the executors and the"
                " storage."
            ),
        )
    )
