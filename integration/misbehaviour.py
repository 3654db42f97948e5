"""A processor of Python's `transformWithState` that does what no job should, in a way that its
argument names. It is the same on every transport.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

OUTPUT = "k string, n long"
_COUNT = StructType([StructField("n", LongType())])
_TEXT = StructType([StructField("s", StringType()), StructField("n", LongType())])


class Large(StatefulProcessor):
    """Gets a long text for each key, and ends at the first key, in the way that `how` says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", _COUNT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.count.update((len(row["text"]),))
            yield Row(k=str(key[0]), n=1)
            if self.how == "raises":
                raise ValueError("with much left unread")
            if self.how == "is-killed":
                os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        return


class Catching(StatefulProcessor):
    """Counts rows, and catches the error of a call for the key `bad`."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", _COUNT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.count.update((sum(1 for _ in rows),))
        if key[0] == "bad":
            with contextlib.suppress(Exception):
                self.handle.getValueState("late", _COUNT)
        yield Row(k=key[0], n=1)

    def close(self) -> None:
        return


class Misbehaving(StatefulProcessor):
    """Counts rows, and registers a timer for each key. The key `bad` gets the misbehaviour.

    `pid_file` is where it says which process it runs in, before it sleeps.
    """

    def __init__(self, form: str, how: str, pid_file: Path) -> None:
        self.form, self.how, self.pid_file = form, how, pid_file

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", _COUNT)
        self.all = handle.getListState("all", _TEXT)
        self.latest = handle.getMapState("latest", _COUNT, _TEXT)
        self.on_executor = TaskContext.get() is not None
        if self.how == "init" or (self.how == "init-on-executor" and self.on_executor):
            raise ValueError("from init")
        if self.how == "no-handle":
            handle.getValueState("count", _TEXT)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        if key[0] == "bad" and self.how == "returns-none":
            return None
        if key[0] == "bad" and self.how == "returns-number":
            return 5
        if key[0] == "bad" and self.how == "raises-at-once":
            raise ValueError("before a generator")
        return self.rows(key, rows, timerValues)

    def rows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        seen = sum(len(f) for f in rows) if self.form == "pandas" else sum(1 for _ in rows)
        before = self.count.get()
        n = ((before[0] if before else 0) or 0) + seen  # a value may be one of null
        self.count.update((n,))
        self.all.appendValue((key[0], n))
        self.latest.updateValue((n,), (key[0], n))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1000)
        yield self.out(k=key[0], n=n)
        if key[0] == "bad":
            found = getattr(self, self.how.replace("-", "_"), None)
            if found is not None:
                yield from found() or ()
        yield self.out(k=key[0], n=-n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        if key[0] == "bad" and self.how == "stops-in-timer":
            next(iter(()))  # in no generator
        return self.expired(key)

    def expired(self, key: Any) -> Iterator[Any]:
        yield self.out(k=key[0], n=0)
        self.all.clear()
        if key[0] == "bad" and self.how == "raises-in-timer":
            raise KeyError("from a timer")

    def close(self) -> None:
        if self.how == "raises-in-close" and self.on_executor:
            raise OSError("from close")
        if self.how == "reads-in-close" and self.on_executor:
            self.count.get()

    def out(self, **columns: Any) -> Any:
        return pd.DataFrame([columns]) if self.form == "pandas" else Row(**columns)

    def raises(self) -> None:
        raise ValueError("from the middle of a generator: ü€")

    def raises_stop_iteration(self) -> None:
        next(iter(()))

    def exits(self) -> None:
        raise SystemExit("from user code")

    def dies(self) -> None:
        os._exit(3)

    def is_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def exhausts_memory(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))
        try:
            bytearray(64 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def sleeps(self) -> None:
        hidden = self.pid_file.with_suffix(".part")
        hidden.write_text(str(os.getpid()))
        hidden.rename(self.pid_file)
        time.sleep(60)

    def forks(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        raise ValueError("after a fork")

    def column_too_few(self) -> Iterator[Any]:
        yield self.out(k="x")

    def column_too_many(self) -> Iterator[Any]:
        yield self.out(k="x", n=1, more=2)

    def other_names(self) -> Iterator[Any]:
        yield self.out(a="x", b=1)

    def wrong_type(self) -> Iterator[Any]:
        yield 5

    def a_dict(self) -> Iterator[Any]:
        yield {"k": "x", "n": 1}

    def text_for_a_number(self) -> Iterator[Any]:
        yield self.out(k="x", n="no number")

    def number_for_a_text(self) -> Iterator[Any]:
        yield self.out(k=5, n=1)

    def too_large_a_number(self) -> Iterator[Any]:
        yield self.out(k="x", n=2**70)

    def state_of_text_for_a_number(self) -> None:
        self.count.update(("no number",))

    def state_of_a_float_for_a_number(self) -> None:
        self.count.update((1.5,))

    def state_of_too_large_a_number(self) -> None:
        self.count.update((2**70,))

    def state_too_short(self) -> None:
        self.all.appendValue(("x",))

    def state_too_long(self) -> None:
        self.count.update((1, 2))

    def state_of_none(self) -> None:
        self.count.update(None)

    def state_of_a_number(self) -> None:
        self.count.update(5)

    def empty_put(self) -> None:
        self.all.put([])

    def list_of_numbers(self) -> None:
        self.all.appendList([1, 2])

    def map_key_of_text(self) -> None:
        self.latest.updateValue(("no number",), ("x", 1))

    def map_key_too_long(self) -> None:
        self.latest.getValue((1, 2))

    def map_key_of_none(self) -> None:
        self.latest.updateValue((None,), ("x", 1))

    def map_value_of_none(self) -> None:
        self.latest.updateValue((1,), None)

    def timer_of_text(self) -> None:
        self.handle.registerTimer("soon")

    def timer_of_a_float(self) -> None:
        self.handle.registerTimer(1.5)

    def timer_of_none(self) -> None:
        self.handle.deleteTimer(None)

    def variable_too_late(self) -> None:
        self.handle.getValueState("late", _COUNT)

    def deletes_itself(self) -> None:
        self.handle.deleteIfExists("count")
