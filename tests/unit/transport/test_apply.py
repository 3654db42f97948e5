"""The worker of `applyInPandasWithState` against Spark's own loop: of the same Arrow batches,
both make the same ones, or raise the same error.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import StructType

from millpond import __version__
from millpond.transport import entry

pytestmark = pytest.mark.skipif(
    pyspark.__version__.startswith("4.2"), reason="Spark's own loop runs on 4.2"
)

_MOST = 7
_REFUSED = f"it has millpond {__version__}, the driver another"
_STATE = StructType().add("n", "long").add("text", "string")
_RESULT = StructType().add("key", "string").add("n", "long").add("said", "string")
_ZONE = "America/Los_Angeles"
_BERLIN = datetime.timezone(datetime.timedelta(hours=2))
_TIMES = [
    datetime.datetime(2024, 3, 10, 9, 59, 59, 1, _BERLIN),
    datetime.datetime(2023, 11, 5, 9, 30, tzinfo=datetime.timezone.utc),  # it comes twice
    datetime.datetime(1901, 1, 1, tzinfo=datetime.timezone.utc),
]
_POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 0, 127]),
    "short": (pa.int16(), [-1, 0, 32767]),
    "int": (pa.int32(), [-(2**31), 0, 5]),
    "long": (pa.int64(), [2**53 + 1, -1, 0]),
    "bool": (pa.bool_(), [True, False]),
    "float": (pa.float32(), [0.1, float("nan"), -0.0]),
    "double": (pa.float64(), [0.1, float("inf"), float("nan")]),
    "text": (pa.string(), ["", "ü€", "a" * 50]),
    "bytes": (pa.binary(), [b"", b"\x00\xff"]),
    "decimal": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-0.01")]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "time": (pa.timestamp("us", tz="UTC"), _TIMES),
    "local": (pa.timestamp("us"), [t.replace(tzinfo=None) for t in _TIMES]),
    "span": (pa.duration("us"), [datetime.timedelta(microseconds=1), datetime.timedelta(-3)]),
    "nothing": (pa.null(), [None]),
    "list": (pa.list_(pa.int32()), [[], [1, 2], [3, None]]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": None}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], []]),
}
_NESTED = ("list", "struct", "map")


class _Key:
    """A key with its rows in chunks of so many."""

    def __init__(self, chunks: list[int], *, timed_out: bool = False, value: Any = None) -> None:
        self.chunks, self.timed_out, self.value = chunks, timed_out, value


def _state_row(key: int, group: _Key, begin: int, count: int, last: bool) -> dict[str, Any]:
    properties = {
        "batchProcessingTimeMs": 1_000_000,
        "eventTimeWatermarkMs": 5_000,
        "timeoutConf": "EventTimeTimeout" if key % 2 else "ProcessingTimeTimeout",
        "hasTimedOut": group.timed_out,
        "watermarkPresent": True,
        "defined": group.value is not None,
        "updated": False,
        "removed": False,
        "timeoutTimestamp": 77 if group.timed_out else -1,
    }
    value = None if group.value is None else CPickleSerializer().dumps(group.value)  # type: ignore[no-untyped-call]
    return {
        "properties": json.dumps(properties),
        "keyRowAsUnsafe": f"key {key}".encode(),
        "object": value,
        "startOffset": begin,
        "numRows": count,
        "isLastChunk": last,
    }


_STATE_COLUMN = pa.struct(
    [
        ("properties", pa.string()),
        ("keyRowAsUnsafe", pa.binary()),
        ("object", pa.binary()),
        ("startOffset", pa.int32()),
        ("numRows", pa.int32()),
        ("isLastChunk", pa.bool_()),
    ]
)


def _batches(
    keys: list[_Key], columns: dict[str, tuple[pa.DataType, Callable[[], Any]]]
) -> list[pa.RecordBatch]:
    """Return what Spark's JVM sends: a batch ends when it has `_MOST` rows, or its key goes on."""
    found: list[pa.RecordBatch] = []
    rows: list[list[Any]] = []
    states: list[dict[str, Any]] = []

    def end() -> None:
        states.extend([None] * (len(rows) - len(states)))  # type: ignore[list-item]
        values = list(zip(*rows, strict=True))
        arrays = [
            pa.array(list(values[i]), kind)
            for i, kind in enumerate((pa.string(), *(kind for kind, _ in columns.values())))
        ]
        found.append(
            pa.record_batch(
                [*arrays, pa.array(states, _STATE_COLUMN)], names=["key", *columns, "__state"]
            )
        )
        rows.clear()
        states.clear()

    for i, key in enumerate(keys):
        name = None if i == 1 else f"k{i}"
        for chunk, count in enumerate(key.chunks):
            last = chunk == len(key.chunks) - 1
            states.append(_state_row(i, key, len(rows), count, last))
            rows.extend([name, *(value() for _, value in columns.values())] for _ in range(count))
            if len(rows) >= _MOST or not last:
                end()
    if rows:
        end()
    return found


