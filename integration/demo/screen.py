"""Prints the demo's lines for people. On a terminal, one line shows the present state in place."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO


class Screen:
    """Writes lines, a live status line, and tables.

    Uses colours and the live line only if `out` is a terminal.
    """

    # Without a terminal a status line is an ordinary line. So it is rare.
    QUIET_S = 5.0
    LIVE_S = 0.1

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.tty = self.out.isatty()
        self.begun = time.monotonic()
        self._status_at = 0.0
        self._status_shown = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun

    def line(self, text: str = "", *, style: str = "") -> None:
        """Write one line that stays. `style`: `bold`, `red`, `green`, or none."""
        self._clear()
        codes = {"bold": "1", "red": "1;31", "green": "1;32"}
        if style and self.tty:
            text = f"\x1b[{codes[style]}m{text}\x1b[0m"
        self.out.write(text + "\n")
        self.out.flush()

    def stamped(self, text: str, *, style: str = "") -> None:
        """Write one line, after the seconds since the start."""
        self.line(f"[{self.elapsed_s:5.1f} s] {text}", style=style)

    def status(self, text: str) -> None:
        """Show `text` as the present state, unless the last text is too fresh."""
        now = time.monotonic()
        if now - self._status_at < (self.LIVE_S if self.tty else self.QUIET_S):
            return
        self._status_at = now
        if self.tty:
            self.live(text)
        else:
            self.stamped(text)

    def live(self, text: str) -> None:
        """Show `text` in the live line. Without a terminal, do nothing."""
        if not self.tty:
            return
        text = f"[{self.elapsed_s:5.1f} s] {text}"
        width = shutil.get_terminal_size().columns - 1
        self.out.write("\r\x1b[2K" + text[:width])
        self.out.flush()
        self._status_shown = True

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table. The first column is left-aligned, the others right-aligned."""
        cells = [head, *rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
        for index, row in enumerate(cells):
            first, *others = (
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            self.line("  ".join([first, *others]), style="bold" if index == 0 else "")
            if index == 0:
                self.line("  ".join("-" * width for width in widths))

    def _clear(self) -> None:
        if self._status_shown:
            self.out.write("\r\x1b[2K")
            self._status_shown = False


def human_bytes(count: int) -> str:
    """Return `count` bytes with a unit that keeps the text short: `512 B`, `3.4 MB`."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
