"""Documentation without Spark: links, what pages must mention, and what is generated.

It also checks blocks that nothing can run. `integration/test_docs.py` runs the other blocks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote

import pytest

from integration.doc_pages import Block, anchors, blocks, links, masked, name_of, pages, steps
from millpond import config
from millpond.cli.main import parser
from millpond.errors import ERRORS, ErrorKind
from millpond.spark.session import EXTENSION_CLASS, PROVIDER_CLASS
from tests.conftest import Golden

_PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_RUN = {"python", "console"}
_NOT_CODE = {"text", "json"}
ALL_BLOCKS = [block for page in pages() for block in blocks(page)]
BLOCKS_NOT_RUN = [
    block
    for block in ALL_BLOCKS
    if block.mark == "not run" or block.language not in _RUN | _NOT_CODE
]


def commands() -> list[tuple[str, argparse.ArgumentParser]]:
    """Return all commands in the order of `--help`, each with what precedes its arguments."""
    found: list[tuple[str, argparse.ArgumentParser]] = []

    def add(name: str, command: argparse.ArgumentParser) -> None:
        found.append((name, command))
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, below in action.choices.items():
                    add(f"{name} {word}", below)

    add("millpond", parser())
    return found


def cli_markdown() -> str:
    """Return the page on the command line."""
    parts = [
        "# Command line\n",
        "Generated from the command's own `--help`; do not edit.\n",
        (
            "Data goes to stdout, all else to stderr. The command needs no JVM, but for\n"
            "`savepoint plan`, `savepoint bootstrap`, `adopt`, `release`, the options `--job` and\n"
            "`--engine spark`, state of Spark's own stores, and files that only Hadoop reaches:\n"
            "`hdfs:`, `gs:`, and `abfs:` without the extra `azure`.\n"
            "[The tutorial](../tutorial.md) shows it at work.\n"
        ),
    ]
    for name, command in commands():
        parts.append(f"## {name}\n\n```text\n{command.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


def test_command_line_page_is_current(
    golden: Golden, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "102")  # Python 3.14 colours the help
    monkeypatch.setenv("NO_COLOR", "1")  # Python 3.14 paints help
    golden.check(repository / "docs/reference/cli.md", cli_markdown().encode())


def test_every_command_says_what_it_does() -> None:
    for name, command in commands():
        assert command.description or name in (
            "millpond checkpoint",
            "millpond savepoint",
            "millpond state",
            "millpond storage",
            "millpond conf",
            "millpond options",
            "millpond errors",
        )
        for action in command._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (
                f"{name}: {action.dest} has no help"
            )


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_relative_links_lead_somewhere(page: Path, repository: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(repository), f"{link} leads out of the repository"
        assert target.exists(), f"{link} leads nowhere"
        if fragment:
            assert fragment in anchors(target), (
                f"{link}: no such heading; there are {sorted(anchors(target))}"
            )


def test_every_page_can_be_reached_from_the_index(repository: Path) -> None:
    seen: set[Path] = set()
    todo = [repository / "README.md"]
    while todo:
        page = todo.pop()
        seen.add(page)
        for link in links(page):
            target = (page.parent / unquote(link).partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in seen:
                todo.append(target)
    assert set(pages()) <= seen


def test_every_option_is_in_the_reference(repository: Path) -> None:
    text = (repository / "docs/reference/configuration.md").read_text()
    assert [option.name for option in config.OPTIONS if f"| `{option.name}` |" not in text] == []


def test_every_error_kind_is_in_reference_and_troubleshooting(repository: Path) -> None:
    reference = (repository / "docs/reference/errors.md").read_text()
    guide = (repository / "docs/guides/troubleshooting.md").read_text()
    assert [kind.value for kind in ERRORS if f"| `{kind.value}` |" not in reference] == []
    assert [kind.value for kind in ERRORS if f"`{kind.value}`" not in guide] == []


def test_kinds_and_options_that_pages_name_exist() -> None:
    kinds = {kind.value for kind in ERRORS}
    for page in pages():
        text = page.read_text()
        for name in re.findall(r"MILLPOND_([A-Z]+(?:_[A-Z]+)*)\b", text):
            assert name in kinds | {
                "DEBUG",
                "DOCS_REWRITE",
                "LOG",
                "PROGRAMS",
                "TEST_JAR",
            }, f"{name_of(page)} names the kind {name}"
        for name in re.findall(re.escape(config.PREFIX) + r"([a-zA-Z]+(?:\.[a-zA-Z]+)*)", text):
            # One page provokes the error that names the nearest option.
            assert name in config.BY_NAME or name == "gc.graceMillis", (
                f"{name_of(page)} names the option {name}"
            )


def test_every_metric_is_in_the_reference_and_no_other(repository: Path) -> None:
    scala = (repository / "jvm-shim/src/main/scala/engine/StoreMetrics.scala").read_text()
    transport = repository / "jvm-shim/src/main/scala/transport"
    operators = [(transport / f"{name}Operator.scala").read_text() for name in ("Bulk", "Apply")]
    page = (repository / "docs/reference/metrics.md").read_text()
    declared = re.findall(r'Metric\(\s*"(millpond\w+)"', scala)
    declared += re.findall(r'"(millpond\w+)" ->', "".join(operators))
    assert len(declared) == len(set(declared)) > 0
    assert sorted(re.findall(r"^\| `(millpond\w+)` \|", page, re.MULTILINE)) == sorted(declared)
    named = {
        name for each in pages() for name in re.findall(r"`(millpond[A-Z]\w+)`", each.read_text())
    }
    assert named <= set(declared)


@pytest.mark.parametrize("block", BLOCKS_NOT_RUN, ids=str)
def test_blocks_that_are_not_run_are_right_as_far_as_can_be_told(
    block: Block, repository: Path
) -> None:
    if block.language == "properties":
        _check_settings(block.text)
        return
    assert block.mark == "not run" and block.argument, (
        f"{block} needs a comment that says why it is not run"
    )
    assert block.language in ("sh", "console"), f"{block} has a language that nothing checks"
    text = (
        block.text if block.language == "sh" else "\n".join(step.command for step in steps(block))
    )
    text = re.sub(r"<[a-z]+>", "placeholder", text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    targets = re.findall(r"^(\w+):", (repository / "Makefile").read_text(), re.MULTILINE)
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["make"]:
            assert set(words[1:]) <= set(targets), line
        if words and words[0].endswith("millpond"):
            parser().parse_args(words[1:])
        for word in words:
            if word.startswith("conf/"):
                assert (repository / word).is_file(), line


def _check_settings(text: str) -> dict[str, str]:
    settings = dict(
        line.split(None, 1)
        for line in text.splitlines()
        if line.strip() and not line.startswith("#")
    )
    assert all(name.startswith("spark.") for name in settings)
    config.resolve(
        {name: value for name, value in settings.items() if name.startswith(config.PREFIX)}
    )
    return {name: value.strip() for name, value in settings.items()}


@pytest.mark.parametrize("name", ["local.conf", "standalone.conf", "yarn.conf", "kubernetes.conf"])
def test_example_settings_switch_millpond_on(name: str, repository: Path) -> None:
    text = (repository / "conf" / name).read_text()
    settings = _check_settings(text)
    assert settings[_PROVIDER_KEY] == PROVIDER_CLASS
    assert settings["spark.sql.extensions"] == EXTENSION_CLASS
    assert re.search(r"(millpond-shim-spark\S+|/shim)\.jar$", settings["spark.jars"])
    # Settings that are commented out must be right too.
    commented = re.findall(r"^# ?(spark\.\S+\s+\S+)$", text, re.MULTILINE)
    _check_settings("\n".join(commented))


def test_text_blocks_hold_no_commands() -> None:
    for block in ALL_BLOCKS:
        assert block.language, f"{block} has no language"
        if block.language in _NOT_CODE:
            assert not re.search(r"^\$ ", block.text, re.MULTILINE), (
                f"{block} should be a console block"
            )


def test_pages_name_no_lines_of_code() -> None:
    for page in pages():
        assert not re.search(r"\.(?:py|scala):\d+|#L\d+|\blines? \d+", page.read_text()), name_of(
            page
        )


@pytest.mark.parametrize(
    "picture",
    sorted((Path(__file__).parents[2] / "docs").rglob("concepts/*.svg")),
    ids=lambda p: str(p.name),
)
def test_pictures_are_whole_and_readable_on_both_backgrounds(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    text = picture.read_text()
    assert root.get("aria-label") and root.get("viewBox")
    assert "prefers-color-scheme: dark" in text
    classes = {name for element in root.iter() for name in (element.get("class") or "").split()}
    assert all(re.search(rf"\.{re.escape(name)} ", text) for name in classes)


def test_masking_leaves_the_words() -> None:
    assert masked("SSTs        2 (2.5 KiB)\n") == masked("SSTs   1,117 (12 B)\n")
    assert masked("  0  4  1 to 4  -  0   0 B  0-127\n") == masked(
        "  0  6  1 to 9  2 4  1  1.2 KiB  0-63\n"
    )
    assert masked("problems    0\n") != masked("problem     0\n")
    assert masked("  CHANGELOG_DAMAGED  state/0/1\n") != masked("  CHANGELOG_DAMAGED  state/0/2\n")


_CALLED = re.compile(r"`millpond ((?:[a-z-]+ ?)+)")


def test_commands_that_texts_name_exist(repository: Path) -> None:
    """A page or a hint names a command: a user pastes it."""
    there = {name.removeprefix("millpond ") for name, _ in commands()}
    groups = {name.split()[0] for name in there if " " in name}
    texts = {page.name: page.read_text() for page in pages()}
    for path in (repository / "python/src/millpond").rglob("*.py"):
        texts[str(path)] = re.sub(r'"\s+f?"', "", path.read_text())
    wrong = []
    for name, text in texts.items():
        for called in _CALLED.findall(text):
            words = called.split()
            command = " ".join(words[:2]) if words[0] in groups and len(words) > 1 else words[0]
            if command not in there | groups:
                wrong.append(f"{name}: millpond {command}")
    assert wrong == []


def test_pages_do_not_contradict_what_can_be_changed(repository: Path) -> None:
    """Partitions and max parallelism change in place, by a rescale: each page on them says so."""
    for page, near in (
        ("docs/guides/cluster.md", "spark.sql.shuffle.partitions` for a query"),
        ("docs/guides/migrating.md", "| `spark.sql.shuffle.partitions` |"),
        ("docs/guides/migrating.md", "| `maxParallelism` |"),
    ):
        text = (repository / page).read_text()
        assert "rescale" in text[text.index(near) :][:700], page
    limits = (repository / "docs/reference/limits.md").read_text()
    assert "limits.md" in ERRORS[ErrorKind.UNSUPPORTED].hint
    for part in ("Not supported", "Young", "What can go wrong", "How the agent can fail"):
        assert f"## {part}" in limits
