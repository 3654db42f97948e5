"""Keys of every kind, schema files, and changes laid over a snapshot.

Spark's encoders made the keys: the bytes are from queries that ran.
"""

from __future__ import annotations

import datetime as dt
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.format.changelog import Op, Record
from millpond.model.ids import StoreId
from millpond.model.json_fields import ColumnFamily
from millpond.spark.state_schemas import FamilySchema, modified_utf8, parse_schema_file
from millpond.spark.types import Atom, Field, Struct
from millpond.state.codec import check_supported, decode_keys, decode_values, split_lists
from millpond.state.encoding import encode_keys
from millpond.state.writing import cell, plain
from millpond.store.overlay import Overlay, laid_over
from tests.checkpoints import CheckpointBuilder, utf

LONG = Atom("long")
K = Struct((Field("k", LONG),))
NONE = Struct(())


def family(
    kind: str, key: Struct, *, prefix: int = 0, ordinals: tuple[int, ...] = ()
) -> FamilySchema:
    return FamilySchema(
        name="x", key=key, value=NONE, kind=kind, prefix_columns=prefix, ordinals=ordinals
    )


SESSION = Struct((Field("k", Atom("string")), Field("sessionStartTime", Atom("timestamp"))))
TIMED = Struct((Field("field0", Atom("string")), Field("__event_time", LONG)))
TTL = Struct((Field("expirationMs", LONG), Field("elementKey", K)))
KEYS = [
    (family("point", K), "00" + "0000000000000000" + "0200000000000000", {"k": 2}),
    (
        family("prefix", SESSION, prefix=1),
        "1900000000000000000000000001000000100000006200000000000000000000000000000000002e4817d70d0600",
        {"k": "b", "sessionStartTime": dt.datetime(2024, 1, 1, 0, 2, tzinfo=dt.timezone.utc)},
    ),
    (
        family("range", TTL, ordinals=(0,)),
        "21000000000000000000000000090000001000000001000001a1fe2a3f3400000000000000000000000000000000100000001000000000000000000000000200000000000000",
        {"expirationMs": 0x1A1FE2A3F34, "elementKey": {"k": 2}},
    ),
    (
        family("time-last", TIMED),
        "0000000000000000000100000010000000620000000000000080060dd717482e00",
        {"field0": "b", "__event_time": 1704067320000000},
    ),
    (
        family("time-first", TIMED),
        "80060dd717482e0000000000000000000001000000100000006200000000000000",
        {"field0": "b", "__event_time": 1704067320000000},
    ),
]


@pytest.mark.parametrize(
    ("schema", "text", "row"), KEYS, ids=[schema.kind for schema, _, _ in KEYS]
)
def test_keys(schema: FamilySchema, text: str, row: dict[str, object]) -> None:
    data = b"\0\x19\0\x01" + bytes.fromhex(text)
    assert decode_keys([data] * 3, schema).to_pylist() == [row] * 3
    assert decode_keys([], schema).to_pylist() == []
    assert encode_keys(decode_keys([data], schema), schema) == [data[4:]]
    framed = [b"\0\0\0\0\xff\xff\xff\xff" + data[8:]] if schema.kind in ("prefix", "range") else []
    for wrong in (data[:6], data[: -8 if schema.kind == "point" else -9], *framed):
        with pytest.raises(FormatError):
            decode_keys([data, wrong], schema)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1) | st.none(), st.floats(allow_nan=False, width=32)
        ),
        max_size=5,
    )
)
def test_ordering_columns(rows: list[tuple[int | None, float]]) -> None:
    """RangeKeyScanStateEncoder orders them so: negative numbers, then the others, then null."""
    schema = family("range", Struct((Field("f", Atom("float")), Field("n", LONG))), ordinals=(1, 0))
    keys = []
    for number, fraction in rows:
        n = b"\2" + bytes(8) if number is None else bytes([number >= 0]) + struct.pack(">q", number)
        (bits,) = struct.unpack(">I", struct.pack(">f", fraction))
        f = struct.pack(">BI", 0, bits ^ 0xFFFF_FFFF) if bits >> 31 else struct.pack(">BI", 1, bits)
        row = (
            struct.pack("<QII", 0, 9, 24)
            + struct.pack("<II", 5, 40)
            + n.ljust(16, b"\0")
            + f.ljust(8, b"\0")
        )
        keys.append(bytes(4) + (len(row) + 1).to_bytes(4, "little") + b"\0" + row)
    decoded = decode_keys(keys, schema)
    assert decoded.to_pylist() == [{"f": f, "n": n} for n, f in rows]
    assert encode_keys(decoded, schema) == [key[4:] for key in keys]


def test_values() -> None:
    one = bytes(9) + (7).to_bytes(8, "little")
    assert (
        decode_values([one, one], replace(family("point", K), value=K)).to_pylist()
        == [{"k": 7}] * 2
    )
    listed = (len(one)).to_bytes(4, "little") + one
    assert split_lists([listed, b"", listed * 2]) == ([one] * 3, [1, 0, 2])
    for wrong in (listed[:-1], listed + b"x", b"\xff\xff\xff\xff"):
        with pytest.raises(FormatError):
            split_lists([wrong])


