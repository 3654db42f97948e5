"""One multipart upload on S3: begin, parts, and one of two ends."""

from __future__ import annotations

import base64
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.errors import MillpondError
from millpond.storage import s3_errors
from millpond.storage.retry import Retry, TransientError
from millpond.storage.s3_client import Refused
from millpond.storage.s3_requests import S3Requests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class S3Upload:
    """An upload that has begun. Thread-safe. The caller must `complete` or `abort` it."""

    requests: S3Requests
    target: str  # the object's whole key in the bucket
    upload_id: str

    @staticmethod
    def begin(
        requests: S3Requests, target: str, metadata: Mapping[str, str], retry: Retry | None = None
    ) -> S3Upload:
        """Begin an upload.

        Args:
            metadata: of the object that it makes.
            retry: how long to repeat the request, if not as long as all others.
        """
        answer = requests.call(
            "CreateMultipartUpload",
            target,
            retry=retry,
            Key=target,
            Metadata=metadata,
            ChecksumAlgorithm="CRC32",
            **requests.client.write_args,
        )
        return S3Upload(requests, target, answer["UploadId"])

    def part(
        self,
        number: int,
        data: bytes,
        *,
        expect: frozenset[str] = frozenset(),
        retry: Retry | None = None,
    ) -> dict[str, Any]:
        """Send a part, and return what `complete` needs to know of it.

        Raises: Refused: the server answered with a code of `expect`. MillpondError.
        """
        checksum = checksum_of(zlib.crc32(data))
        answer = self.requests.call(
            "UploadPart",
            self.target,
            retry=retry,
            expect=expect,
            Key=self.target,
            UploadId=self.upload_id,
            PartNumber=number,
            Body=data,
            ChecksumCRC32=checksum,
            **self.requests.client.read_args,
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum}

    def complete(self, parts: Sequence[dict[str, Any]], condition: str | None) -> None:
        """Make the object.

        Raises: Refused: the upload is gone, or the condition does not hold. MillpondError.
        """
        self.requests.call(
            "CompleteMultipartUpload",
            self.target,
            # If the upload is gone, an earlier attempt completed it, or somebody removed it.
            # The object tells which.
            expect=s3_errors.PRECONDITION | s3_errors.NO_UPLOAD,
            Key=self.target,
            UploadId=self.upload_id,
            MultipartUpload={"Parts": parts},
            IfNoneMatch=condition,
            **self.requests.client.read_args,
        )

    def abort(self) -> None:
        """Throw the parts away. Raises nothing: what is left goes with `drop_unfinished`."""
        try:
            self.requests.send(
                "AbortMultipartUpload",
                self.target,
                expect=s3_errors.NO_UPLOAD,
                Key=self.target,
                UploadId=self.upload_id,
                **self.requests.client.read_args,
            )
        except Refused:
            pass  # somebody removed it already
        except (MillpondError, TransientError) as e:
            # The error that led here is the one that matters. A lifecycle rule of the bucket
            # removes the parts, too.
            log.warning(
                "%s: the parts of an upload that failed are left behind: %s",
                self.requests.client.where(self.target),
                e,
            )


def drop_unfinished(requests: S3Requests, prefix: str, begun_before_ms: int) -> int:
    """Abort the uploads of keys with this prefix that began before this time.

    Returns: how many there were.
    """
    found: list[S3Upload] = []
    markers: dict[str, Any] = {}
    while True:
        page = requests.call(
            "ListMultipartUploads", prefix, Prefix=prefix, **markers, **requests.client.read_args
        )
        found += [
            S3Upload(requests, upload["Key"], upload["UploadId"])
            for upload in page.get("Uploads", ())
            if upload["Initiated"].timestamp() * 1000 < begun_before_ms
        ]
        if not page.get("IsTruncated"):
            break
        markers = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }
    for upload in found:
        upload.abort()
    return len(found)


def checksum_of(crc32: int) -> str:
    """Return a CRC-32 as S3's headers have it."""
    return base64.b64encode(crc32.to_bytes(4, "big")).decode("ascii")
