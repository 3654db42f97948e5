# SPDX-License-Identifier: Apache-2.0
"""What the charts of the docs have in common: the frame of a document, colours, texts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

TEXT, FAINT, GRID = "#1f2933", "#616e7c", "#d9dee4"


def document(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """Return an SVG document on white. `title` is for those who cannot see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif"'
            ' font-size="13" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title, quote=False)}</title>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = TEXT,
) -> str:
    """Return a line of text at a place."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
    )
