"""Reads spark-defaults.conf as Spark does, by Java's `Properties.load`, as UTF-8."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")  # an odd number of backslashes
_BLANK = " \t\f"
_SETTING = re.compile(
    r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_TRIMMED = "".join(chr(n) for n in range(33) if chr(n) not in "\r\n")  # by Spark, of values
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings of a properties file; of a key that comes twice, the last one."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _SETTING.fullmatch(line)
        assert match is not None  # it fits every text
        found[_unescaped(match["key"])] = _unescaped(match["value"]).strip(_TRIMMED)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines that are no comments, each with those that continue it."""
    line = ""
    continues = False
    for natural in _LINE_END.split(text):
        bare = natural.lstrip(_BLANK)
        if not continues and (not bare or bare[0] in "#!"):
            continue
        continues = _CONTINUED.search(bare) is not None
        line += bare[:-1] if continues else bare
        if not continues:
            yield line
            line = ""
    if line:
        yield line


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _SHORT.get(match[2], match[2])

    return _ESCAPE.sub(one, text)
