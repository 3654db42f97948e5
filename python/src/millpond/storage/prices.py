"""What requests and bytes cost, by a table of prices that the user may set. Pure.

Text form: `put=0.005,list=0.005,get=0.0004,delete=0,month=0.023`: dollars for a thousand requests of a kind, and for a GiB kept a month.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from millpond.config import GIB
from millpond.errors import ErrorKind, InvalidInputError
from millpond.storage.parts import plan_parts
from millpond.storage.settings import S3Settings

_NANO = 1_000_000_000
_NAMES = ("put", "list", "get", "delete", "month")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """In nano-dollars (1e-9 dollars): a request of each kind; `month`: in dollars, a GiB kept a month."""

    put: int
    list: int
    get: int
    delete: int
    month: float

    def nano_dollars(self, used: Mapping[str, int]) -> int:
        """Return the price of what `storage.usage` counted."""
        return (
            self.put * used.get("put_requests", 0)
            + self.list * used.get("list_requests", 0)
            + self.get * used.get("get_requests", 0)
            + self.delete * used.get("delete_requests", 0)
        )

    def month_dollars(self, size_bytes: int) -> float:
        """Return what keeping so many bytes costs a month."""
        return self.month * size_bytes / GIB


@lru_cache(maxsize=32)
def parse_prices(text: str) -> Prices:
    """Return the prices that an option gives. Raises: InvalidInputError: INVALID_OPTION: not all of the five names, once each, with a
    number that is not negative."""
    given: dict[str, float] = {}
    for entry in text.split(","):
        name, equals, value = (part.strip() for part in entry.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or name not in _NAMES or name in given or not 0 <= number < math.inf:
            raise _invalid(text)
        given[name] = number
    if len(given) != len(_NAMES):
        raise _invalid(text)
    nano = {name: round(given[name] * _NANO / 1000) for name in _NAMES if name != "month"}
    return Prices(**nano, month=given["month"])


def _invalid(text: str) -> InvalidInputError:
    return InvalidInputError(
        f"storage.prices = {text!r} does not give each of {', '.join(_NAMES)} once, as NAME=DOLLARS separated by commas",
        kind=ErrorKind.INVALID_OPTION,
    )


def put_requests_of(size_bytes: int, s3: S3Settings) -> int:
    """Return the PUTs that store a file of so many bytes: one, or a multipart upload with its beginning and its end."""
    return 1 if size_bytes <= s3.multipart_bytes else len(plan_parts(size_bytes, s3.part_bytes)) + 2


def get_requests_of(size_bytes: int, s3: S3Settings) -> int:
    """Return the GETs that fetch a file of so many bytes."""
    return 1 + len(plan_parts(max(0, size_bytes - s3.multipart_bytes), s3.part_bytes))
