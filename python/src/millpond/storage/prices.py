"""What requests and bytes cost, by a table of prices that the user may set. Pure.

Text form: `put=0.005,list=0.005,get=0.0004,delete=0,month=0.023`. The first four are dollars for a
thousand requests, the last is dollars for a GiB kept a month.
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
    """Prices of one request of each kind, in nano-dollars (1e-9 dollars), and of a GiB."""

    put: int
    list: int
    get: int
    delete: int
    month: float  # dollars for a GiB kept a month

    def nano_dollars(self, used: Mapping[str, int]) -> int:
        """Return the price of the requests that `storage.usage` counted, in nano-dollars."""
        return (
            self.put * used.get("put_requests", 0)
            + self.list * used.get("list_requests", 0)
            + self.get * used.get("get_requests", 0)
            + self.delete * used.get("delete_requests", 0)
        )

    def month_dollars(self, size_bytes: int) -> float:
        """Return the price of keeping `size_bytes` for a month, in dollars."""
        return self.month * size_bytes / GIB


@lru_cache(maxsize=32)
def parse_prices(text: str) -> Prices:
    """Return the prices that the option storage.prices gives.

    Raises: InvalidInputError: INVALID_OPTION: it must give each of the five names once, with a
        number that is not negative.
    """
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
        f"storage.prices = {text!r} does not give each of {', '.join(_NAMES)} once, as NAME=DOLLARS"
        " separated by commas",
        kind=ErrorKind.INVALID_OPTION,
    )


def put_requests_of(size_bytes: int, s3: S3Settings) -> int:
    """Return how many PUTs store a file of `size_bytes`.

    A multipart upload takes one for each part, one to begin and one to end.
    """
    return 1 if size_bytes <= s3.multipart_bytes else len(plan_parts(size_bytes, s3.part_bytes)) + 2


def get_requests_of(size_bytes: int, s3: S3Settings) -> int:
    """Return how many GETs fetch a file of `size_bytes`."""
    return 1 + len(plan_parts(max(0, size_bytes - s3.multipart_bytes), s3.part_bytes))
