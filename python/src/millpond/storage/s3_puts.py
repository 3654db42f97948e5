"""Puts on S3 that know whether they made the object.

A put is one PUT; above a threshold it is a multipart upload, which may begin while the file still
grows (`s3_growing`). S3 makes both atomic, and durable when it acknowledges them. Each put has a
name of its own (`millpond-put`), and stores it with the CRC-32 of the bytes in the object's
metadata. If the answer gets lost, or `If-None-Match` says that the object exists, the object itself
tells whether this put made it.
"""

from __future__ import annotations

import logging
import os
import uuid
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from millpond.errors import (
    ConflictError,
    ErrorKind,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.format.checksums import file_crc32
from millpond.storage import s3_errors
from millpond.storage.base import Copied
from millpond.storage.parallel import Parallel
from millpond.storage.parts import plan_parts
from millpond.storage.retry import Retry
from millpond.storage.s3_client import Refused
from millpond.storage.s3_growing import S3GrowingPut
from millpond.storage.s3_requests import CRC32, PUT_NAME, S3Requests, crc32_of, put_name_of
from millpond.storage.s3_uploads import S3Upload, checksum_of
from millpond.storage.settings import S3Settings

log = logging.getLogger(__name__)

_MOST_COPIED_BYTES = 5 * 1024**3  # S3's limit for one CopyObject
# S3's least for all parts but the last. A put that grows sends two parts when its file is complete:
# the smaller they are, the sooner it is done.
_LEAST_PART_BYTES = 5 << 20
# If all answers of a put got lost: how long to look whether it made the object.
_LOOK_MS = 10_000


class S3Puts:
    """Makes objects. `target` is an object's whole key in the bucket."""

    def __init__(self, requests: S3Requests, parallel: Parallel, settings: S3Settings) -> None:
        self._requests = requests
        self._client = requests.client
        self._parallel = parallel
        self._settings = settings
        self._conditional = settings.conditional_put

    def put(self, target: str, data: bytes, if_absent: bool) -> None:
        """Make an object by one request. Raises: ConflictError: OBJECT_EXISTS."""
        crc32 = zlib.crc32(data)
        metadata = _metadata(crc32)

        def send(condition: str | None) -> None:
            self._requests.call(
                "PutObject",
                target,
                expect=s3_errors.PRECONDITION,
                Key=target,
                Body=data,
                Metadata=metadata,
                ChecksumCRC32=checksum_of(crc32),
                IfNoneMatch=condition,
                **self._client.write_args,
            )

        self._settled(target, metadata[PUT_NAME], if_absent, send)

    def put_parts(self, target: str, descriptor: int, local_path: str, if_absent: bool) -> None:
        """Make an object of a local file, part by part. Raises: ConflictError: OBJECT_EXISTS.

        Args:
            descriptor: of the file at `local_path`, open for reading.
        """
        if if_absent:
            # Ceph 16 accepts the condition on CompleteMultipartUpload, and ignores it. So look
            # first: that costs little beside an upload.
            self._refuse_existing(target)
        size_bytes = os.fstat(descriptor).st_size
        metadata = _metadata(file_crc32(local_path))
        upload = S3Upload.begin(self._requests, target, metadata)

        def send_part(number: int, start: int, length: int) -> dict[str, Any]:
            return upload.part(number, os.pread(descriptor, length, start))

        def complete(condition: str | None) -> None:
            upload.complete(parts, condition)

        try:
            pieces = enumerate(plan_parts(size_bytes, self._settings.part_bytes), start=1)
            parts = self._parallel.run(
                [partial(send_part, number, *piece) for number, piece in pieces]
            )
            self._settled(target, metadata[PUT_NAME], if_absent, complete)
        except BaseException:
            upload.abort()
            raise

    def growing(
        self, target: str, local_path: str, fixed_from: int, ahead: Parallel
    ) -> S3GrowingPut:
        """Begin a put of a local file that still grows: `GrowsFiles.growing_put`.

        Args:
            ahead: runs what is sent before the file is complete.
        """
        metadata = _metadata(None)
        return S3GrowingPut(
            self._requests,
            target,
            local_path,
            metadata,
            fixed_from=fixed_from,
            least_bytes=self._settings.multipart_bytes,
            part_bytes=min(self._settings.part_bytes, _LEAST_PART_BYTES),
            ahead=ahead,
            parallel=self._parallel,
            settled=partial(self._settled, target, metadata[PUT_NAME], False),
        )

    def copy(self, source: S3Requests, origin: str, target: str) -> Copied | None:
        """Let the server copy an object of `source`. None if it must be read and written instead.

        Raises: NotFoundError: somebody replaced the source meanwhile.
        """
        found = source.head(origin)
        size_bytes, crc32 = int(found["ContentLength"]), crc32_of(found)
        if crc32 is None or size_bytes > _MOST_COPIED_BYTES:
            return None  # Millpond did not write it, or it is too large for one request
        metadata = _metadata(crc32)

        def send(_: str | None) -> None:
            answer = self._requests.call(
                "CopyObject",
                target,
                expect=s3_errors.PRECONDITION,
                Key=target,
                CopySource={"Bucket": source.client.bucket, "Key": origin},
                CopySourceIfMatch=found.get("ETag"),
                Metadata=metadata,
                MetadataDirective="REPLACE",
                **self._client.write_args,
            )
            if "CopyObjectResult" not in answer:  # the server took it for a PUT of nothing
                raise UnsupportedError(
                    f"{self._client.where(target)}: the server does not copy objects",
                    kind=ErrorKind.STORAGE_UNSUPPORTED,
                )

        try:
            self._settled(target, metadata[PUT_NAME], False, send)
        except ConflictError as e:  # somebody replaced the source meanwhile
            raise NotFoundError(
                f"{source.client.where(origin)} was replaced", kind=ErrorKind.OBJECT_NOT_FOUND
            ) from e
        return Copied(size_bytes, crc32)

    def _settled(
        self, target: str, name: str, if_absent: bool, send: Callable[[str | None], None]
    ) -> None:
        """Run `send(condition)`, the request that makes the object, and make sure that it did.

        Raises: ConflictError: another put made the object. MillpondError: no put of this call did.
        """
        condition = "*" if if_absent and self._conditional else None
        if if_absent and condition is None:
            self._refuse_existing(target)
        try:
            send(condition)
        except Refused as e:
            # Another put was first. Or an earlier attempt of this put was, and its answer got lost.
            if not self._made_by(target, name):
                raise self._exists(target) from e
        except UnsupportedError as e:
            if condition is None:
                raise
            log.warning(
                "%s has no conditional writes: looking before and after writing instead: %s",
                self._client.where(""),
                e,
            )
            self._conditional = False
            self._settled(target, name, if_absent, send)
            return
        except UnavailableError as e:
            if e.kind is not ErrorKind.STORAGE_UNAVAILABLE or not self._landed(target, name, e):
                raise
            log.warning(
                "%s: all answers were lost, but the object is there", self._client.where(target)
            )
        if if_absent and condition is None and not self._made_by(target, name):
            raise self._exists(target)

    def _refuse_existing(self, target: str) -> None:
        with suppress(NotFoundError):
            self._requests.head(target)
            raise self._exists(target)

    def _exists(self, target: str) -> ConflictError:
        return ConflictError(
            f"{self._client.where(target)} exists already", kind=ErrorKind.OBJECT_EXISTS
        )

    def _landed(self, target: str, name: str, lost: MillpondError) -> bool:
        """Look for a while whether the put `name` made the object.

        Raises `lost` if the server does not answer.
        """
        usual = self._requests.retry
        try:
            return self._made_by(
                target, name, Retry(_LOOK_MS, usual.clock, usual.sleep, usual.chance)
            )
        except MillpondError as e:
            raise lost from e

    def _made_by(self, target: str, name: str, retry: Retry | None = None) -> bool:
        try:
            return put_name_of(self._requests.head(target, retry)) == name
        except NotFoundError:
            return False


def _metadata(crc32: int | None) -> dict[str, str]:
    """Return the metadata of a new put: its own name, and the CRC-32 of the bytes if known."""
    return {PUT_NAME: uuid.uuid4().hex} | ({} if crc32 is None else {CRC32: f"{crc32:08x}"})
