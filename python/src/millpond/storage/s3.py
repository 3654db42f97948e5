"""Storage on S3, and on servers with S3's API. `s3_client` alone knows boto3.

A put is one PUT; above a threshold it is a multipart upload. S3 makes both atomic, and durable when
it acknowledges them. Each put has a name of its own (`millpond-put`), and stores it with the CRC-32
of the bytes in the object's metadata. If the answer gets lost, or `If-None-Match` says that the
object exists, the object itself tells whether this put made it. Puts and deletions are idempotent,
so this module repeats requests until a deadline.

Source: docs/guides/s3.md; AWS, "Conditional writes" and "Checking object integrity".
"""

from __future__ import annotations

import base64
import logging
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.format.checksums import file_crc32, joined_crc32
from millpond.format.layout import new_staging_name
from millpond.storage import s3_errors
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.keys import check_key, check_prefix
from millpond.storage.local import translate, translate_restored
from millpond.storage.parallel import Parallel
from millpond.storage.parts import plan_parts
from millpond.storage.retry import Retry, TransientError
from millpond.storage.s3_client import Refused, S3Client
from millpond.storage.settings import S3Settings
from millpond.storage.usage import Usage

log = logging.getLogger(__name__)

MAX_KEY_BYTES = 1024
# Room for the longest key below a root: state/<op>/<partition>/<store>/sst/<uuid>.sst.
_RESERVED_BYTES = 300
_DELETE_BATCH = 1000
_CHUNK_BYTES = 1024 * 1024
_MOST_COPIED_BYTES = 5 * 1024**3  # S3's limit for one CopyObject
_PUT, _CRC = "millpond-put", "millpond-crc32"
# If all answers of a put got lost: how long to look whether it made the object.
_LOOK_MS = 10_000


