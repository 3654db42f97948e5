"""Requests to one bucket on S3: repeats each until a deadline, and counts every attempt.

`s3_client` sends one attempt.
"""

from __future__ import annotations

from typing import Any

from millpond.storage import s3_errors
from millpond.storage.retry import Retry, TransientError
from millpond.storage.s3_client import S3Client
from millpond.storage.usage import Usage

# What a put stores in the object's metadata: its own name, and the CRC-32 of the bytes.
PUT_NAME, CRC32 = "millpond-put", "millpond-crc32"
# What each good answer says, one of these. boto3 takes one that says nothing, as a proxy may make
# it, for a listing without objects, or for an object that was stored or deleted.
_SAYS = {
    "PutObject": ("ETag",),
    "HeadObject": ("LastModified",),
    "ListObjectsV2": ("IsTruncated",),
    "CreateMultipartUpload": ("UploadId",),
    "UploadPart": ("ETag",),
    "CompleteMultipartUpload": ("ETag",),
    "DeleteObjects": ("Deleted", "Errors"),
}


class S3Requests:
    """Requests by one client. `client`, `retry` and `usage` may be read. Thread-safe."""

    def __init__(self, client: S3Client, retry: Retry) -> None:
        self.client = client
        self.retry = retry
        self.usage = Usage()

    def send(self, operation: str, target: str, **parameters: Any) -> Any:
        """Send one attempt, and return the parsed answer. Arguments and errors: `S3Client.call`."""
        self.usage.sent(operation, len(parameters.get("Body", b"")))
        try:
            answer = self.client.call(operation, target, **parameters)
            fields = _SAYS.get(operation)
            if fields is not None and answer.keys().isdisjoint(fields):
                raise s3_errors.empty(operation, self.client.where(target), fields[0])
            return answer
        except TransientError:
            self.usage.failed()
            raise

    def call(
        self, operation: str, target: str, *, retry: Retry | None = None, **parameters: Any
    ) -> Any:
        """Send a request until the server answers, or the deadline passes.

        Args:
            retry: how long to repeat the request, if not as long as all others.
        Raises: Refused: the server answered with a code of `expect`. MillpondError.
        """
        return (retry or self.retry).run(
            operation, lambda: self.send(operation, target, **parameters)
        )

    def head(self, target: str, retry: Retry | None = None) -> Any:
        """Ask about an object. Arguments: as `call`."""
        return self.call("HeadObject", target, retry=retry, Key=target, **self.client.read_args)

    def get_range(self, target: str, start: int, length: int, tag: str | None = None) -> Any:
        """Send one GET for a range of bytes.

        Raises: Refused: the object ends before `start`, or its tag is not `tag`.
        """
        return self.send(
            "GetObject",
            target,
            expect=s3_errors.NO_RANGE | s3_errors.PRECONDITION,
            Key=target,
            Range=f"bytes={start}-{start + length - 1}",
            IfMatch=tag,
            **self.client.read_args,
        )

    def receive(self, body: Any, target: str, amount: int | None = None) -> bytes:
        """Return up to `amount` bytes of a body; b"" at its end."""
        data = self.client.read_some(body, target, amount)
        self.usage.received(len(data))
        return data


def put_name_of(answer: Any) -> str | None:
    """Return the name of the put that made an object; None if it was not Millpond's."""
    name: str | None = answer.get("Metadata", {}).get(PUT_NAME)
    return name


def crc32_of(answer: Any) -> int | None:
    """Return the CRC-32 of an object's bytes by its metadata; None if it has none."""
    text: str | None = answer.get("Metadata", {}).get(CRC32)
    return None if text is None else int(text, 16)
