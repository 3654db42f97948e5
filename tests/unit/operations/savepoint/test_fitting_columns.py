"""The options that give saved values the columns of a changed job."""

from __future__ import annotations

import json
import shlex

import pytest

from millpond.cli.arguments import columns_of
from millpond.cli.main import parser
from millpond.operations.savepoint.fitting_columns import UnclearColumnsError, column_options
from millpond.spark.column_changes import changed_columns
from millpond.spark.state_schemas import FamilyText
from millpond.spark.type_texts import type_json


def _schema(columns: str) -> str:
    kind = type_json(f"struct<{columns}>")
    return json.dumps(kind)


def _family(value: str, key: str = "k:string", name: str = "default") -> FamilyText:
    return FamilyText(name=name, key=_schema(key), value=_schema(value), kind="point")


def _types(schema: str) -> list[object]:
    return [one["type"] for one in json.loads(schema)["fields"]]


@pytest.mark.parametrize(
    ("saved", "job", "expected"),
    [
        ("a:int", "a:int,b:long", "--add-column b:long=7"),
        ("a:int", "b:long,a:int", "--add-column b:long --column-order b,a"),
        ("a:int,b:long", "b:long", "--drop-column a"),
        ("a:int", "a:long", "--change-column a:long"),
        (
            "sum:int,sum:int",
            "sum:int,x:int,sum:int",
            "--add-column x:integer --column-order sum,x,sum_2",
        ),
        ("a:int,matched:boolean", "a:int,b:int,matched:boolean", "--add-column b:integer"),
        ("s:struct<a:int>", "s:struct<a:int,b:int>", "--add-column s.b:integer"),
        (
            "s:struct<a:int,b:string>",
            "s:struct<b:string,c:int,a:long>",
            "--add-column s.c:integer --change-column s.a:long --column-order s.b,s.c,s.a",
        ),
    ],
)
def test_options(saved: str, job: str, expected: str) -> None:
    """They make of the saved schema that of the job, as Spark compares them."""
    buffers = ["7"] if "=7" in expected else []
    last = "matched" if "matched" in saved else ""
    key = ("default", "default")
    (options,), assumed = column_options(
        {key: _family(saved)}, {key: _family(job)}, buffers, last=last
    )
    assert assumed == []
    assert options == expected
    words = ["savepoint", "edit", "old", "new", *shlex.split(options)]
    changes = columns_of(parser().parse_args(words))
    changed = changed_columns(_schema(saved), changes, key=["k"], last=last)
    assert [str(t).replace("'", '"') for t in _types(changed.schema)] == [
        str(t).replace("'", '"') for t in _types(_schema(job))
    ]


@pytest.mark.parametrize(
    ("saved", "job"),
    [
        (_family("a:int"), _family("a:int,b:int", key="k:string,n:int")),
        (_family("a:string"), _family("a:int")),
        (_family("a:int"), _family("b:int")),  # Spark compares no names
    ],
)
def test_no_options(saved: FamilyText, job: FamilyText) -> None:
    key = ("default", "default")
    assert column_options({key: saved}, {key: job}, []) == ([], [])


@pytest.mark.parametrize(
    ("saved", "job", "unclear"),
    [
        # count(*) -> avg(v), count(*)
        ("count:long", "sum:double,count:long,count:long", "count: 1 in the state, 2 in the job"),
        ("sum:long,sum:long", "sum:long", "sum: 2 in the state, 1 in the job"),  # which one stays?
        # avg(v), count(*) -> count(*), avg(v), max(v)
        (
            "sum:double,count:long,count:long",
            "count:long,sum:double,count:long,max:int",
            "count: 2 in the state, 2 in the job",
        ),
        (
            "s:struct<sum:long,sum:long>",
            "s:struct<sum:long>",
            "s.sum: 2 in the state, 1 in the job",
        ),
    ],
)
def test_columns_of_one_name_are_not_guessed(saved: str, job: str, unclear: str) -> None:
    """A guess gave one aggregate the state of another."""
    key = ("default", "default")
    with pytest.raises(UnclearColumnsError, match=unclear):
        column_options({key: _family(saved)}, {key: _family(job)}, [])


def test_new_aggregates_behind_the_old_ones_are_assumed() -> None:
    """`sum(a)` becomes `sum(a), sum(b)`: the options fit, and say what they assume."""
    saved, job = _family("sum:long"), _family("sum:long,sum:long")
    key = ("default", "default")
    assert column_options({key: saved}, {key: job}, ["0", "0"]) == (
        ["--add-column sum_2:long=0"],
        ["sum: 1 in the state, 2 in the job"],
    )


def test_each_column_family_has_its_own() -> None:
    """With several stores or column families, the options say which they are for."""
    saved = {("s", "one"): _family("a:int"), ("s", "two"): _family("a:int")}
    job = {("s", "one"): _family("a:int,b:int"), ("s", "two"): _family("a:long")}
    assert column_options(saved, job, [])[0] == [
        "--column-family one --add-column b:integer",
        "--column-family two --change-column a:long",
    ]
    saved = {("s", "-one"): _family("a:int"), ("s", "two"): _family("a:int")}
    job = {("s", "-one"): _family("`-b`:int,a:int"), ("s", "two"): _family("a:int")}
    assert column_options(saved, job, [])[0] == [
        "--column-family=-one --add-column=-b:integer --column-order=-b,a",
    ]
    saved = {("l", "default"): _family("a:int"), ("r", "default"): _family("a:int")}
    job = {("l", "default"): _family("a:int,b:int"), ("r", "default"): _family("a:int")}
    assert column_options(saved, job, [])[0] == ["--store l --add-column b:integer"]
