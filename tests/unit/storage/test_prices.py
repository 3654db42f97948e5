"""The table of prices."""

from __future__ import annotations

import pytest

from millpond.config import GIB, MIB, resolve
from millpond.errors import ErrorKind, InvalidInputError
from millpond.storage.prices import get_requests_of, parse_prices, put_requests_of
from millpond.storage.settings import S3Settings


def test_the_default_is_what_aws_asks() -> None:
    prices = parse_prices(str(resolve({})["storage.prices"]))
    assert (
        prices.nano_dollars({"put_requests": 1})
        == prices.nano_dollars({"list_requests": 1})
        == 5000
    )
    assert (
        prices.nano_dollars({"get_requests": 3, "delete_requests": 5, "sent_bytes": 10**9}) == 1200
    )
    assert prices.month_dollars(2 * GIB) == pytest.approx(0.046)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "put=1",
        "put=1,list=1,get=1,delete=1,month=-1",
        "put=1,list=1,get=1,delete=1,month=nan",
        "put=1,list=1,get=1,delete=1,month=inf",
        "put=1,put=1,list=1,get=1,delete=1,month=1",
        "put=1,list=1,get=1,delete=1,month=1,copy=1",
        "put,list,get,delete,month",
    ],
)
def test_a_bad_table_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"storage\.prices") as caught:
        parse_prices(text)
    assert caught.value.kind is ErrorKind.INVALID_OPTION


def test_requests_of_large_files() -> None:
    s3 = S3Settings(multipart_bytes=16 * MIB, part_bytes=8 * MIB)
    assert (put_requests_of(0, s3), get_requests_of(0, s3)) == (1, 1)
    assert (put_requests_of(16 * MIB, s3), get_requests_of(16 * MIB, s3)) == (1, 1)
    assert (put_requests_of(16 * MIB + 1, s3), get_requests_of(16 * MIB + 1, s3)) == (3 + 2, 2)
