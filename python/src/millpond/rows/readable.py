"""Makes texts of values that Python's types cannot hold, and values of what is shown.

Dates and times outside of the years 1 to 9999 become ISO 8601. In a text that is no UTF-8, as Spark
makes one when it casts any bytes to a string, each byte that does not fit becomes `\\xff`. Needs
the extra `tools`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, time
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.rows.nested import mapped

_DAY_US = 86_400_000_000
_NUMBERS: Any = (Real, Decimal)  # those of numpy are Real, too
# A year with a sign, as `_text` writes those outside of Python's range.
_FAR = re.compile(r"([+-])(\d{4,}-\d\d-\d\d(?:T[\d:.]+)?)(?:\+00:00)?")
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days since 1970


def readable(array: Any) -> Any:
    """Return an array whose values Python can hold.

    If one value of a column of dates or times is out of Python's range, the whole column is text.
    """
    return mapped(array, _readable)


def readable_rows(batches: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows of `pyarrow.RecordBatch`es as values that Python can hold."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        rows += readable_batch(batch).to_pylist(maps_as_pydicts=None)
    return rows


def readable_batch(batch: Any) -> Any:
    """Return a `pyarrow.RecordBatch` whose values Python can hold. As `readable`."""
    columns = [readable(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _readable(array: Any) -> Any:
    return _with_bytes_told(array) if pa.types.is_string(array.type) else _text_if_far(array)


def _with_bytes_told(array: Any) -> Any:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        found = array.view(pa.binary()).to_pylist()
        texts = [
            None if text is None else text.decode("utf-8", "backslashreplace") for text in found
        ]
        return pa.array(texts, pa.string())
    return array


def _text_if_far(array: Any) -> Any:
    kind = array.type
    if pa.types.is_date32(kind):
        numbers, unit, per_day = array.cast(pa.int32()), "D", 1
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        numbers, unit, per_day = array.cast(pa.int64()), "us", _DAY_US
    else:
        return array
    known = numbers.drop_null().to_numpy().astype(np.int64)
    if not len(known) or (
        known.min() >= _FIRST_DAY * per_day and known.max() < (_LAST_DAY + 1) * per_day
    ):
        return array
    zone = "+00:00" if pa.types.is_timestamp(kind) and kind.tz else ""
    texts = [None if n is None else _text(n, unit, zone) for n in numbers.to_pylist()]
    return pa.array(texts, pa.string())


def _text(number: int, unit: str, zone: str) -> str:
    """Write it as Python would. A year above 9999 or below 0 gets its sign."""
    text = str(np.array([number], np.int64).astype(f"datetime64[{unit}]").astype(str)[0])
    date, _, time = text.partition("T")
    if time:
        time = "T" + time.removesuffix(".000000")
    year, rest = date[:-6], date[-6:]
    sign, digits = ("-", year[1:]) if year.startswith("-") else ("+" if len(year) > 4 else "", year)
    return f"{sign}{digits:0>4}{rest}{time}{zone}"


# ---- the other way -------------------------------------------------------------------------------


def scalar_of(shown: object, kind: Any) -> Any:
    """Return the `pyarrow.Scalar` of the type `kind` that a value stands for, as it is shown: times
    are ISO 8601, durations are seconds.

    Raises: ValueError, OverflowError, pyarrow.ArrowException: it is none of the type.
    """
    if pa.types.is_duration(kind) and isinstance(shown, (str, *_NUMBERS)):
        return pa.scalar(_microseconds(shown), kind)
    if isinstance(shown, str) and pa.types.is_time(kind):
        shown = time.fromisoformat(shown)
    if not isinstance(shown, str) or pa.types.is_string(kind):
        why = misfit(shown, kind)
        if why is not None:
            raise ValueError(why)
        return pa.scalar(shown, kind)
    far = _FAR.fullmatch(shown)
    if far is not None and (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return _far_time(far[1], far[2], kind, shown)
    return pc.cast(pa.scalar(shown), kind)


def list_of(shown: object, kind: Any) -> Any:
    """Return the `pyarrow.Scalar` of a type of lists that a list of JSON stands for.

    Raises: as `scalar_of`.
    """
    if shown is None:
        return pa.scalar(None, kind)
    inner = kind.value_type
    if not isinstance(shown, list) or pa.types.is_binary(inner):
        raise ValueError(f"{shown!r} is no list of {inner}")
    if pa.types.is_list(inner):
        values = pa.array([list_of(one, inner).as_py() for one in shown], inner)
    else:
        values = pa.array([scalar_of(one, inner) for one in shown], inner)
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)[0]


def misfit(value: Any, kind: Any) -> str | None:
    """Return why a value is none of the type `kind`, where Arrow takes it in silence; else None.

    Arrow leaves out a fraction, a time of the day, or nanoseconds, if the type has none. It takes a
    time without an offset for UTC, and for a type without a zone the wall clock of UTC. It takes a
    number for the days, micro- or nanoseconds since 1970, whichever the type counts.
    """
    if value is None or isinstance(value, str):
        return None
    if isinstance(value, int) and not pa.types.is_temporal(kind):
        return None
    return next(filter(None, (_leaf_misfit(*leaf) for leaf in _leaves(value, kind))), None)


def _leaves(value: Any, kind: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the values that a value consists of, each with its type."""
    if isinstance(value, list | tuple) and pa.types.is_list(kind):
        for one in value:
            yield from _leaves(one, kind.value_type)
    elif isinstance(value, list | tuple | Mapping) and pa.types.is_map(kind):
        # Arrow takes a dictionary, or a list of pairs.
        for key, item in value.items() if isinstance(value, Mapping) else value:
            yield from _leaves(key, kind.key_type)
            yield from _leaves(item, kind.item_type)
    elif isinstance(value, Mapping) and pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(value.get(field.name), field.type)
    else:
        yield value, kind


