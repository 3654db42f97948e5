"""Parses the text of a type, as users write it, to the JSON of Spark's schemas. Pure."""

from __future__ import annotations

import re

from millpond.errors import ErrorKind, InvalidInputError

_NAMES = {
    "boolean": "boolean",
    "bool": "boolean",
    "byte": "byte",
    "tinyint": "byte",
    "short": "short",
    "smallint": "short",
    "integer": "integer",
    "int": "integer",
    "long": "long",
    "bigint": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_WORDS = re.compile(r"\s*([a-zA-Z_]\w*|`(?:[^`]|``)+`|\d+|[<>(),:])")


def type_json(text: str) -> object:
    """Return the JSON of the type that `text` names, such as `long`, `decimal(10,2)`,
    `array<string>`, `map<string,long>`, `struct<a:long,b:string>`.

    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    words = _Words(text)
    kind = _type(words)
    if words.next():
        raise words.unknown()
    return kind


def field_json(name: str, kind: object) -> dict[str, object]:
    """Return the JSON of a column that may be null."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


class _Words:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._words = _WORDS.findall(text)
        if "".join(self._words) != re.sub(r"\s+(?=(?:[^`]*`[^`]*`)*[^`]*$)", "", text):
            raise self.unknown()

    def next(self) -> str:
        """Take a word; "" at the end."""
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else ""

    def expect(self, word: str) -> None:
        if self.next() != word:
            raise self.unknown()

    def number(self) -> int:
        word = self.next()
        if not word.isdigit():
            raise self.unknown()
        return int(word)

    def more(self, end: str) -> bool:
        """Take a comma or `end`. Return whether it was a comma."""
        word = self.next()
        if word not in (",", end):
            raise self.unknown()
        return word == ","

    def unknown(self) -> InvalidInputError:
        return InvalidInputError(
            f"{self._text!r} is no type of a column",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=(
                f"Write one of {', '.join(dict.fromkeys(_NAMES.values()))}, decimal(10,2),"
                " array<long>, map<string,long> or struct<a:long,b:string>."
            ),
        )


def _type(words: _Words) -> object:
    name = words.next().lower()
    if name in _NAMES:
        return _NAMES[name]
    match name:
        case "decimal":
            words.expect("(")
            precision, scale = words.number(), 0
            if words.more(")"):
                scale = words.number()
                words.expect(")")
            if 0 < precision <= 38 and scale <= precision:
                return f"decimal({precision},{scale})"
        case "array":
            words.expect("<")
            element = _type(words)
            words.expect(">")
            return {"type": "array", "elementType": element, "containsNull": True}
        case "map":
            words.expect("<")
            key = _type(words)
            words.expect(",")
            value = _type(words)
            words.expect(">")
            return {
                "type": "map",
                "keyType": key,
                "valueType": value,
                "valueContainsNull": True,
            }
        case "struct":
            words.expect("<")
            fields = []
            while True:
                column = words.next().strip("`").replace("``", "`")
                words.expect(":")
                fields.append(field_json(column, _type(words)))
                if not words.more(">"):
                    return {"type": "struct", "fields": fields}
    raise words.unknown()
