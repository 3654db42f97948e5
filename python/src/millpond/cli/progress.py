"""How far long work has come: one line on stderr, redrawn on a terminal and erased at the end. If
stderr is not a terminal, nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BAR_WIDTH = 40


@contextmanager
def status_line(as_json: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Yield a function that draws a text in place of the text before. Yield None if stderr is not a
    terminal, or if the output is JSON.

    The line is erased however the block ends, so that what is printed next starts on a line of its
    own.
    """
    if not sys.stderr.isatty() or as_json:
        yield None
        return
    drawn = ""

    def draw(text: str) -> None:
        nonlocal drawn
        if text != drawn:
            # Spaces, not an escape sequence: every terminal knows them.
            sys.stderr.write(f"\r{text.ljust(len(drawn))}")
            sys.stderr.flush()
            drawn = text

    try:
        yield draw
    finally:
        if drawn:
            sys.stderr.write(f"\r{' ' * len(drawn)}\r")
            sys.stderr.flush()


@contextmanager
def progress_bar(as_json: bool) -> Iterator[Callable[[int, int], None] | None]:
    """As `status_line`, but draws a bar: how much is done, how much there is in all.

    If work has several parts, each draws its own bar.
    """
    with status_line(as_json) as draw:
        if draw is None:
            yield None
            return

        def bar(done: int, total: int) -> None:
            share = min(1.0, done / total) if total else 1.0
            draw(f"[{'#' * int(share * _BAR_WIDTH):<{_BAR_WIDTH}}] {share:4.0%}")

        yield bar