def _leaf_misfit(value: Any, kind: Any) -> str | None:
    cut = f"{value!r} does not fit without a part of it"
    if isinstance(value, _NUMBERS) and pa.types.is_temporal(kind):
        return f"nobody can know of which unit {value!r} is"
    if isinstance(value, time) and value.tzinfo is not None:
        return "a time of a day has no offset"
    if not isinstance(value, datetime):
        return cut if _is_cut(value, kind) else None
    if pa.types.is_date(kind):
        wrong_zone, is_cut = value.tzinfo is not None, value.time() != time()
    else:
        wrong_zone = pa.types.is_timestamp(kind) and (value.tzinfo is None) != (kind.tz is None)
        is_cut = False
    if wrong_zone:
        return "a time has an offset, and a time without a zone has none"
    is_finer = getattr(value, "nanosecond", 0) != 0  # of pandas
    return cut if is_cut or is_finer else None


def _is_cut(value: Any, kind: Any) -> bool:
    """Whether a value is a number with a fraction, and `kind` a type without."""
    if not isinstance(value, _NUMBERS) or isinstance(value, int):
        return False
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return False
    try:
        return bool(value != int(value))
    except (ValueError, OverflowError):  # NaN, infinity
        return True


def _microseconds(seconds: object) -> int:
    if isinstance(seconds, bool):
        raise ValueError("a boolean is no duration")
    try:
        found = Decimal(str(seconds)) * 1_000_000
    except ArithmeticError as e:
        raise ValueError(f"{seconds!r} is no number of seconds") from e
    if found != found.to_integral_value():
        raise ValueError(f"{seconds!r} is no whole number of microseconds")
    return int(found)


def _far_time(sign: str, rest: str, kind: Any, shown: str) -> Any:
    zone = "+00:00" if pa.types.is_timestamp(kind) and kind.tz else ""
    unit = "D" if pa.types.is_date32(kind) else "us"
    text = ("-" if sign == "-" else "") + rest
    number = int(np.array([text], f"datetime64[{unit}]").astype(np.int64)[0])
    if _text(number, unit, zone) != shown:  # numpy is silent where a number overflows
        raise ValueError(f"{shown!r} is no time of {kind}")
    return pa.scalar(number, pa.int32() if unit == "D" else pa.int64()).cast(kind)
