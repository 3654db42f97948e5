"""Pages of documentation as tests see them: their fenced blocks, the comments that say what to do
with those, and their links.

A comment directly above a block steers it:

    <!-- not run: reason -->     it cannot run here; it is parsed, and checked where it can be
    <!-- file: name -->          it is the content of a file in the working directory
    <!-- varies -->              numbers of the output differ from run to run: they are not compared
    <!-- output -->              the block is what the Python block above it prints
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- (not run|file|varies|output)(?:: (.*?))? -->\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    `mark` is the word of the comment above it ("" if there is none), `argument` what follows the
    word.
    """

    page: str  # relative to the repository
    number: int  # within the page
    language: str
    text: str
    mark: str
    argument: str

    def __str__(self) -> str:
        return f"{self.page}, block {self.number} ({self.language})"


@dataclass(frozen=True)
class Step:
    """A command of a console block, and what the page says that it prints."""

    block: Block
    command: str
    output: str


def pages() -> list[Path]:
    """All pages that are checked: README, and what is under `docs`."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for number, match in enumerate(_FENCE.finditer(text), 1):
        indent, language, body = match[1], match[2], match[3]
        above = _COMMENT.search(text[: match.start()].rstrip())
        body = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        mark, argument = (above[1], above[2] or "") if above else ("", "")
        found.append(Block(name_of(page), number, language, body, mark, argument))
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a console block: lines that begin with `$ `, each with the lines up to the
    next.
    """
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    if parts[0].strip():
        raise AssertionError(f"{block} begins with output")
    return [
        Step(block, command, output)
        for command, output in zip(parts[1::2], parts[2::2], strict=True)
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Targets of the page's links and pictures."""
    for match in _LINK.finditer(prose(page)):
        yield match[1] or match[2]


def anchors(page: Path) -> set[str]:
    """The fragments by which a page's headings can be linked to (as GitHub makes them)."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        kept = re.sub(
            r"[^\w\- ]", "", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        )
        found.add(kept.strip().replace(" ", "-"))
    return found


def masked(text: str) -> str:
    """`text` with numbers, times, ids and widths of columns left out."""
    text = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\b", "<time>", text)
    text = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>", text)
    text = re.sub(
        r"(?<![\w/.\-])(?:\.\.\.|-|[\d][\d,.]*(?:-\d+)?)(?=[ `]|$)", "#", text, flags=re.MULTILINE
    )
    text = re.sub(r"\b(?:B|KiB|MiB)\b", "B", text)
    text = re.sub(r"#(?: +#)+", "#", text)
    return re.sub(r" +", " ", text)


def with_output(page: Path, printed: dict[int, str]) -> str:
    """The page's text with the bodies of some blocks (by number) replaced."""
    counter = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal counter
        counter += 1
        if counter not in printed:
            return match[0]
        body = "".join(
            match[1] + line if line.strip() else line
            for line in printed[counter].splitlines(keepends=True)
        )
        return f"{match[1]}```{match[2]}\n{body}{match[1]}```"

    return _FENCE.sub(replace, page.read_text(encoding="utf-8"))
