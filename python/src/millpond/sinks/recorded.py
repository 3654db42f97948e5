"""What the driver wrote down of a query's sink when the query was started.

    millpond/sink.json    {"sink": "file", "path", "compact_interval", "run_id"}, or {"sink": <class of the sink>, "run_id"}

Written anew at every start, before the first task; a savepoint has the same in its index. It is a hint: what it says of another
machine's paths, or what a stranger wrote into a savepoint, is shown and compared, and written to only if it is the query's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond import layout
from millpond.errors import NotFoundError
from millpond.storage import Storage

FILE = "file"


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a query writes to.

    kind: `file`, or the class of another sink. path, compact_interval: of a file sink alone; the interval is the session's
    spark.sql.streaming.fileSink.log.compactInterval.
    """

    kind: str
    path: str | None = None
    compact_interval: int | None = None

    @property
    def is_file(self) -> bool:
        """Whether it keeps a log that must hold every batch number."""
        return self.kind == FILE and self.path is not None

    def to_json(self) -> dict[str, Any]:
        """Return the sink as JSON values; `sink_of` reads them."""
        if not self.is_file:
            return {"sink": self.kind}
        return {"sink": self.kind, "path": self.path, "compact_interval": self.compact_interval}


def sink_of(value: object) -> Sink | None:
    """Return the sink that JSON values describe, None if they describe none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("sink"), str):
        return None
    path, interval = value.get("path"), value.get("compact_interval")
    if not isinstance(path, str):
        return Sink(value["sink"]) if value["sink"] != FILE else None
    good = isinstance(interval, int) and not isinstance(interval, bool) and interval > 0
    return Sink(value["sink"], path, interval if good else None)


def record(sink: Sink) -> bytes:
    """Return the content of `millpond/sink.json` of a Spark checkpoint that no query has been started with yet."""
    return json.dumps(sink.to_json(), separators=(",", ":")).encode()


def read_sink(storage: Storage) -> Sink | None:
    """Return what the last start of the query wrote down, None if no start did: it was one of an older version, or without
    Millpond's session extension."""
    try:
        return sink_of(json.loads(storage.read(layout.SINK_KEY)))
    except (NotFoundError, ValueError):
        return None  # a file that is just being written is no part of the state
