"""How far long work has come: one line on stderr, drawn over and over on a terminal, and erased at the end. Nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BAR_WIDTH = 40


@contextmanager
def status_line(as_json: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Yield what draws a text in place of the one before; None where nobody looks: not on a terminal, or if output is `as_json`.

    However the block ends, the line is erased: what is printed next has a line of its own.
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
    """As `status_line`: a bar, from how much is done and how much there is in all. Work in several parts draws one after the other."""
    with status_line(as_json) as draw:
        if draw is None:
            yield None
            return

        def bar(done: int, total: int) -> None:
            share = min(1.0, done / total) if total else 1.0
            draw(f"[{'#' * int(share * _BAR_WIDTH):<{_BAR_WIDTH}}] {share:4.0%}")

        yield bar
