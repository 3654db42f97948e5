"""Values of options: from what a user sets to what the code uses, and back to words."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping

from millpond.config.table import (
    BY_NAME,
    GIB,
    KIB,
    MIB,
    OPTIONS,
    PREFIX,
    TIB,
    Option,
    OptionValue,
)
from millpond.errors import ErrorKind, InvalidInputError

_SIZE = re.compile(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


def resolve(raw: Mapping[str, object]) -> dict[str, OptionValue]:
    """Return the value of every option, by short name: what `raw` sets, else the default.

    Args:
        raw: texts (as in Spark's configuration) or values of the option's own type, by short or
            full name; None: unset. Bytes take `64m`, `1g`, `512kb` or a plain number.
    Raises:
        InvalidInputError: UNKNOWN_OPTION: no such option; the message names the nearest one.
            INVALID_OPTION: the value has the wrong type, or is out of bounds.
    """
    values: dict[str, OptionValue] = {option.name: option.default for option in OPTIONS}
    for key, value in raw.items():
        name = key[len(PREFIX) :] if key.startswith(PREFIX) else key
        option = BY_NAME.get(name)
        if option is None:
            raise _unknown(key, name)
        if value is not None:
            values[name] = _parse(option, value)
    return values


def setting_text(value: object) -> str:
    """Return a value as a setting of Spark has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse_near(names: Iterable[str]) -> None:
    """Raise InvalidInputError (UNKNOWN_OPTION) if a setting's name is nearly one of ours.

    Spark takes any name, and would ignore it. The shim has the same rule, for a query's start.
    """
    for name in names:
        parts = name.split(".")
        if name.startswith(PREFIX) or parts[0] != "spark":
            continue
        at = next((i for i, part in enumerate(parts) if _is_near(part)), 0)
        rest = ".".join(parts[at + 1 :])
        if rest and (at == 1 or (at > 1 and parts[1] == "sql")):
            raise InvalidInputError(
                f"the setting {name} does nothing; Millpond's options begin with {PREFIX}",
                kind=ErrorKind.UNKNOWN_OPTION,
                hint=f"Did you mean {PREFIX}{rest}? `millpond options` lists all.",
            )


def _is_near(part: str) -> bool:
    near = difflib.get_close_matches(part.lower(), ["millpond"], cutoff=0.85)
    return len(part) > 5 and bool(near)


def _unknown(key: str, name: str) -> InvalidInputError:
    lower = {option.name.lower(): option.name for option in OPTIONS}
    near = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.0)
    nearest = PREFIX + lower[near[0]]
    return InvalidInputError(
        f"there is no option {key}; the nearest is {nearest}",
        kind=ErrorKind.UNKNOWN_OPTION,
        hint=f"Did you mean {nearest}? `millpond options` lists all.",
    )


def _invalid(option: Option, value: object, expected: str) -> InvalidInputError:
    return InvalidInputError(
        f"{option.full_name}={value!r}: expected {expected}",
        kind=ErrorKind.INVALID_OPTION,
        hint=f"Set {option.full_name} to {expected}, or leave it out"
        + (f" (default {default_text(option)})." if option.default is not None else "."),
    )


def _parse(option: Option, value: object) -> OptionValue:
    text = value.strip() if isinstance(value, str) else value
    number: int | float
    if option.type == "str":
        if not isinstance(text, str) or text == "":
            raise _invalid(option, value, expected_text(option))
        if option.choices and text.lower() not in option.choices:
            raise _invalid(option, value, expected_text(option))
        return text.lower() if option.choices else text
    if option.type == "bool":
        parsed = {"true": True, "false": False}.get(text.lower()) if isinstance(text, str) else text
        if not isinstance(parsed, bool):
            raise _invalid(option, value, expected_text(option))
        return parsed
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise _invalid(option, value, expected_text(option))
    if option.type == "bytes":
        match = _SIZE.fullmatch(text) if isinstance(text, str) else None
        if match is not None:
            number = int(match[1]) * _UNITS[match[2].lower()]
        elif isinstance(text, int):
            number = text
        else:
            raise _invalid(option, value, expected_text(option))
    elif option.type == "int":
        if isinstance(text, float) or (
            isinstance(text, str) and not re.fullmatch(r"[+-]?[0-9]{1,18}", text)
        ):
            raise _invalid(option, value, expected_text(option))
        number = int(text)
    else:
        try:
            number = float(text)
        except ValueError:
            raise _invalid(option, value, expected_text(option)) from None
        if not math.isfinite(number):
            raise _invalid(option, value, expected_text(option))
    too_small = option.minimum is not None and number < option.minimum
    too_large = option.maximum is not None and number > option.maximum
    if too_small or too_large:
        raise _invalid(option, value, expected_text(option))
    return number


def size_text(size_bytes: int) -> str:
    """Return `size_bytes` in the shortest exact form for an option: `32m`, `1g`, `1000`."""
    for unit, factor in (("t", TIB), ("g", GIB), ("m", MIB), ("k", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def number_text(option: Option, value: int | float) -> str:
    """Return a bound or a default of `option` as a user would write it."""
    return size_text(int(value)) if option.type == "bytes" else str(value)


def expected_text(option: Option) -> str:
    """Return what a value must be: `a whole number from 1 to 65536`."""
    if option.choices:
        return "one of " + ", ".join(option.choices)
    text = {
        "str": "a text that is not empty",
        "int": "a whole number",
        "bytes": "a size such as 64m",
        "bool": "true or false",
        "float": "a number",
    }[option.type]
    if option.minimum is not None and option.maximum is not None:
        return (
            f"{text} from {number_text(option, option.minimum)} to"
            f" {number_text(option, option.maximum)}"
        )
    if option.minimum is not None:
        return f"{text} of at least {number_text(option, option.minimum)}"
    if option.maximum is not None:
        return f"{text} of at most {number_text(option, option.maximum)}"
    return text


def default_text(option: Option) -> str:
    """Return the default as a user would write it; `unset` if there is none."""
    value = option.default
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(option, value)
    return value
