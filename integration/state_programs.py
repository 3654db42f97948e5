"""Programs of calls of the state API: data that one processor interprets.

A row of the input carries a program for its key. So one query runs as many programs as it has
keys, batch for batch. The output is all that the calls returned. A program is a list of steps:

    ["value0", "update", 3]            a call of a state variable; numbers are of its pool of values
    ["open", 1, "map0", "iterator"]    open an iterator in a slot
    ["next", 1, 5], ["drain", 1]       take five items from it; take the rest, and count them
    ["timer", 2000], ["untimer", 2000] relative to the batch's time, in ms
    ["timers"], ["now"]                list the timers of the key; the batch's times
    ["yield"], ["many", 300]           yield what was returned since; yield that many rows
    ["stop"]                           read no further input row
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from integration.cases import NO_EMPTY_BATCHES, Case, at, transform_with_state
from integration.state_values import POOLS, shown

Step = list[Any]
Program = list[Step]

PROGRAMS = pa.schema(
    [("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("program", pa.string())]
)
OUTPUT = "k string, what string, state string"
_END: Any = object()


@dataclass(frozen=True)
class Variable:
    """A state variable. `key` and `value` name pools; only a map has a key."""

    kind: str
    name: str
    value: str
    key: str = ""
    ttl_ms: int | None = None


def variables(kinds: Sequence[str], pools: Sequence[str], ttl_ms: Sequence[int | None]) -> Any:
    """Return variables of `kinds`, which take turns with the pools and the times to live."""
    keys = ("text", "pair", "floats", "deep_key", "bytes", "exact", "long")
    found = []
    for i, kind in enumerate(kinds):
        ttl = ttl_ms[i % len(ttl_ms)]
        key = keys[i % len(keys)] if kind == "map" else ""
        found.append(Variable(kind, f"{kind}{i}", pools[i % len(pools)], key, ttl))
    return tuple(found)


class Interpreter(StatefulProcessor):
    """Runs the programs. `form`: `pandas` or `row`."""

    def __init__(
        self, form: str, time: str, declared: tuple[Variable, ...], fired: tuple[Program, ...] = ()
    ) -> None:
        self.form, self.time, self.declared, self.fired = form, time, declared, fired

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state: dict[str, Any] = {}
        self.kinds = {v.name: v for v in self.declared}
        for v in self.declared:
            value = POOLS[v.value].schema
            if v.kind == "value":
                made = handle.getValueState(v.name, value, v.ttl_ms)
            elif v.kind == "list":
                made = handle.getListState(v.name, value, v.ttl_ms)
            else:
                made = handle.getMapState(v.name, POOLS[v.key].schema, value, v.ttl_ms)
            self.state[v.name] = made

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from self.run(key, "input", self.programs(rows), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        which = (fired // 1000 + len(str(key[0]))) % len(self.fired)
        yield from self.run(key, f"fired {fired}", [self.fired[which]], timerValues)

    def programs(self, rows: Iterable[Any]) -> Iterator[Program]:
        """Yield the programs of the input, reading a row only when its turn has come."""
        for row in rows:
            for text in row["program"] if self.form == "pandas" else [row["program"]]:
                yield json.loads(text)

    def run(self, key: Any, what: str, programs: Iterable[Program], times: Any) -> Iterator[Any]:
        log: list[str] = []
        slots: dict[int, Any] = {}
        for program in programs:
            for step in program:
                name, *rest = step
                if name == "yield":
                    yield self.out(key, what, log)
                    log = []
                elif name == "many":
                    for i in range(rest[0]):
                        yield self.out(key, what, [str(i)])
                elif name == "stop":
                    yield self.out(key, what, [*log, "stop"])
                    return
                else:
                    log.append(f"{name}.{rest[0] if rest else ''}: {self.step(step, slots, times)}")
        if log:
            yield self.out(key, what, log)

    def step(self, step: Step, slots: dict[int, Any], times: Any) -> str:
        """Do one step, and return the text of what it returned."""
        name, *rest = step
        if name == "open":
            slot, variable, method = rest
            slots[slot] = iter(getattr(self.state[variable], method)())
            return "opened"
        if name == "next":
            slot, count = rest
            if slot not in slots:
                return "closed"
            found = [next(slots[slot], _END) for _ in range(count)]
            return shown(["end" if item is _END else item for item in found[:20]])
        if name == "drain":
            found = list(slots.pop(rest[0], ()))
            return f"{len(found)}, the last {shown(found[-1:])}"
        if name == "now":
            processing = times.getCurrentProcessingTimeInMs()
            return shown((processing, times.getCurrentWatermarkInMs()))
        if name == "timers":
            return shown(list(self.handle.listTimers()))
        if name in ("timer", "untimer"):
            now = (
                times.getCurrentWatermarkInMs()
                if self.time == "EventTime"
                else times.getCurrentProcessingTimeInMs()
            )
            call = self.handle.registerTimer if name == "timer" else self.handle.deleteTimer
            return shown(call(now + rest[0]))
        return self.call(name, *rest)

    def call(self, name: str, method: str, *indices: Any) -> str:
        """Call a method of a state variable, and return the text of its result."""
        variable = self.kinds[name]
        value = POOLS[variable.value].values
        arguments: list[Any] = []
        for place, index in enumerate(indices):
            of_key = variable.kind == "map" and place == 0
            values = POOLS[variable.key].values if of_key else value
            arguments.append(
                [values[i % len(values)] for i in index]
                if isinstance(index, list)
                else values[index % len(values)]
            )
        try:
            found = getattr(self.state[name], method)(*arguments)
            if method in _ITERATORS[variable.kind]:
                found = list(found)
        except PySparkRuntimeError as error:  # a user's code may go on after it
            return f"raised {type(error).__name__}: {error}"
        return shown(found)

    def out(self, key: Any, what: str, log: list[str]) -> Any:
        row = {"k": shown(key), "what": what, "state": "; ".join(log)}
        return pd.DataFrame([row]) if self.form == "pandas" else Row(**row)

    def close(self) -> None:
        return


_METHODS = {
    "value": (("get",), ("exists",), ("update", "value"), ("update", "value"), ("clear",)),
    "list": (
        ("get",),
        ("exists",),
        ("put", "values"),
        ("appendValue", "value"),
        ("appendValue", "value"),
        ("appendList", "values"),
        ("clear",),
    ),
    "map": (
        ("exists",),
        ("getValue", "key"),
        ("containsKey", "key"),
        ("updateValue", "key", "value"),
        ("updateValue", "key", "value"),
        ("updateValue", "key", "value"),
        ("removeKey", "key"),
        ("iterator",),
        ("keys",),
        ("values",),
        ("clear",),
    ),
}
_ITERATORS: dict[str, tuple[str, ...]] = {
    "value": (),
    "list": ("get",),
    "map": ("iterator", "keys", "values"),
}


def random_program(random: Random, declared: Sequence[Variable], time: str, length: int) -> Program:
    """Return a program of random calls, with iterators that stay open while state changes."""
    program: Program = []
    for _ in range(random.randint(0, length)):
        variable = random.choice(declared)
        what = random.random()
        if what < 0.7:
            method, *takes = random.choice(_METHODS[variable.kind])
            arguments: list[Any] = [
                [random.randrange(30) for _ in range(random.randint(1, 4))]
                if take == "values"
                else random.randrange(30)
                for take in takes
            ]
            program.append([variable.name, method, *arguments])
        elif what < 0.8 and _ITERATORS[variable.kind]:
            slot = random.randrange(2)
            method = random.choice(_ITERATORS[variable.kind])
            program.append(["open", slot, variable.name, method])
        elif what < 0.86:
            program.append(["next", random.randrange(2), random.randint(1, 3)])
        elif what < 0.95 and time != "None":
            offset = random.choice((-5000, 0, 1, 999, 1000, 1500, 20_000, 40_000))
            program.append(random.choice((["timer", offset], ["untimer", offset], ["timers"])))
        else:
            program.append(random.choice((["yield"], ["now"], ["many", 3], ["stop"])))
    return program


def random_batches(
    random: Random, declared: Sequence[Variable], time: str, *, keys: int, batches: int
) -> list[list[dict[str, Any]]]:
    """Return the input of a query: for each batch, some programs for some of the keys."""
    found: list[list[dict[str, Any]]] = []
    for batch in range(batches):
        rows = [
            _row(f"k{random.randrange(keys)}", batch, random_program(random, declared, time, 14))
            for _ in range(keys)
        ]
        found.append(rows)
    return found


def _row(key: str, batch: int, program: Program) -> dict[str, Any]:
    return {"k": key, "ts": at(30 * batch), "program": json.dumps(program)}


def scripted(*batches: Mapping[str, Program]) -> list[list[dict[str, Any]]]:
    """Return the input of a query from a program for each key, batch for batch."""
    return [
        [_row(key, number, program) for key, program in batch.items()]
        for number, batch in enumerate(batches)
    ]


def case(
    name: str,
    processor: Interpreter,
    batches: list[list[dict[str, Any]]],
    checkpoint_format: int = 2,
    **more: Any,
) -> Case:
    """Return a query that runs the programs."""

    def build(i: list[DataFrame]) -> DataFrame:
        grouped: Any = i[0].withWatermark("ts", "10 seconds").groupBy("k")
        method = transform_with_state(grouped, processor.form)
        found: DataFrame = method(processor, OUTPUT, "Update", processor.time)
        return found

    conf = {**NO_EMPTY_BATCHES, **more.pop("conf", {})}
    inputs = [(PROGRAMS, batches)]
    return Case(name, build, inputs, "update", checkpoint_format, conf=conf, **more)
