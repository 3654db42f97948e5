"""Words of commands that users paste into a shell, whatever names are in them. Pure."""

from __future__ import annotations

import shlex


def option_words(option: str, value: str) -> list[str]:
    """Return an option with its value as the words of a command.

    A word that begins with a dash would be read as the next option: such a value stands in the word
    of its own option.
    """
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def path_word(path: str) -> str:
    """Return a path, or a URI, as a word that is not read as an option."""
    return f"./{path}" if path.startswith("-") else path


def path_text(path: str) -> str:
    """Return `path_word` as it is typed into a shell."""
    return shlex.quote(path_word(path))
