"""Brings an object from S3 into a local file: a large one in parts, side by side.

The first request tells how long the object is, and its tag. The others ask for that tag, so all
bytes are of one put.
"""

from __future__ import annotations

import os
import zlib
from functools import partial
from typing import Any

from millpond.errors import ErrorKind, UnavailableError
from millpond.format.checksums import joined_crc32
from millpond.storage.parallel import Parallel
from millpond.storage.parts import plan_parts
from millpond.storage.retry import TransientError
from millpond.storage.s3_client import Refused
from millpond.storage.s3_requests import S3Requests, crc32_of
from millpond.storage.settings import S3Settings

_CHUNK_BYTES = 1024 * 1024


def download(
    requests: S3Requests, parallel: Parallel, settings: S3Settings, target: str, path: str
) -> int | None:
    """Write the object to `path`, and return the CRC-32 of its bytes.

    None if the bytes differ from those that the put stored.

    Raises: Refused: somebody replaced the object meanwhile.
    """
    first_bytes = settings.multipart_bytes
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            answer = requests.retry.run(
                "GetObject", lambda: requests.get_range(target, 0, first_bytes)
            )
        except Refused:
            # There is no first byte: S3 gives no range of an empty object.
            return 0 if requests.head(target)["ContentLength"] == 0 else None
        total, tag = _total_bytes(answer), answer["ETag"]
        first = min(first_bytes, total) if "ContentRange" in answer else total
        rest = [
            (first + start, length)
            for start, length in plan_parts(total - first, settings.part_bytes)
        ]
        bodies: list[Any] = [answer["Body"]]

        def first_part() -> int:
            body = bodies.pop() if bodies else requests.get_range(target, 0, first, tag)["Body"]
            return _copy(requests, body, target, descriptor, 0, first)

        def part(start: int, length: int) -> int:
            def attempt() -> int:
                body = requests.get_range(target, start, length, tag)["Body"]
                return _copy(requests, body, target, descriptor, start, length)

            return requests.retry.run("GetObject", attempt)

        futures = parallel.start([partial(part, *piece) for piece in rest])
        try:
            crc32 = requests.retry.run("GetObject", first_part)
            for future, (_, length) in zip(futures, rest, strict=True):
                crc32 = joined_crc32(crc32, future.result(), length)
        finally:
            parallel.end(futures)
    finally:
        os.close(descriptor)
    return crc32 if crc32_of(answer) in (None, crc32) else None


def _copy(
    requests: S3Requests, body: Any, target: str, descriptor: int, start: int, length: int
) -> int:
    """Write a body of `length` bytes to its place in the file. Return its CRC-32."""
    copied, crc32 = 0, 0
    while data := requests.receive(body, target, _CHUNK_BYTES):
        os.pwrite(descriptor, data, start + copied)
        crc32 = zlib.crc32(data, crc32)
        copied += len(data)
    if copied != length:
        short = (
            f"{requests.client.where(target)}: GetObject: {copied} bytes came, {length} were"
            " asked for"
        )
        raise TransientError(UnavailableError(short, kind=ErrorKind.STORAGE_UNAVAILABLE))
    return crc32


def _total_bytes(answer: Any) -> int:
    content_range = answer.get("ContentRange")
    return int(content_range.rpartition("/")[2]) if content_range else int(answer["ContentLength"])