def test_what_this_version_does_not_read() -> None:
    schema = family("point", K)
    check_supported(ColumnFamily("x", 1, "point"), schema)
    check_supported(ColumnFamily("x", 1), schema)
    check_supported(ColumnFamily("x", 1, "point", encoding="avro"), schema)
    with pytest.raises(UnsupportedError, match="protobuf"):
        check_supported(ColumnFamily("x", 1, "point", encoding="protobuf"), schema)
    with pytest.raises(FormatError):
        check_supported(ColumnFamily("x", 1, "range"), schema)


def records(**changes: bytes | tuple[bytes] | None) -> list[Record]:
    """Return records of a changelog by key.

    A text is a value. A tuple is what the record appends. None deletes the key.
    """
    found = []
    for key, value in changes.items():
        op = Op.DELETE if value is None else Op.MERGE if isinstance(value, tuple) else Op.PUT
        found.append(Record(op, key.encode(), value[0] if isinstance(value, tuple) else value))
    return found


@pytest.mark.parametrize("limit_bytes", [0, 500, 1 << 20], ids=["a file each", "files", "memory"])
@pytest.mark.parametrize("chunk", [1, 2, 10])
def test_changes_laid_over_a_snapshot(tmp_path: Path, limit_bytes: int, chunk: int) -> None:
    below = [(b"b", b"1"), (b"d", b"2"), (b"f", b"3"), (b"h", b"4"), (b"i", b"5")]
    header = CheckpointBuilder(tmp_path / "checkpoint").header(StoreId(0, 0), 1)
    overlay = Overlay(str(tmp_path), limit_bytes)
    overlay.apply(header, records(z=b"old", d=b"2", h=b"old", q=(b"1",), i=b"old"), name="x")
    overlay.apply(
        header,
        records(a=b"A", d=None, f=(b"+",), c=(b"C",), z=b"Z", y=None, h=b"H", q=(b"2",), i=None),
        name="x",
    )
    overlay.apply(header, records(i=(b"I",)), name="x")
    chunks = iter([below[n : n + chunk] for n in range(0, len(below), chunk)])
    found = list(laid_over(chunks, overlay.chunks()))
    assert all(found), "each part has an entry"
    assert [entry for part in found for entry in part] == [
        (b"a", b"A"), (b"b", b"1"), (b"c", b"C"), (b"f", b"3+"), (b"h", b"H"), (b"i", b"I"), (b"q", b"12"), (b"z", b"Z")
    ]  # fmt: skip
    assert list(laid_over(iter([below]), Overlay(str(tmp_path)).chunks())) == [below]


# ---- schema files --------------------------------------------------------------------------------

TEXT = '{"type":"struct","fields":[{"name":"k","type":"long","nullable":true,"metadata":{}}]}'


def chunked(text: str) -> bytes:
    half = len(text) // 2
    return (2).to_bytes(4, "big") + utf(text[:half]) + utf(text[half:])


def v3(spec: str) -> bytes:
    number = (0).to_bytes(2, "big")
    return (
        utf("v3")
        + (1).to_bytes(4, "big")
        + utf("x")
        + number
        + chunked(TEXT)
        + number
        + chunked(TEXT)
        + chunked(spec)
        + chunked("{ }")
    )


def test_schema_files() -> None:
    for data in (utf("v1") + utf(TEXT) * 2, utf("v2") + chunked(TEXT) * 2):
        (schema,) = parse_schema_file(data, prefix_columns=0, name="x")
        assert (schema.name, schema.key, schema.value, schema.kind) == ("default", K, K, "point")
        assert parse_schema_file(data, prefix_columns=1, name="x")[0].kind == "prefix"
        for cut in range(len(data)):
            with pytest.raises(FormatError):
                parse_schema_file(data[:cut], prefix_columns=0, name="x")
    spec = '{"keyStateEncoderType":"RangeKeyScanStateEncoderSpec","orderingOrdinals":[0]}'
    (schema,) = parse_schema_file(v3(spec), prefix_columns=0, name="x")
    assert (schema.kind, schema.ordinals) == ("range", (0,))
    with pytest.raises(FormatError):
        parse_schema_file(v3("{}"), prefix_columns=0, name="x")
    for unknown in (v3('{"keyStateEncoderType":"Other"}'), utf("v4")):
        with pytest.raises(UnsupportedError):
            parse_schema_file(unknown, prefix_columns=0, name="x")


def test_modified_utf8() -> None:
    assert modified_utf8(b"a\xc0\x80\xed\xa0\xbd\xed\xb8\x80\xc3\xbc", name="x") == "a\0\U0001f600ü"
    with pytest.raises(FormatError) as caught:
        modified_utf8(b"\xff", name="x")
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def test_plain_values() -> None:
    assert plain(
        {"a": [b"\0", dt.date(2024, 1, 2), dt.timedelta(seconds=1.5)], "b": float("nan")}
    ) == {
        "a": ["AA==", "2024-01-02", 1.5],
        "b": "nan",
    }
    assert [cell(value) for value in (None, True, 1, "x", {"a": 1})] == [
        "",
        "true",
        "1",
        "x",
        '{"a":1}',
    ]
