"""How commands write texts that come from storage."""

from __future__ import annotations

import io

import pytest

from millpond.cli.output import Output
from millpond.errors import ErrorKind, error

_CONTROLS = "".join(map(chr, (*range(32), *range(127, 160))))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\rb", "a\\rb"),
        ("a\nb", "a\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("é\t", "é\\t"),
        ("\x7f\x9b", "\\x7f\\x9b"),
        ("日本 \U0001f600", "日本 \U0001f600"),
    ],
)
def test_a_table_shows_what_a_terminal_would_obey(text: str, shown: str) -> None:
    out = io.StringIO()
    Output(out).table(("k", "v"), [(text, "1"), ("", "2")])
    assert out.getvalue().splitlines()[1] == f"{shown}  1"
    width = max(len(shown), 1)
    assert out.getvalue() == f"{'k':<{width}}  v\n{shown}  1\n{'':<{width}}  2\n"


def test_lines_and_messages_keep_line_feeds_and_tabs_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output()
    output.line(_CONTROLS)
    output.message(_CONTROLS)
    output.warnings([_CONTROLS])
    output.error(error(ErrorKind.UNSAFE_PATH, _CONTROLS, hint=_CONTROLS))
    for text in capsys.readouterr():
        assert set(text) & set(_CONTROLS) == {"\n", "\t"}
        assert "\\x00" in text and "\\x1b" in text and "\\r" in text and "\\x9f" in text
