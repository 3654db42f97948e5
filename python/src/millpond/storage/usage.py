"""Counts the requests to a storage by price class, and their bytes.

Every attempt counts, because S3 charges for every attempt.
"""

from __future__ import annotations

import threading
from collections import Counter

from millpond.storage.base import Storage

_CLASSES = {
    "PutObject": "put_requests",
    "CopyObject": "put_requests",
    "CreateMultipartUpload": "put_requests",
    "UploadPart": "put_requests",
    "CompleteMultipartUpload": "put_requests",
    "GetObject": "get_requests",
    "HeadObject": "get_requests",
    "ListObjectsV2": "list_requests",
    "ListMultipartUploads": "list_requests",
    "DeleteObjects": "delete_requests",
    "AbortMultipartUpload": "delete_requests",
}


class Usage:
    """Counters. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def sent(self, operation: str, size_bytes: int = 0) -> None:
        """Count one request of S3's API with a body of `size_bytes`."""
        with self._lock:
            self._counts[_CLASSES[operation]] += 1
            self._counts["sent_bytes"] += size_bytes

    def failed(self) -> None:
        """Count one request that failed and may be sent again."""
        with self._lock:
            self._counts["failed_requests"] += 1

    def received(self, size_bytes: int) -> None:
        """Count `size_bytes` of a body that came."""
        with self._lock:
            self._counts["received_bytes"] += size_bytes

    def take(self) -> dict[str, int]:
        """Return the counts since the last call, without those that are 0.

        Names: `put_requests`, `get_requests`, `list_requests`, `delete_requests`,
        `failed_requests`, `sent_bytes`, `received_bytes`.
        """
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {name: count for name, count in counts.items() if count}


def usage_of(storage: Storage) -> Usage | None:
    """Return the counters of a storage; None if it has none."""
    usage = getattr(storage, "usage", None)
    return usage if isinstance(usage, Usage) else None