def _outcome(run: Any, batches: list[pa.RecordBatch]) -> Any:
    try:
        found = list(run(0, iter(batches)))
    except Exception as error:
        return type(error), str(error)
    return [
        (batch.schema.names, batch.schema.types, [column.to_pylist() for column in batch.columns])
        for batch in found
    ]


def _compare(
    function: Callable[..., Any],
    batches: list[pa.RecordBatch],
    result: StructType = _RESULT,
    conf: dict[str, str] | None = None,
) -> Any:
    """Return what both loops give for these batches."""
    command = cloudpickle.dumps((function, result))  # type: ignore[no-untyped-call]
    columns = batches[0].num_columns - 1
    settings = {
        "millpond": __version__,
        "result_id": 1,
        "offsets": [columns + 2, 1, 0, *range(columns)],
        "state_schema": _STATE.json(),
        "runner_conf": {
            "spark.sql.session.timeZone": _ZONE,
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(_MOST),
            **(conf or {}),
        },
    }
    ours, _, _, _ = entry.begin_apply(command, json.dumps(settings))
    other = {**settings, "millpond": "another"}
    spark, _, _, _ = entry.begin_apply(command, json.dumps(other))
    assert ours.__module__ != spark.__module__
    expected, found = _outcome(spark, batches), _outcome(ours, batches)
    if isinstance(expected, list):
        assert [names[0].partition(": ")[2] for names, *_ in expected] == [_REFUSED] * len(expected)
        assert [names[0] for names, *_ in found] == ["_0"] * len(found)
        expected, found = [[(n[1:], *rest) for n, *rest in side] for side in (expected, found)]
    assert repr(found) == repr(expected)
    return found


