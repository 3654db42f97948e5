"""Reads pages of documentation for tests: their fenced blocks, and their links.

A comment directly above a block steers its test:

    <!-- not run: reason -->     the block cannot run here; the test parses it and checks the rest
    <!-- file: name -->          the block is the content of a file in the working directory
    <!-- varies -->              numbers in the output vary; the test does not compare them
    <!-- output -->              the block is the output of the Python block above it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
# Pages whose blocks need another system. The tests of that peer run them.
PEER_PAGES = {REPOSITORY / "docs/guides/kafka.md": "kafka"}
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- (not run|file|varies|output)(?:: (.*?))? -->\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    `mark`: the first word of the comment above the block; "" without a comment. `argument`: the
    rest of the comment.
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
    """A command of a console block, and its output on the page."""

    block: Block
    command: str
    output: str


def pages() -> list[Path]:
    """Return the pages that tests check: README, and all below `docs`."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return the page's path in the repository."""
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
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
    """Return the commands of a console block, with their outputs.

    A command is a line that begins with `$ `. Its output goes on up to the next command.
    """
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    if parts[0].strip():
        raise AssertionError(f"{block} begins with output")
    return [
        Step(block, command, output)
        for command, output in zip(parts[1::2], parts[2::2], strict=True)
    ]


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Yield the targets of the page's links and pictures."""
    for match in _LINK.finditer(prose(page)):
        yield match[1] or match[2]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        kept = re.sub(
            r"[^\w\- ]", "", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        )
        found.add(kept.strip().replace(" ", "-"))
    return found


def masked(text: str) -> str:
    """Return `text` without numbers, times, ids, sums and widths of columns.

    Also without the warning that `adopt` prints within a minute of the query's last batch: on a
    slow machine a page's commands come later than that.
    """
    text = re.sub(r"^millpond: warning: .* was at work \d+ s ago\. .*\n?", "", text, flags=re.M)
    text = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\b", "<time>", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "<sum>", text)
    text = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>", text)
    text = re.sub(
        r"(?<![\w/.\-])(?:\.\.\.|-|[\d][\d,.]*(?:-\d+)?)(?=[ `]|$)", "#", text, flags=re.MULTILINE
    )
    text = re.sub(r"\b(?:B|KiB|MiB)\b", "B", text)
    text = re.sub(r"#(?: +#)+", "#", text)
    return re.sub(r" +", " ", text)


def with_output(page: Path, printed: dict[int, str]) -> str:
    """Return the page's text with other bodies in the blocks of these numbers."""
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
