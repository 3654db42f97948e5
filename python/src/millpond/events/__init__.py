"""One line in the log for each event that somebody may ask about later, with the same fields
everywhere.

`table.py` declares the events. The build runs this package before it is installed, so it imports
nothing but the standard library. A line has neither credentials nor rows of the state.
"""

from __future__ import annotations

import json
import logging
import re

from millpond.events.table import EVENTS, FIELDS, STORE_FIELDS, EventInfo

__all__ = ["EVENTS", "FIELDS", "STORE_FIELDS", "EventInfo", "emit", "line", "shortened"]

_log = logging.getLogger("millpond.events")
_PLAIN = re.compile(r"[A-Za-z0-9_.:/+-]+")
_MOST_CHARACTERS = 300
_LEVELS = {"INFO": logging.INFO, "WARN": logging.WARNING}


def emit(name: str, **fields: str | int) -> None:
    """Log an event of the agent.

    Args:
        name: as in the table.
        fields: all that the table names for the event, in its order.
    """
    _log.log(_LEVELS[EVENTS[name].level], "%s", line(name, **fields))


def line(name: str, **fields: str | int) -> str:
    """Return the text of an event: `event=<name>`, then each field. A text that is more than a
    plain word is quoted as in JSON.
    """
    parts = {"event": name, **fields}
    return " ".join(f"{field}={_value(value)}" for field, value in parts.items())


def shortened(message: str) -> str:
    """Return a message as the field `reason` has it."""
    return (
        message
        if len(message) <= _MOST_CHARACTERS
        else message[: _MOST_CHARACTERS - 3].rstrip() + "..."
    )


def _value(value: str | int) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
