"""The journal of an erasure."""

from __future__ import annotations

import json

import pytest

from millpond.errors import ErrorKind, MillpondError
from millpond.format.sealed import seal
from millpond.model.ids import StoreId, VersionId
from millpond.operations.erase.journal import KIND, Journal, decode_journal, encode_journal, job_of
from millpond.operations.erase.plan import Rewrite

JOURNAL = Journal(
    job=job_of(0, {"user": 42}),
    operator=0,
    shown={("left-keyToNumValues", "default"): {"field0": "user"}},
    created_ms=7,
    stores=(StoreId(0, 3, "default"), StoreId(0, 9, "default")),
    rewrites=(
        Rewrite(
            store=StoreId(0, 3, "default"),
            version=VersionId(5, "0123456789abcdef"),
            whole=True,
            base=5,
            keys=9,
            group_keys=(4, 5),
        ),
        Rewrite(store=StoreId(0, 3, "default"), version=VersionId(6, ""), whole=False, base=5),
    ),
    deletes=("tables/0/default/default/3.parquet",),
    tables={"tables/0/default/default/4.parquet": (7, 8)},
)


def test_it_comes_back_as_it_was() -> None:
    assert decode_journal(encode_journal(JOURNAL)) == JOURNAL


def test_it_tells_no_value() -> None:
    journal = Journal(
        job=job_of(1, {"name": "somebody"}), operator=1, shown={}, created_ms=7, tables={}
    )
    assert b"somebody" not in encode_journal(journal)
    assert job_of(1, {"name": "somebody"}) != job_of(1, {"name": "somebody else"})
    assert (
        job_of(1, {"a": 1, "b": 2}) == job_of(1, {"b": 2, "a": 1}) == job_of(1, {"a": "1", "b": 2})
    )


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("deletes", ["../x"], ErrorKind.UNSAFE_PATH),
        ("deletes", ["commits/0"], ErrorKind.FORMAT_DAMAGED),
        ("deletes", ["state/0/0/1.changelog"], ErrorKind.FORMAT_DAMAGED),
        ("rewrites", [{}], ErrorKind.FORMAT_DAMAGED),
        ("stores", [{"operator": 0, "partition": -1, "store": "x"}], ErrorKind.FORMAT_DAMAGED),
        ("tables", [{"key": "/etc/passwd", "crc32": 0, "rows": 0}], ErrorKind.UNSAFE_PATH),
        ("job", 7, ErrorKind.FORMAT_DAMAGED),
        ("required_features", ["more"], ErrorKind.FORMAT_TOO_NEW),
    ],
)
def test_what_is_wrong_is_refused(field: str, value: object, kind: ErrorKind) -> None:
    body = json.loads(encode_journal(JOURNAL).partition(b"\n")[2])
    body[field] = value
    with pytest.raises(MillpondError) as refused:
        decode_journal(seal(KIND, body))
    assert refused.value.kind is kind