class S3Storage:
    """Objects below `s3://<bucket>/<prefix>`.

    Args:
        bucket: it must exist.
        prefix: without slashes at its ends; "" for the whole bucket.
        retry: how long to repeat requests.
    Raises: InvalidInputError: INVALID_ARGUMENT: the prefix is too long for the keys below it.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        settings: S3Settings,
        *,
        retry: Retry | None = None,
        client: S3Client | None = None,
    ) -> None:
        self._root = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._retry = retry if retry is not None else Retry()
        self._client = client if client is not None else S3Client(bucket, settings)
        self._conditional = settings.conditional_put
        self.usage = Usage()
        self._parallel = Parallel(settings.connections)
        if len(self._root.encode()) > MAX_KEY_BYTES - _RESERVED_BYTES:
            raise InvalidInputError(
                f"s3://{bucket}/{prefix}: {len(self._root.encode())} bytes; keys below it would be"
                f" longer than the {MAX_KEY_BYTES} that S3 allows",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint=f"Choose a path of at most {MAX_KEY_BYTES - _RESERVED_BYTES} bytes.",
            )

    def __repr__(self) -> str:
        return f"S3Storage({self._client.where(self._root)!r})"

    # ---- writing

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        target = self._key(key)
        try:
            with open(local_path, "rb") as file:
                if os.fstat(file.fileno()).st_size > self._settings.multipart_bytes:
                    self._put_parts(target, file.fileno(), local_path, if_absent)
                    return
                data = file.read()
        except (FileNotFoundError, IsADirectoryError) as e:
            raise InvalidInputError(
                f"no file to store at {local_path}", kind=ErrorKind.INVALID_ARGUMENT
            ) from e
        except OSError as e:
            raise translate(e, f"reading {local_path}", local=True) from e
        self._put(target, data, if_absent)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self._put(self._key(key), data, if_absent)

    def _put(self, target: str, data: bytes, if_absent: bool) -> None:
        crc32 = zlib.crc32(data)
        metadata = _metadata(crc32)

        def send(condition: str | None) -> None:
            self._call(
                "PutObject",
                target,
                expect=s3_errors.PRECONDITION,
                Key=target,
                Body=data,
                Metadata=metadata,
                ChecksumCRC32=_checksum(crc32),
                IfNoneMatch=condition,
                **self._client.write_args,
            )

        self._settled(target, metadata[_PUT], if_absent, send)

    def _settled(self, target: str, name: str, if_absent: bool, send: Any) -> None:
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
                self,
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
            self._head(target)
            raise self._exists(target)

    def _exists(self, target: str) -> ConflictError:
        return ConflictError(
            f"{self._client.where(target)} exists already", kind=ErrorKind.OBJECT_EXISTS
        )

    def _landed(self, target: str, name: str, lost: MillpondError) -> bool:
        """Look for a while whether the put `name` made the object.

        Raises `lost` if the server does not answer.
        """
        try:
            return self._made_by(
                target,
                name,
                Retry(_LOOK_MS, self._retry.clock, self._retry.sleep, self._retry.chance),
            )
        except MillpondError as e:
            raise lost from e

    def _made_by(self, target: str, name: str, retry: Retry | None = None) -> bool:
        try:
            answer = self._head(target, retry)
        except NotFoundError:
            return False
        return bool(answer.get("Metadata", {}).get(_PUT) == name)

    def _put_parts(self, target: str, descriptor: int, local_path: str, if_absent: bool) -> None:
        if if_absent:
            # Ceph 16 accepts the condition on CompleteMultipartUpload, and ignores it. So look
            # first: that costs little beside an upload.
            self._refuse_existing(target)
        size_bytes = os.fstat(descriptor).st_size
        metadata = _metadata(file_crc32(local_path))
        upload_id: str = self._call(
            "CreateMultipartUpload",
            target,
            Key=target,
            Metadata=metadata,
            ChecksumAlgorithm="CRC32",
            **self._client.write_args,
        )["UploadId"]

        def send_part(number: int, start: int, length: int) -> dict[str, Any]:
            data = os.pread(descriptor, length, start)
            checksum = _checksum(zlib.crc32(data))
            answer = self._call(
                "UploadPart",
                target,
                Key=target,
                UploadId=upload_id,
                PartNumber=number,
                Body=data,
                ChecksumCRC32=checksum,
                **self._client.read_args,
            )
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum}

        def complete(condition: str | None) -> None:
            self._call(
                "CompleteMultipartUpload",
                target,
                # If the upload is gone, an earlier attempt completed it, or somebody removed it.
                # The object tells which.
                expect=s3_errors.PRECONDITION | s3_errors.NO_UPLOAD,
                Key=target,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
                IfNoneMatch=condition,
                **self._client.read_args,
            )

        try:
            pieces = enumerate(plan_parts(size_bytes, self._settings.part_bytes), start=1)
            parts = self._parallel.run(
                [partial(send_part, number, *piece) for number, piece in pieces]
            )
            self._settled(target, metadata[_PUT], if_absent, complete)
        except BaseException:
            self._abort(target, upload_id)
            raise

    def _abort(self, target: str, upload_id: str) -> None:
        try:
            self._send(
                "AbortMultipartUpload",
                target,
                Key=target,
                UploadId=upload_id,
                **self._client.read_args,
            )
        except (MillpondError, TransientError, Refused) as e:
            # The error that led here is the one that matters. A lifecycle rule of the bucket
            # removes the parts.
            log.warning(
                "%s: the parts of an upload that failed are left behind: %s",
                self._client.where(target),
                e,
            )

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        target = self._key(key)
        if not isinstance(source, S3Storage) or not source._client.shares_server_with(self._client):
            return None
        origin = source._key(source_key)
        found = source._head(origin)
        size_bytes, crc32 = int(found["ContentLength"]), found.get("Metadata", {}).get(_CRC)
        if crc32 is None or size_bytes > _MOST_COPIED_BYTES:
            return None  # Millpond did not write it, or it is too large for one request
        metadata = _metadata(int(crc32, 16))

        def send(_: str | None) -> None:
            answer = self._call(
                "CopyObject",
                target,
                expect=s3_errors.PRECONDITION,
                Key=target,
                CopySource={"Bucket": source._client.bucket, "Key": origin},
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
            self._settled(target, metadata[_PUT], False, send)
        except ConflictError as e:  # somebody replaced the source meanwhile
            raise NotFoundError(
                f"{source._client.where(origin)} was replaced", kind=ErrorKind.OBJECT_NOT_FOUND
            ) from e
        return Copied(size_bytes, int(crc32, 16))

    # ---- reading

    def read(self, key: str) -> bytes:
        target = self._key(key)

        def fetch() -> tuple[bytes, str | None]:
            answer = self._send("GetObject", target, Key=target, **self._client.read_args)
            return self._receive(answer["Body"], target), answer.get("Metadata", {}).get(_CRC)

        for _ in range(2):  # if the network damaged the bytes, the second time they are whole
            data, expected = self._retry.run(f"GetObject {key}", fetch)
            if expected is None or int(expected, 16) == zlib.crc32(data):
                return data
        raise s3_errors.damaged(key, self._client.where(target))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        target = self._key(key)
        if start < 0 or length < 0:
            raise InvalidInputError(f"negative range [{start}, +{length}) of {key}")
        if length == 0:
            self._head(target)
            return b""

        def fetch() -> bytes:
            answer = self._get_range(target, start, length)
            data = self._receive(answer["Body"], target)
            return data if "ContentRange" in answer else data[start : start + length]

        try:
            return self._retry.run(f"GetObject {key}", fetch)
        except Refused:
            return b""  # the object ends before `start`

    def _get_range(self, target: str, start: int, length: int, tag: str | None = None) -> Any:
        """Send one GET for a range of bytes.

        Raises: Refused: the object ends before `start`, or its tag is not `tag`.
        """
        return self._send(
            "GetObject",
            target,
            expect=s3_errors.NO_RANGE | s3_errors.PRECONDITION,
            Key=target,
            Range=f"bytes={start}-{start + length - 1}",
            IfMatch=tag,
            **self._client.read_args,
        )

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int:
        target = self._key(key)
        temporary = os.path.join(os.path.dirname(local_path), new_staging_name())
        try:
            for _ in range(3):
                with suppress(Refused):  # somebody replaced the object meanwhile: begin again
                    crc32 = self._download(target, temporary)
                    if crc32 is not None:
                        os.replace(temporary, local_path)
                        return crc32
            raise s3_errors.damaged(key, self._client.where(target))
        except OSError as e:
            raise translate_restored(e, f"fetching {key} to {local_path}") from e
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _download(self, target: str, path: str) -> int | None:
        """Write the object to `path`, and return the CRC-32 of its bytes.

        None if the bytes differ from those that the put stored.
        """
        first_bytes = self._settings.multipart_bytes
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            try:
                answer = self._retry.run(
                    "GetObject", lambda: self._get_range(target, 0, first_bytes)
                )
            except Refused:
                # There is no first byte: S3 gives no range of an empty object.
                return 0 if self._head(target)["ContentLength"] == 0 else None
            total, tag = _total_bytes(answer), answer["ETag"]
            first = min(first_bytes, total) if "ContentRange" in answer else total
            rest = [
                (first + start, length)
                for start, length in plan_parts(total - first, self._settings.part_bytes)
            ]
            bodies: list[Any] = [answer["Body"]]

            def first_part() -> int:
                body = bodies.pop() if bodies else self._get_range(target, 0, first, tag)["Body"]
                return self._copy(body, target, descriptor, 0, first)

            def part(start: int, length: int) -> int:
                def attempt() -> int:
                    body = self._get_range(target, start, length, tag)["Body"]
                    return self._copy(body, target, descriptor, start, length)

                return self._retry.run("GetObject", attempt)

            futures = self._parallel.start([partial(part, *piece) for piece in rest])
            try:
                crc32 = self._retry.run("GetObject", first_part)
                for future, (_, length) in zip(futures, rest, strict=True):
                    crc32 = joined_crc32(crc32, future.result(), length)
            finally:
                self._parallel.end(futures)
        finally:
            os.close(descriptor)
        expected = answer.get("Metadata", {}).get(_CRC)
        return crc32 if expected is None or int(expected, 16) == crc32 else None

    def _copy(self, body: Any, target: str, descriptor: int, start: int, length: int) -> int:
        """Write a body of `length` bytes to its place in the file. Return its CRC-32."""
        copied, crc32 = 0, 0
        while data := self._receive(body, target, _CHUNK_BYTES):
            os.pwrite(descriptor, data, start + copied)
            crc32 = zlib.crc32(data, crc32)
            copied += len(data)
        if copied != length:
            short = (
                f"{self._client.where(target)}: GetObject: {copied} bytes came, {length} were"
                " asked for"
            )
            raise TransientError(UnavailableError(short, kind=ErrorKind.STORAGE_UNAVAILABLE))
        return crc32

    def stat(self, key: str) -> ObjectInfo:
        answer = self._head(self._key(key))
        return ObjectInfo(
            key,
            answer["ContentLength"],
            _ms(answer["LastModified"]),
            answer.get("ETag", "").strip('"'),
        )

    def _head(self, target: str, retry: Retry | None = None) -> Any:
        def head() -> Any:
            return self._send("HeadObject", target, Key=target, **self._client.read_args)

        return (retry or self._retry).run("HeadObject", head)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        start = self._root + prefix
        token: str | None = None
        while True:
            page = self._call(
                "ListObjectsV2",
                start,
                Prefix=start,
                ContinuationToken=token,
                **self._client.read_args,
            )
            for entry in page.get("Contents", ()):
                key: str = entry["Key"][len(self._root) :]
                # Consoles and Hadoop make empty objects as directories. They are none of ours.
                if key and not key.endswith("/"):
                    modified_ms, tag = _ms(entry["LastModified"]), entry.get("ETag", "").strip('"')
                    yield ObjectInfo(key, entry["Size"], modified_ms, tag)
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or token is None:
                return

    # ---- deleting

    def delete(self, keys: Iterable[str]) -> None:
        targets = [self._key(key) for key in keys]
        for start in range(0, len(targets), _DELETE_BATCH):
            batch = targets[start : start + _DELETE_BATCH]

            def attempt(batch: list[str] = batch) -> None:
                objects = [{"Key": target} for target in batch]
                delete = {"Objects": objects, "Quiet": True}
                answer = self._send(
                    "DeleteObjects", batch[0], Delete=delete, **self._client.read_args
                )
                for error in answer.get("Errors", ()):
                    where = self._client.where(error.get("Key", ""))
                    code = error.get("Code", "")
                    if code not in ("NoSuchKey", "NoSuchVersion"):
                        raise s3_errors.classify(
                            "DeleteObjects", where, code, 200, error.get("Message", "")
                        )

            self._retry.run("DeleteObjects", attempt)

    def local_path(self, key: str) -> str | None:
        check_key(key)
        return None

    # ---- requests

    def _send(self, operation: str, target: str, **parameters: Any) -> Any:
        self.usage.sent(operation, len(parameters.get("Body", b"")))
        return self._client.call(operation, target, **parameters)

    def _receive(self, body: Any, target: str, amount: int | None = None) -> bytes:
        data = self._client.read_some(body, target, amount)
        self.usage.received(len(data))
        return data

    def _key(self, key: str) -> str:
        target = self._root + check_key(key)
        if len(target.encode()) > MAX_KEY_BYTES:
            raise InvalidInputError(
                f"{self._client.where(target)}: a key of {len(target.encode())} bytes, S3 allows"
                f" {MAX_KEY_BYTES}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Shorten the path of the Spark checkpoint.",
            )
        return target

    def _call(self, operation: str, target: str, **parameters: Any) -> Any:
        return self._retry.run(operation, lambda: self._send(operation, target, **parameters))


def _metadata(crc32: int) -> dict[str, str]:
    return {_PUT: uuid.uuid4().hex, _CRC: f"{crc32:08x}"}


def _checksum(crc32: int) -> str:
    return base64.b64encode(crc32.to_bytes(4, "big")).decode("ascii")


def _ms(moment: Any) -> int:
    # Whole seconds: a listing may have milliseconds, the answer about one object has none.
    return int(moment.timestamp()) * 1000


def _total_bytes(answer: Any) -> int:
    content_range = answer.get("ContentRange")
    return int(content_range.rpartition("/")[2]) if content_range else int(answer["ContentLength"])
