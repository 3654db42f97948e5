"""How a command, or a call of the Python API, was told to reach its storages.

That holds while the call runs, in its thread: `open_storage` and its like take it. One call opens
storages in many places, and all of them are to be reached in the same way. A thread or a process
that the call starts does not have it: whoever starts it hands it over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

from millpond.config import PREFIX, resolve, setting_text
from millpond.storage.settings import StorageSettings, storage_settings

_Call = TypeVar("_Call", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Given:
    """What a call was given.

    settings: how to reach storages. options: those of Millpond that the caller named; empty if
    somebody else made the settings.
    """

    settings: StorageSettings
    options: Mapping[str, object]


_GIVEN: ContextVar[Given | None] = ContextVar("millpond_storage", default=None)
NOTHING = Given(StorageSettings(), {})
"""What code of the user has, which a call runs: it may call Millpond in its own way."""


def given() -> Given:
    """Return what the running call was given."""
    return _GIVEN.get() or NOTHING


@contextmanager
def reached_by(what: Given) -> Iterator[None]:
    """Let the block reach its storages as another thread or process was told to."""
    before = _GIVEN.set(what)
    try:
        yield
    finally:
        _GIVEN.reset(before)


def given_conf() -> dict[str, str]:
    """Return the options of the running call as settings of Spark: full names, and texts."""
    return {
        PREFIX + name.removeprefix(PREFIX): setting_text(value)
        for name, value in given().options.items()
        if value is not None
    }


def place_of_new_state(named: str | None) -> str | None:
    """Return where the state of a new Spark checkpoint goes, as the option storage.uri has it: what
    the caller names, else what the running call was given.
    """
    return named if named is not None else given().settings.uri


def takes_options(call: _Call) -> _Call:
    """Let a function reach its storages by its argument `options`.

    options: by short or full name; None: as its caller does.
    Raises: InvalidInputError: UNKNOWN_OPTION, INVALID_OPTION.
    """

    @wraps(call)
    def with_options(*args: Any, options: Mapping[str, object] | None = None, **more: Any) -> Any:
        with nullcontext() if options is None else reached_by(given_by(options)):
            return call(*args, **more)

    return cast(_Call, with_options)


def given_by(options: Mapping[str, object]) -> Given:
    """Return what a caller gives that names `options`. Raises: as `takes_options`."""
    return Given(storage_settings(resolve(options)), dict(options))
