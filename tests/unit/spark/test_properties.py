"""spark-defaults.conf is read as Java's `Properties.load` reads it."""

from __future__ import annotations

import pytest

from millpond.spark.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a comment\n! another\n  \t# and one\n\n", {}),
        ("a b", {"a": "b"}),
        ("a=b\r\nc:d\re  \t= f  ", {"a": "b", "c": "d", "e": "f"}),
        ("a\n", {"a": ""}),
        ("a = b = c:d", {"a": "b = c:d"}),
        ("a b\na c", {"a": "c"}),
        (
            "jars /a.jar,\\\n      /b.jar,\\\r\n\t/c.jar\nd e",
            {"jars": "/a.jar,/b.jar,/c.jar", "d": "e"},
        ),
        ("a b\\\\\nc d", {"a": "b\\", "c": "d"}),  # a backslash, and no continuation
        ("a b\\\n# no comment", {"a": "b# no comment"}),
        ("# a comment does not go on \\\na b", {"a": "b"}),
        ("a b\\", {"a": "b"}),
        ("a b\\\n\nc d", {"a": "b", "c": "d"}),
        (r"a\ b\=c d", {"a b=c": "d"}),
        (r"a \u00e4\t\n\q", {"a": "ä\t\nq"}),
        ("a b\u2028c\x0bd", {"a": "b\u2028c\x0bd"}),  # no ends of a line
    ],
)
def test_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
