"""Copies the pages of the site, and all that they link to, into build/docs as they lie here.

    python docs/stage.py     # what `make docs` does first

So a relative link means the same on the site as in the repository, and no page is changed.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

REPOSITORY = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def files() -> list[Path]:
    """Return README, all pages of docs/, and what is linked from these, and from what is linked.

    Raises: SystemExit: a link leads nowhere, or out of the repository.
    """
    found: set[Path] = set()
    todo = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    while todo:
        page = todo.pop()
        found.add(page)
        if page.suffix == ".md":
            todo += linked(page) - found
    return sorted(found)


def linked(page: Path) -> set[Path]:
    """Return the files that a page links to, pictures too. Raises: as `files`."""
    targets = set()
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = unquote(link).partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            target = (page.parent / path).resolve()
            if not target.is_file() or not target.is_relative_to(REPOSITORY):
                sys.exit(f"{page.relative_to(REPOSITORY)}: {link} leads nowhere")
            targets.add(target)
    return targets


def main() -> None:
    """Copy."""
    place = REPOSITORY / "build" / "docs"
    shutil.rmtree(place, ignore_errors=True)
    for file in files():
        copy = place / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


if __name__ == "__main__":
    main()
