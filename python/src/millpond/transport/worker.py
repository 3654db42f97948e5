"""What a Python worker of Spark runs: the phases of one partition."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from millpond.transport import wire as kinds
from millpond.transport.client import Handle
from millpond.transport.collector import spare_what_stays
from millpond.transport.forms import Form
from millpond.transport.key_frames import KeyFrames
from millpond.transport.key_zone import check_zone
from millpond.transport.row_form import RowForm, key_reader
from millpond.transport.session import Session
from millpond.transport.spark_names import (
    Client,
    Command,
    StatefulProcessorHandleState,
    fail_on_stopiteration,
)
from millpond.transport.wire import Wire, send_at_once

_MakesForm = Callable[[StructType, dict[str, Any]], Form]


def serve(command: bytes, settings: str) -> tuple[Any, None, Any, Any]:
    """Return what `entry.begin` returns. All that a partition needs is imported when it returns."""
    found = json.loads(settings)
    if found["pandas"]:
        check_zone(_key_schema(found), found["runner_conf"]["spark.sql.session.timeZone"])
    spare_what_stays()
    return _second, None, _Streams(), _Conversation(command, found, _form(found["pandas"]))


@dataclass(frozen=True, slots=True)
class _Input:
    """The worker's input. Spark's worker would close a stream, and so its socket."""

    stream: BinaryIO


def _second(_: int, found: _Input) -> _Input:
    return found


class _Streams:
    """A deserializer that does nothing: the conversation reads for itself."""

    def load_stream(self, stream: BinaryIO) -> _Input:
        return _Input(stream)


class _Conversation:
    """A serializer that, asked to write results, leads the whole conversation."""

    def __init__(self, command: bytes, settings: dict[str, Any], form: _MakesForm) -> None:
        self._command = command
        self._settings = settings
        self._form = form

    def dump_stream(self, found: _Input, stream_out: BinaryIO) -> None:
        send_at_once(stream_out)
        wire, settings = Wire(found.stream, stream_out), self._settings
        partition = Partition(wire, Command(self._command), settings, self._form)
        fail_on_stopiteration(partition.run)()


def _key_schema(settings: dict[str, Any]) -> StructType:
    return StructType.fromJson(json.loads(settings["key_schema"]))


def _form(pandas: bool) -> _MakesForm:
    if not pandas:
        return RowForm
    # a worker of rows does without pandas, whose import takes long
    from millpond.transport.pandas_form import PandasForm

    return PandasForm


class Partition:
    """One partition of one batch, phase by phase."""

    def __init__(
        self, wire: Wire, command: Command, settings: dict[str, Any], form: _MakesForm
    ) -> None:
        self._processor = command.processor
        self._time_mode = command.time_mode
        self._wire = wire
        self._session = Session(wire)
        self._key_schema = _key_schema(settings)
        self._client = Client(self._session, self._key_schema)
        self._handle = Handle(
            self._client, self._session, self._time_mode, nulls=settings["nulls_within"]
        )
        self._settings = settings
        self._form = form(command.return_type, settings)
        self._session.output = self._form

    def run(self) -> None:
        """Lead the conversation to its end."""
        self._processor.init(self._handle)
        self._client.set_handle_state(StatefulProcessorHandleState.INITIALIZED)
        self._wire.ready(self._handle.declared, self._form.schema.serialize().to_pybytes())
        self._times = TimerValues(*self._client.get_timestamps(self._time_mode))
        if "initial_offsets" in self._settings:
            self._initial_state(self._settings["initial_offsets"])
        self._input_rows(self._settings["offsets"])
        self._client.set_handle_state(StatefulProcessorHandleState.DATA_PROCESSED)
        self._timers()
        self._client.set_handle_state(StatefulProcessorHandleState.TIMER_PROCESSED)
        self._client.remove_implicit_key()
        self._handle.leave_keys()
        self._processor.close()
        self._client.set_handle_state(StatefulProcessorHandleState.CLOSED)
        self._wire.done(self._session.user_nanos)

    def _initial_state(self, offsets: list[int]) -> None:
        """Handle the phase of the initial state."""
        for key, rows in KeyFrames(self._session, self._handle, self._form, offsets):
            for row in rows:
                self._processor.handleInitialState(key, row, self._times)

    def _input_rows(self, offsets: list[int]) -> None:
        """Handle the phase of rows."""
        session, times, handle_rows = self._session, self._times, self._processor.handleInputRows
        add, key_done = self._form.add, self._form.key_done
        for key, rows in KeyFrames(session, self._handle, self._form, offsets):
            add(iter(handle_rows(key, rows, times)), session)
            key_done()

    def _expired(self, key: Any, time_ms: int) -> Iterator[Any]:
        """Handle one timer. Spark calls the user's code within a generator, too: a StopIteration
        there becomes a RuntimeError.
        """
        yield from self._processor.handleExpiredTimer(
            key=key, timerValues=self._times, expiredTimerInfo=ExpiredTimerInfo(time_ms)
        )

    def _timers(self) -> None:
        """Handle the phase of expired timers."""
        session, handle, add = self._session, self._handle, self._form.add
        shown = key_reader(self._key_schema)
        while (payload := self._wire.next())[0] != kinds.PHASE_OVER:
            began = time.perf_counter_ns()
            keys, expired, states = pickle.loads(memoryview(payload)[1:])
            begins = handle.beginnings(states)
            kept: list[Any] = [None] * len(keys)
            several = len(expired) > 2 * len(keys)  # a key's next timer needs what it left
            for at, time_ms in zip(expired[::2], expired[1::2], strict=True):
                session.key = session.next_key + at
                if kept[at] is None:
                    for begin_key, values in begins:
                        begin_key(values[at])
                else:
                    handle.begin_again(kept[at])
                add(self._expired(shown(keys[at]), time_ms), session)
                session.timer_fired()
                if several:
                    kept[at] = handle.leave()
            self._form.key_done()
            session.next_key += len(keys)
            session.keys_done += len(keys)
            session.user_nanos += time.perf_counter_ns() - began
            session.flush(consumed=True, with_rows=True)
        session.key = -1
        session.flush(phase_over=True, with_rows=True)
