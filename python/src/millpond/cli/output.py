"""Where commands write: data to stdout, errors to stderr. How they print numbers and tables.

Many texts come from storage, and a stranger may have written it. A terminal would obey the control
characters in them, so they are shown as Python writes them: `\\x1b`.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from millpond.errors import InvalidInputError, MillpondError, UnavailableError
from millpond.local.os_errors import kind_of

if TYPE_CHECKING:
    from millpond.operations.inspect.logs import Problem

_MAX_PROBLEM_LINES = 200
_CONTROLS = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
# Of a text that may have several lines.
_IN_LINES = {code: shown for code, shown in _CONTROLS.items() if chr(code) not in "\n\t"}


class Stdout:
    """The process's stdout. What keeps it from taking data is an error of Millpond's, but for a
    reader that has closed its pipe: BrokenPipeError.
    """

    @property
    def encoding(self) -> str | None:
        """Its encoding; None: it takes all texts."""
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        """Write. Raises: UnavailableError: LOCAL_DISK_FULL, STORAGE_UNAVAILABLE."""
        try:
            return sys.stdout.write(text)
        except OSError as e:
            raise _untaken(e) from e

    def flush(self) -> None:
        """Write what is buffered. Raises: as `write`."""
        try:
            sys.stdout.flush()
        except OSError as e:
            raise _untaken(e) from e


def stand_in_for_closed() -> None:
    """Open the standard streams that the process was started without (`>&-`). Files that it opens
    would get their numbers, and what a process that it starts prints. Such a stdout takes no data,
    and such a stderr takes all.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)  # the lowest number that is free: this one
            os.set_inheritable(opened, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def show_all_texts() -> None:
    """Let stdout show what its encoding lacks as Python writes it, as stderr does: `\\xe9`, and
    `\\udce9` for a byte in the name of a file that is no text.

    That is for people. What programs read asks `Output.lacking`.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def give_up_stdout() -> None:
    """Drop what is buffered for stdout: it would fail again, with a complaint, when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _untaken(e: OSError) -> OSError | MillpondError:
    if isinstance(e, BrokenPipeError):
        return e
    give_up_stdout()
    return UnavailableError(
        f"cannot write to stdout: {e.strerror or e}",
        kind=kind_of(e),
        hint="Free space where stdout goes, or send it elsewhere.",
    )


class Output:
    """The two streams of a command.

    Args:
        data: where data goes; None: stdout.
    Attributes:
        data: where data goes.
    """

    def __init__(self, data: TextIO | None = None) -> None:
        self.data: TextIO | Stdout = data or Stdout()

    def lacking(self) -> str | None:
        """Return the encoding of the data if there are characters that it lacks, else None."""
        encoding = self.data.encoding
        try:
            "\U0010ffff".encode(encoding or "utf-8")
        except UnicodeEncodeError:
            return encoding
        return None

    def check_all_texts(self, what: str) -> None:
        """Refuse to write a format that programs read, and that cannot say what is lacking.

        Raises: InvalidInputError: INVALID_ARGUMENT.
        """
        if encoding := self.lacking():
            raise InvalidInputError(
                f"stdout has the encoding {encoding}, which lacks characters that {what} may have",
                hint="Set PYTHONIOENCODING=utf-8, or write a file with --output.",
            )

    def line(self, text: str = "") -> None:
        """Write a line of data."""
        self.data.write(text.translate(_IN_LINES) + "\n")

    def json(self, value: object) -> None:
        """Write `value` as indented JSON and a newline."""
        self.data.write(json.dumps(value, indent=2) + "\n")

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Iterable[int] = (),
        indent: str = "",
    ) -> None:
        """Write an aligned table. Columns in `right` are aligned right."""
        to_right = set(right)
        cells = [[text.translate(_CONTROLS) for text in row] for row in (head, *rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        for row in cells:
            texts = [
                c.rjust(w) if i in to_right else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            self.line((indent + "  ".join(texts)).rstrip())

    def message(self, text: str) -> None:
        """Write a line for the person who runs the command, not for whoever reads the data."""
        _say(f"millpond: {text}")

    def warnings(self, texts: Iterable[str]) -> None:
        """Write what a person must know although the command has done its work."""
        for text in texts:
            self.message(f"warning: {text}")

    def problems(self, found: Sequence[Problem]) -> None:
        """Write how many problems there are, and the first ones."""
        self.line(f"problems    {len(found):,}")
        for problem in found[:_MAX_PROBLEM_LINES]:
            self.line(f"  {problem.kind}  {problem.file}: {problem.message}")
        if len(found) > _MAX_PROBLEM_LINES:
            self.line(f"  and {len(found) - _MAX_PROBLEM_LINES} more (all with --json)")

    def hints(self, found: Iterable[Problem]) -> None:
        """Write what helps against the problems, each hint once."""
        for hint in dict.fromkeys(problem.hint for problem in found if problem.hint):
            self.message(f"hint: {hint}")

    def error(self, e: MillpondError) -> None:
        """Write an error: kind, message, hint."""
        self.message(f"{e.kind.value}: {e.message}")
        if e.hint:
            _say(f"  hint: {e.hint}")

    def flush(self) -> None:
        """Write out buffered data, so that what goes wrong shows here."""
        self.data.flush()


def _say(text: str) -> None:
    sys.stderr.write(text.translate(_IN_LINES) + "\n")


def bytes_text(size_bytes: int) -> str:
    """Return a size for people: `0 B`, `999 B`, `1.5 KiB`, `12.0 MiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count_text(count: int | None) -> str:
    """Return a count with separators, `-` for None."""
    return "-" if count is None else f"{count:,}"
