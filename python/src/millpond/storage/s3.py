"""Storage on S3, and on servers with S3's API.

`s3_client` alone knows boto3, and sends one request. `s3_requests` repeats requests until a
deadline; puts and deletions are idempotent. `s3_puts` makes objects, `s3_downloads` brings them to
the local disk.

Source: docs/guides/s3.md; AWS, "Conditional writes" and "Checking object integrity".
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format.layout import new_staging_name
from millpond.storage import s3_errors
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.growing import GrowingPut
from millpond.storage.keys import check_key, check_prefix, check_range, no_file
from millpond.storage.local import translate_restored
from millpond.storage.parallel import Parallel
from millpond.storage.retry import Retry
from millpond.storage.s3_client import Refused, S3Client
from millpond.storage.s3_downloads import download
from millpond.storage.s3_puts import S3Puts
from millpond.storage.s3_requests import S3Requests, crc32_of
from millpond.storage.s3_uploads import drop_unfinished
from millpond.storage.settings import S3Settings

MAX_KEY_BYTES = 1024
# Room for the longest key below a root: state/<op>/<partition>/<store>/sst/<uuid>.sst.
_RESERVED_BYTES = 300
_DELETE_BATCH = 1000


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
        self._client = client if client is not None else S3Client(bucket, settings)
        self._requests = S3Requests(self._client, retry if retry is not None else Retry())
        self.usage = self._requests.usage
        self._parallel = Parallel(settings.connections)
        # Files that grow leave connections, threads and memory to what somebody waits for.
        self._ahead = Parallel(max(1, settings.connections // 4))
        self._puts = S3Puts(self._requests, self._parallel, settings)
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
                    self._puts.put_parts(target, file.fileno(), local_path, if_absent)
                    return
                data = file.read()
        except (FileNotFoundError, IsADirectoryError) as e:
            raise no_file(local_path) from e
        except OSError as e:
            raise translate_restored(e, f"reading {local_path}") from e
        self._puts.put(target, data, if_absent)

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self._puts.put(self._key(key), data, if_absent)

    def growing_put(self, key: str, local_path: str, fixed_from: int) -> GrowingPut:
        return self._puts.growing(self._key(key), local_path, fixed_from, self._ahead)

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        target = self._key(key)
        if not isinstance(source, S3Storage) or not source._client.shares_server_with(self._client):
            return None
        return self._puts.copy(source._requests, source._key(source_key), target)

    # ---- reading

    def read(self, key: str) -> bytes:
        target = self._key(key)

        def fetch() -> tuple[bytes, int | None]:
            answer = self._requests.send("GetObject", target, Key=target, **self._client.read_args)
            return self._requests.receive(answer["Body"], target), crc32_of(answer)

        for _ in range(2):  # if the network damaged the bytes, the second time they are whole
            data, expected = self._requests.retry.run(f"GetObject {key}", fetch)
            if expected in (None, zlib.crc32(data)):
                return data
        raise s3_errors.damaged(key, self._client.where(target))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        target = self._key(key)
        check_range(key, start, length)
        if length == 0:
            self._requests.head(target)
            return b""

        def fetch() -> bytes:
            answer = self._requests.get_range(target, start, length)
            data = self._requests.receive(answer["Body"], target)
            return data if "ContentRange" in answer else data[start : start + length]

        try:
            return self._requests.retry.run(f"GetObject {key}", fetch)
        except Refused:
            return b""  # the object ends before `start`

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> int:
        target = self._key(key)
        temporary = os.path.join(os.path.dirname(local_path), new_staging_name())
        try:
            for _ in range(3):
                with suppress(Refused):  # somebody replaced the object meanwhile: begin again
                    crc32 = download(
                        self._requests, self._parallel, self._settings, target, temporary
                    )
                    if crc32 is not None:
                        os.replace(temporary, local_path)
                        return crc32
            raise s3_errors.damaged(key, self._client.where(target))
        except OSError as e:
            raise translate_restored(e, f"fetching {key} to {local_path}") from e
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def stat(self, key: str) -> ObjectInfo:
        answer = self._requests.head(self._key(key))
        return ObjectInfo(
            key,
            answer["ContentLength"],
            _ms(answer["LastModified"]),
            answer.get("ETag", "").strip('"'),
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # Some servers list folder by folder: `a/b` before `a-z`.
        return iter(sorted(self.list_by_pages(prefix), key=lambda info: info.key))

    def list_by_pages(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        start = self._root + prefix
        token: str | None = None
        while True:
            page = self._requests.call(
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
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token:
                # What is not listed would count as absent.
                raise s3_errors.endless(self._client.where(start))

    # ---- deleting

    def delete(self, keys: Iterable[str]) -> None:
        targets = [self._key(key) for key in keys]
        for start in range(0, len(targets), _DELETE_BATCH):
            batch = targets[start : start + _DELETE_BATCH]

            def attempt(batch: list[str] = batch) -> None:
                objects = [{"Key": target} for target in batch]
                # Without Quiet: a good answer to that one says nothing either.
                answer = self._requests.send(
                    "DeleteObjects",
                    batch[0],
                    Delete={"Objects": objects},
                    **self._client.read_args,
                )
                for error in answer.get("Errors", ()):
                    where = self._client.where(error.get("Key", ""))
                    code = error.get("Code", "")
                    if code not in ("NoSuchKey", "NoSuchVersion"):
                        raise s3_errors.classify(
                            "DeleteObjects", where, code, 200, error.get("Message", "")
                        )

            self._requests.retry.run("DeleteObjects", attempt)

    def drop_unfinished(self, prefix: str, begun_before_ms: int) -> int:
        return drop_unfinished(self._requests, self._root + check_prefix(prefix), begun_before_ms)

    def local_path(self, key: str) -> str | None:
        check_key(key)
        return None

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


def _ms(moment: Any) -> int:
    # Whole seconds: a listing may have milliseconds, the answer about one object has none.
    return int(moment.timestamp()) * 1000
