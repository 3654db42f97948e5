"""The docs as a site, without the generator.

The tests check the navigation, and the links of what is copied for the site.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

from integration.doc_pages import anchors, links, name_of, pages


@pytest.fixture(scope="module")
def stage() -> ModuleType:
    """Import docs/stage.py."""
    path = Path(__file__).parents[2] / "docs/stage.py"
    spec = importlib.util.spec_from_file_location("stage", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def copied(stage: ModuleType) -> list[Path]:
    """Return all files that the site is made of."""
    return list(stage.files())


def test_each_page_is_in_the_navigation_once(copied: list[Path], repository: Path) -> None:
    text = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text.partition("\nnav:")[2], re.MULTILINE)
    assert sorted(named) == sorted(name_of(path) for path in copied if path.suffix == ".md")
    assert {name_of(page) for page in pages()} <= set(named)


def test_links_lead_somewhere_on_pages_beside_docs_too(
    copied: list[Path], repository: Path
) -> None:
    """`tests/unit/test_docs.py` checks README and docs/ themselves."""
    others = [path for path in copied if path.suffix == ".md" and path not in pages()]
    assert repository / "CONTRIBUTING.md" in others
    for page in others:
        for link in links(page):
            path, _, fragment = unquote(link).partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target in copied, f"{name_of(page)}: {link}"
            if fragment:
                assert fragment in anchors(target), f"{name_of(page)}: {link}"


def test_a_link_that_leads_nowhere_ends_the_build(
    stage: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "REPOSITORY", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("[a](https://x/) [b](#here)\n```text\n[d](block)\n```\n")
    assert stage.linked(page) == set()
    page.write_text("[a](gone.md)")
    with pytest.raises(SystemExit, match=r"page\.md: gone\.md leads nowhere"):
        stage.linked(page)
    page.write_text("[a](../outside)")
    with pytest.raises(SystemExit):
        stage.linked(page)


def test_the_site_is_built_apart_from_what_readme_promises(repository: Path) -> None:
    """`make build` installs what extras ask for. The group `docs` is no extra."""
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    groups = text.partition("[dependency-groups]")[2].partition("\n[")[0]
    assert re.search(r'^docs = \["zensical>=[\d.]+,<\d+"\]$', groups, re.MULTILINE)
    assert text.count("zensical") == 1
