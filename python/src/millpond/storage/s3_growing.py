"""A put on S3 that begins while its file still grows.

It is a multipart upload. Once the file is large, each part that is complete is sent by a thread of
the background. The first part is not: it holds the header of the file, which is written last. So
`finish` sends the first part, the last part, and those that did not get through.

What goes wrong in the background costs no more than what was sent. A part has one attempt there.
After a failure nothing more is sent before `finish`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError
from millpond.storage import s3_errors
from millpond.storage.parallel import Parallel
from millpond.storage.parts import MAX_PARTS, plan_parts
from millpond.storage.retry import TransientError
from millpond.storage.s3_client import Refused
from millpond.storage.s3_requests import S3Requests
from millpond.storage.s3_uploads import S3Upload

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger(__name__)


class S3GrowingPut:
    """Puts one file. Thread-safe.

    Args:
        target: the object's whole key in the bucket.
        local_path: what it has from byte `fixed_from` on never changes.
        metadata: of the object.
        least_bytes: nothing is sent before the file is larger than this.
        part_bytes: of each part but the last. Servers differ about parts of several lengths.
        ahead: runs what is sent before `finish`.
        parallel: runs what `finish` sends.
        settled: runs the request that makes the object, and makes sure that it did. Raises
            ConflictError if it did not.
    """

    def __init__(
        self,
        requests: S3Requests,
        target: str,
        local_path: str,
        metadata: dict[str, str],
        *,
        fixed_from: int,
        least_bytes: int,
        part_bytes: int,
        ahead: Parallel,
        parallel: Parallel,
        settled: Callable[[Callable[[str | None], None]], None],
    ) -> None:
        self._requests, self._target, self._path = requests, target, local_path
        self._metadata, self._least_bytes, self._part_bytes = metadata, least_bytes, part_bytes
        self._ahead, self._parallel, self._settled = ahead, parallel, settled
        self._once = replace(requests.retry, deadline_ms=0)
        self._lock = threading.Lock()  # for the next five
        self._next = max(2, -(-fixed_from // part_bytes) + 1)  # number of the part to send next
        self._futures: list[Future[None]] = []
        self._parts: dict[int, dict[str, Any]] = {}
        self._closed = False
        self._failed = False
        self._beginning = threading.Lock()
        self._upload: S3Upload | None = None

    def grown(self, size_bytes: int) -> None:
        """Note that the file has so many bytes, and send the parts that are complete."""
        if size_bytes <= self._least_bytes:
            return
        with self._lock:
            while self._is_wanted() and self._next * self._part_bytes <= size_bytes:
                # Only the number waits in the queue: a thread reads the bytes when it sends them.
                self._futures += self._ahead.start([partial(self._send_ahead, self._next)])
                self._next += 1

    def finish(self) -> bool:
        """Send what is left, and make the object. False: there is none.

        Raises: UnavailableError: STORAGE_UNAVAILABLE.
        """
        if not self._close():
            return False
        self._wait()
        upload = self._upload
        if upload is None:
            return False
        made = False
        try:
            made = self._make(upload)
        except (MillpondError, Refused, OSError) as e:
            if isinstance(e.__cause__, TransientError):  # the server does not answer
                raise
            self._give_up("cannot be completed", e)
        finally:
            if not made:
                upload.abort()
        return made

    def abandon(self) -> None:
        """Throw away what was sent. Does not wait for it."""
        if self._close():
            self._ahead.start([self._throw_away])

    def _close(self) -> bool:
        """Whether this call ends the put: one of `finish` and `abandon` does."""
        with self._lock:
            first, self._closed = not self._closed, True
            return first

    def _is_wanted(self) -> bool:
        return not self._closed and not self._failed and self._next <= MAX_PARTS

    def _send_ahead(self, number: int) -> None:
        if self._closed or self._failed:
            return
        try:
            upload = self._begun()
            if upload is None:
                return
            start = (number - 1) * self._part_bytes
            data = self._bytes(start, self._part_bytes)
            sent = upload.part(number, data, retry=self._once)
        except (MillpondError, OSError) as e:
            self._give_up("is not sent before it is complete", e)
            self._failed = True
        else:
            with self._lock:
                self._parts[number] = sent

    def _begun(self) -> S3Upload | None:
        """Return the upload; None if another thread could not begin it."""
        with self._beginning:
            if self._upload is None and not self._failed:
                try:
                    self._upload = S3Upload.begin(
                        self._requests, self._target, self._metadata, self._once
                    )
                except MillpondError:
                    self._failed = True
                    raise
            return self._upload

    def _make(self, upload: S3Upload) -> bool:
        size_bytes = os.path.getsize(self._path)
        if size_bytes > MAX_PARTS * self._part_bytes:
            return False
        pieces = dict(enumerate(plan_parts(size_bytes, self._part_bytes), start=1))

        def send(number: int) -> dict[str, Any]:
            data = self._bytes(*pieces[number])
            return upload.part(number, data, expect=s3_errors.NO_UPLOAD)

        missing = [number for number in pieces if number not in self._parts]
        sent = self._parallel.run([partial(send, number) for number in missing])
        self._parts.update(zip(missing, sent, strict=True))
        parts = [self._parts[number] for number in pieces]
        self._settled(lambda condition: upload.complete(parts, condition))
        return True

    def _throw_away(self) -> None:
        self._wait()
        if self._upload is not None:
            self._upload.abort()

    def _wait(self) -> None:
        """Wait for the parts in flight. Nobody begins another one."""
        Parallel.end(self._futures)
        for future in self._futures:
            if not future.cancelled():
                future.result()

    def _bytes(self, start: int, length: int) -> bytes:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, length, start)
        finally:
            os.close(descriptor)
        if len(data) != length:
            raise OSError(f"{self._path} has no {length} bytes at {start}")
        return data

    def _give_up(self, what: str, error: Exception) -> None:
        where = self._requests.client.where(self._target)
        log.warning("%s: the upload of a file that grows %s: %s", where, what, error)
