"""The difference of two schemas in the words of Spark's messages."""

from __future__ import annotations

import pytest

from millpond.spark.schema_diff import schema_diff


def struct(*fields: str) -> str:
    return f"StructType({','.join(f'StructField({field})' for field in fields)})"


@pytest.mark.parametrize(
    ("saved", "job", "expected"),
    [
        (struct("n,LongType,true"), struct("n,LongType,false"), []),
        (struct("n,LongType,true"), struct("n,StringType,true"), ["value: n long -> string"]),
        (
            struct("n,DecimalType(10,2),true", "m,ArrayType(LongType,true),true"),
            struct("m,ArrayType(LongType,true),true", "o,MapType(StringType,LongType,true),true"),
            ["value: - n decimal(10,2)", "value: + o map(string,long,true)"],
        ),
        (
            struct(f"a,{struct('x,LongType,true', 'y,DateType,true')},true"),
            struct(
                f"a,{struct('x,DoubleType,true', 'y,DateType,true')},true",
                f"b,{struct('z,LongType,true')},true",
            ),
            ["value: a.x long -> double", "value: + b struct"],
        ),
        (
            struct(f"a,{struct('x,LongType,true')},true"),
            struct("a,LongType,true"),
            ["value: a struct -> long"],
        ),
        (struct("a,b,LongType,true"), struct(), ["value: - a,b long"]),
        ("something else", struct("n,LongType,true"), []),
    ],
)
def test_schema_diff(saved: str, job: str, expected: list[str]) -> None:
    parameters = {"storedValueSchema": saved, "newValueSchema": job, "other": "x"}
    assert [str(column) for column in schema_diff(parameters)] == expected
    assert schema_diff({"storedKeySchema": saved}) == ()
