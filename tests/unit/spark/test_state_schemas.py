"""Schema files in which the values of one column family get another schema."""

from __future__ import annotations

import json
import struct

import pytest

from millpond.errors import FormatError
from millpond.spark.state_schemas import family_texts, modified_utf8, with_value_schema

_POINT = '{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}'


def _utf(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _chunked(*chunks: str) -> bytes:
    return struct.pack(">i", len(chunks)) + b"".join(map(_utf, chunks))


def _struct(*names: str) -> str:
    fields = [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names]
    return json.dumps({"type": "struct", "fields": fields})


def _family(name: str, key: str, value: str) -> bytes:
    texts = _utf(name) + struct.pack(">h", 0) + _chunked(key)
    return texts + struct.pack(">h", 3) + _chunked(value) + _chunked(_POINT) + _chunked("")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_file_of_one_column_family(version: str) -> None:
    """It becomes one of v2, in which texts may be long."""
    key, value = _struct("k"), _struct("a")
    text = _utf if version == "v1" else _chunked
    file = _utf(version) + text(key) + text(value)
    long = _struct(*(f"column{i}" for i in range(2_000)))
    changed = with_value_schema(file, "default", long, prefix_columns=1, name="it")
    assert changed.startswith(_utf("v2"))
    (family,) = family_texts(changed, prefix_columns=1, name="it")
    assert (family.key, family.value, family.kind) == (key, long, "prefix")


def test_others_stay_byte_by_byte() -> None:
    """Only the value of the named column family changes; its number stays."""
    one, two = _family("one", _struct("k"), _struct("a")), _family("two", _struct("k"), "{}")
    three = _family("three", _struct("k"), _struct("c"))
    file = _utf("v3") + struct.pack(">i", 3) + one + two + three
    changed = with_value_schema(file, "two", _struct("b"), prefix_columns=0, name="it")
    expected = _utf("v3") + struct.pack(">i", 3) + one
    assert changed == expected + _family("two", _struct("k"), _struct("b")) + three


def test_characters_as_java_writes_them() -> None:
    """NUL takes two bytes, a character beyond the basic plane two surrogates."""
    file = _utf("v3") + struct.pack(">i", 1) + _family("f", "{}", "{}")
    text = "a\0é€\U0001f600"
    changed = with_value_schema(file, "f", text, prefix_columns=0, name="it")
    written = b"a\xc0\x80\xc3\xa9\xe2\x82\xac\xed\xa0\xbd\xed\xb8\x80"
    assert struct.pack(">H", len(written)) + written in changed
    assert modified_utf8(written, name="it") == text
    (family,) = family_texts(changed, prefix_columns=0, name="it")
    assert family.value == text


def test_a_column_family_that_is_not_there() -> None:
    file = _utf("v3") + struct.pack(">i", 1) + _family("f", "{}", "{}")
    with pytest.raises(FormatError, match="no column family 'g'"):
        with_value_schema(file, "g", "{}", prefix_columns=0, name="it")