def _seen(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Say all that can be seen of what the user's code gets."""
    said = [repr(key), repr([type(part) for part in key]), str(state), state.json()]
    for frame in frames:
        said += [
            repr(frame.dtypes.to_dict()),
            repr(frame.index),
            repr(frame.columns),
            repr([[(type(v), v) for v in frame[name]] for name in frame.columns]),
            repr(frame._is_copy is None and frame.to_numpy().flags.writeable),
        ]
        if len(frame):
            frame.iloc[:, 0] = "changed"  # no other key sees it
    state.update((np.int64(len(said)), None))
    yield pd.DataFrame({"key": [str(key[0])], "n": [len(said)], "said": ["\n".join(said)]})


def _keys(random: Random, count: int) -> list[_Key]:
    found = []
    for _ in range(count):
        chunks = [random.randrange(1, 4)] * random.choice([1, 1, 1, 2, 3])
        timed_out = random.random() < 0.2
        value = random.choice([None, (2**40, "ü"), (None, None)])
        found.append(_Key([1] if timed_out else chunks, timed_out=timed_out, value=value))
    return found


def _pools(random: Random, names: Iterable[str]) -> dict[str, tuple[pa.DataType, Any]]:
    def value(pool: list[Any], nulls: float) -> Callable[[], Any]:
        return lambda: None if random.random() < nulls else random.choice(pool)

    return {
        name: (_POOLS[name][0], value(_POOLS[name][1], random.choice([0, 0.1, 0.6, 1])))
        for name in names
    }


@pytest.mark.parametrize(
    ("seed", "nested", "extension"),
    [
        (0, False, "false"),
        (1, False, "true"),
        (2, True, "false"),
        *(
            pytest.param(seed, seed % 2 == 0, extension, marks=pytest.mark.deep)
            for seed in range(3, 15)
            for extension in ("false", "true")
        ),
    ],
)
def test_what_users_see(seed: int, nested: bool, extension: str) -> None:
    """Keys, frames with their types, and states, with NULLs here and there."""
    random = Random(seed)
    names = [name for name in _POOLS if nested or name not in _NESTED]
    batches = _batches(_keys(random, 25), _pools(random, names))
    conf = {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": extension}
    found = _compare(_seen, batches, conf=conf)
    assert isinstance(found, list) and len(found) > 2


def test_many_sets_of_columns_with_nulls() -> None:
    random = Random(5)
    columns = {f"c{i}": (pa.int32(), lambda: random.choice([None, 1])) for i in range(6)}
    assert isinstance(_compare(_seen, _batches(_keys(random, 60), columns)), list)


def test_a_time_that_pandas_cannot_hold() -> None:
    """It fails for its own key, after the function was called for the others."""
    years = iter([2020, 2021, 9000, 2022])
    columns = {"at": (pa.timestamp("us"), lambda: datetime.datetime(next(years), 1, 1))}
    kind, said = _compare(_seen, _batches([_Key([1]) for _ in range(4)], columns))
    assert "would result in out of bounds timestamp" in said, kind


_V = {"v": (pa.int64(), lambda: 1)}


def _one(*values: Any, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns or dict(zip(("key", "n", "said"), values, strict=True)))


def _by_key(*results: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that gives the keys these results, in turn."""

    def function(key: Any, frames: Any, state: Any) -> Any:
        return results[len(str(key[0])) % len(results) if key[0] is None else int(key[0][1:])]()

    return function


_NOTHING = pd.DataFrame()
_LARGE = 2**53 + 1


@pytest.mark.parametrize(
    "results",
    [
        [lambda: [_one(["a"], [_LARGE], ["b"])], list, lambda: [_one(["c"], [1], [None])]],
        [lambda: [_one(["a"], [_LARGE], ["b"])], lambda: [_one(["c"], [None], [None])]],
        [lambda: [_one(["a"], [_LARGE], ["b"])], lambda: [_one(["c"], [1.0], [7])]],
        [
            lambda: [_one(["a"] * 9, [1] * 9, ["b"] * 9)],
            lambda: [_one(["c"] * 2, [1] * 2, [""] * 2)],
        ],
        [lambda: [_NOTHING, _one(["a"], [1], ["b"]), _NOTHING], lambda: [_one([], [], [])]],
        [lambda: [_NOTHING], list],
        [lambda: (_one(["a"], [1], ["b"]) for _ in range(9)), lambda: iter(())],
        [lambda: [_one(said=["x"], n=[1], key=["y"])], lambda: [_one(["a"], [2], ["b"])]],
        [lambda: [pd.DataFrame([["a", 1, "b"]])], lambda: [pd.DataFrame([["c", 2, "d"]])]],
        [lambda: [_one(["a"], pd.array([1], "Int64"), ["b"])], lambda: [_one(["c"], [2], ["d"])]],
        [lambda: [_one(pd.Categorical(["a"]), [1], ["b"])], lambda: [_one(["c"], [2], ["d"])]],
        [lambda: [_one(["a"], [True], ["b"])], lambda: [_one(["c"], [2], ["d"])]],
        [lambda: [pd.DataFrame(index=[1, 2])], lambda: [_one(["c"], [2], ["d"])]],
        # errors
        [lambda: [_one(a=["a"], b=[1], c=["b"])], list],
        [lambda: [_one(key=["a"], n=[1])], list],
        [lambda: [_one(["a"], ["text"], ["b"])], lambda: [_one(["c"], [2], ["d"])]],
        [lambda: [_one(["a"], [2**70], ["b"])], lambda: [_one(["c"], [2], ["d"])]],
        [lambda: [_one(["a"], [1.5], ["b"])], lambda: [_one(["c"], [2.5], ["d"])]],
        [lambda: _one(["a"], [1], ["b"]), list],
        [lambda: None, list],
        [lambda: [1], list],
        [lambda: next(iter(())), list],
        [lambda: (1 / 0 for _ in [1]), list],
    ],
)
@pytest.mark.parametrize(("by_name", "safe"), [("true", "false"), ("false", "true")])
def test_results(results: list[Any], by_name: str, safe: str) -> None:
    conf = {
        "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": by_name,
        "spark.sql.execution.pandas.convertToArrowArraySafely": safe,
    }
    turns = [results[i % len(results)] for i in range(11)]
    for keys in (2, 11):
        _compare(_by_key(*turns), _batches([_Key([1]) for _ in range(keys)], _V), conf=conf)


def _takes(count: int) -> Callable[..., Any]:
    def function(key: Any, frames: Any, state: Any) -> Any:
        left = [frame for frame, _ in zip(frames, range(count), strict=False)]
        state.update((sum(map(len, left)), str(key)))
        yield from (_one([str(len(frame))], [len(frame)], ["x"]) for frame in left)

    return function


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_rows_that_are_not_read(count: int) -> None:
    keys = [_Key([2]), _Key([3, 7, 7, 1]), _Key([1]), _Key([6, 2]), _Key([1], value=(1, "x"))]
    assert isinstance(_compare(_takes(count), _batches(keys, _V)), list)


_KEPT: list[Any] = []


def _reads_the_last_keys_rows(key: Any, frames: Any, state: Any) -> Any:
    old = list(_KEPT.pop()) if key != ("k0",) and _KEPT else []
    _KEPT[:] = [frames]
    yield _one([str(key[0])], [len(old)], [None])


def test_rows_of_a_key_that_is_done_with() -> None:
    for keys in ([_Key([2]), _Key([3, 7, 1]), _Key([1])], [_Key([7, 1]), _Key([2]), _Key([1])]):
        _compare(_reads_the_last_keys_rows, _batches(keys, _V))


_CHANGES: list[Callable[[Any], Any]] = [
    lambda s: s.update((1, "x")),
    lambda s: s.update([np.int32(3), None]),
    lambda s: s.update((pd.Timestamp(2024, 1, 1), None)),
    lambda s: s.update((1,)),
    lambda s: s.update(("text", 1)),
    lambda s: s.update(None),
    lambda s: s.remove(),
    lambda s: s.get,
    lambda s: (s.remove(), s.update((2, "y"))),
    lambda s: (s.update((2, "y")), s.remove(), s.getOption),
    lambda s: s.setTimeoutDuration(10),
    lambda s: s.setTimeoutDuration(-10),
    lambda s: s.setTimeoutDuration("1 hour"),
    lambda s: s.setTimeoutTimestamp(6_000),
    lambda s: s.setTimeoutTimestamp(4_000),
    lambda s: s.setTimeoutTimestamp(datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)),
]


@pytest.mark.parametrize("change", range(len(_CHANGES)))
def test_changes_of_state(change: int) -> None:
    """Of keys with either kind of timeout, with and without a value, timed out or not."""
    act = _CHANGES[change]

    def function(key: Any, frames: Any, state: Any) -> Any:
        said = str(act(state))
        return [_one([str(state)], [state.oldTimeoutTimestamp], [said])]

    for first in range(2):
        for timed_out in (False, True):
            for value in (None, (5, "v")):
                key = _Key([1], timed_out=timed_out, value=value)
                _compare(function, _batches([_Key([1])] * first + [key], _V))
