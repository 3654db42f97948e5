"""Runs every command and snippet of README and docs. Each must print what its page says.

`tests/unit/test_docs.py` has the checks without Spark. With `MILLPOND_DOCS_REWRITE=1` the tests do
not compare: they write the output into the pages. Review the diff then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.depth import asked_for, deep
from integration.doc_pages import (
    PEER_PAGES,
    REPOSITORY,
    Block,
    Step,
    blocks,
    masked,
    name_of,
    pages,
    steps,
    with_output,
)
from integration.jvm import LIGHT

pytestmark = pytest.mark.spark
REWRITE = bool(os.environ.get("MILLPOND_DOCS_REWRITE"))
_SECONDS = 150
_MARK = "@@millpond-docs"

# Runs the Python blocks of all pages in one process, because one JVM is enough. Each page has its
# own names and directory.
_RUNNER = f"""
import json, os, sys
for page in json.load(sys.stdin):
    os.makedirs(page["directory"], exist_ok=True)
    os.chdir(page["directory"])
    names = {{"__name__": "__main__"}}
    for number, code in page["blocks"]:
        print("{_MARK}", page["name"], number, flush=True)
        exec(compile(code, page["name"], "exec"), names)
        sys.stdout.flush()
print("{_MARK} end 0", flush=True)
"""


class Machine:
    """A directory with `.venv/bin` for each page, and an environment with a small, quiet Spark.

    Args:
        settings: more lines of `spark-defaults.conf`.
        places: what pages name -> what it is on this machine.
        seconds: until the commands of a page are ended.
    """

    def __init__(
        self,
        root: Path,
        *,
        settings: str = "",
        places: Mapping[str, str] | None = None,
        seconds: int = _SECONDS,
    ) -> None:
        self.root = root
        self.places = {"/tmp/pond": f"{root}/pond", **(places or {})}
        self.seconds = seconds
        self.bin = root / "bin"
        self.bin.mkdir()
        python = shlex.quote(sys.executable)
        programs = (("python", ""), ("python3", ""), ("millpond", "-m millpond.cli.main "))
        for name, arguments in programs:
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec {python} {arguments}"$@"\n')
            script.chmod(0o755)
        conf = root / "conf"
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text(
            "spark.ui.enabled false\nspark.driver.host 127.0.0.1\nspark.driver.bindAddress"
            " 127.0.0.1\nspark.driver.memory 700m\nspark.local.dir"
            f" {root}/local\nspark.sql.warehouse.dir"
            f" {root}/warehouse\nspark.driver.extraJavaOptions {LIGHT}\n{settings}"
        )
        self.env = {
            "PYSPARK_PYTHON": sys.executable,  # the one that has all packages
            **{
                k: v
                for k, v in os.environ.items()
                if not k.startswith(("PYSPARK_", "SPARK_", "MILLPOND_"))
            },
            "SPARK_CONF_DIR": str(conf),
            "PYTHONPATH": str(REPOSITORY / "python/src"),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }

    def directory(self, page: Path) -> Path:
        """Return the working directory of a page."""
        directory = self.root / name_of(page).replace("/", "-")
        if not directory.exists():
            (directory / ".venv").mkdir(parents=True)
            (directory / ".venv/bin").symlink_to(self.bin)
        return directory

    def run(self, command: list[str], *, cwd: Path, text: str) -> tuple[int, str, str]:
        """Run a command. Return its exit code, stdout and stderr.

        At the end, kill all processes that the command started.
        """
        out, err = cwd / ".stdout", cwd / ".stderr"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
            try:
                process.communicate(text, timeout=self.seconds)
            except subprocess.TimeoutExpired:
                stderr.write(f"\nended after {self.seconds} s\n")  # the caller names the step
            finally:
                with contextlib.suppress(ProcessLookupError):  # all processes have ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return process.returncode, out.read_text(), err.read_text()

    def local(self, text: str) -> str:
        """Return a block's text with the page's places replaced by this machine's."""
        for named, here in self.places.items():
            text = text.replace(named, here)
        return text

    def public(self, text: str) -> str:
        """Reverse `local`. Also replace this machine's paths by the page's example paths."""
        jar = re.sub(
            r"/\S*/site-packages/|/\S*/python/src/", "/opt/venv/lib/python3.11/site-packages/", text
        )
        for named, here in self.places.items():
            jar = jar.replace(here, named)
        return jar.replace(sys.executable, "/opt/venv/bin/python")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("docs"))


def _is_code(block: Block) -> bool:
    return block.language == "python" and block.mark not in ("not run", "file")


def _console(page: Path) -> list[Step]:
    return [
        step
        for block in blocks(page)
        if block.language == "console" and block.mark != "not run"
        for step in steps(block)
    ]


_PAGES = [page for page in pages() if page not in PEER_PAGES]
CODE_PAGES = [page for page in _PAGES if any(map(_is_code, blocks(page)))]
CONSOLE_PAGES = [page for page in _PAGES if _console(page)]
README = REPOSITORY / "README.md"
QUICK = (README,)


def _each(found: list[Path]) -> list[Any]:
    return [page if page in QUICK else deep(page) for page in found]


@pytest.fixture(scope="module")
def printed(request: pytest.FixtureRequest, machine: Machine) -> Mapping[tuple[str, int], str]:
    """Run the Python blocks of this run's pages. Return the output of each."""
    asked = asked_for(request, "page")
    work = [
        {
            "name": name_of(page),
            "directory": str(machine.directory(page)),
            "blocks": [
                (block.number, machine.local(block.text))
                for block in blocks(page)
                if _is_code(block)
            ],
        }
        for page in CODE_PAGES
        if page in asked
    ]
    # README says what happens if a user pastes it twice. It comes first, because other pages leave
    # their settings in the session.
    if README in asked:
        assert work[0]["name"] == "README.md"
        work.insert(1, {**work[0], "name": "README.md-again"})
    code, out, err = machine.run(
        [str(machine.bin / "python"), "-c", _RUNNER], cwd=machine.root, text=json.dumps(work)
    )
    parts = re.split(rf"^{_MARK} (\S+) (\d+)\n", out, flags=re.MULTILINE)
    assert code == 0, f"after {parts[-3:-1]}:\n{err[-3000:]}"
    return {
        (page, int(number)): text
        for page, number, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


@pytest.mark.parametrize("page", _each(CODE_PAGES), ids=name_of)
def test_python_blocks_run_and_print_what_the_page_says(
    page: Path, machine: Machine, printed: Mapping[tuple[str, int], str]
) -> None:
    found = blocks(page)
    rewritten = {}
    for block, following in zip(found, [*found[1:], None], strict=True):
        if not _is_code(block):
            continue
        text = machine.public(printed[block.page, block.number])
        if following is not None and following.mark == "output":
            if REWRITE:
                rewritten[following.number] = text
            else:
                assert text == following.text, str(following)
    if REWRITE:
        page.write_text(with_output(page, rewritten), encoding="utf-8")


@pytest.mark.parametrize("page", [README], ids=name_of)
def test_readme_counts_what_it_says(page: Path, printed: Mapping[tuple[str, int], str]) -> None:
    (block,) = [b for b in blocks(page) if _is_code(b)]
    for name, count in (("README.md", "100"), ("README.md-again", "200")):
        rows = re.findall(r"^\| +(\d) *\| +(\d+) *\|$", printed[name, block.number], re.MULTILINE)
        assert sorted(rows) == [(str(key), count) for key in range(10)]


@pytest.mark.parametrize("page", _each(CONSOLE_PAGES), ids=name_of)
def test_commands_print_what_the_page_says(
    page: Path, machine: Machine, request: pytest.FixtureRequest
) -> None:
    if page in CODE_PAGES:
        request.getfixturevalue("printed")  # its Python comes first
    check_commands(page, machine)


def check_commands(page: Path, machine: Machine) -> None:
    """Run the commands of a page. Each must print what the page says."""
    directory = machine.directory(page)
    for block in blocks(page):
        if block.mark == "file":
            (directory / block.argument).write_text(machine.local(block.text))
    todo = _console(page)
    # A disowned job is still `$!`, but bash does not report its end in the middle of a later step's
    # output. `$?` passes from step to step.
    script = [
        f"{{\n{machine.local(step.command)}\n{'disown' * step.command.endswith('&')}\n}}"
        f" 2>&1\ns=$?; echo; echo {_MARK} $s; (exit $s)\n"
        for step in todo
    ]
    _, out, err = machine.run(["bash"], cwd=directory, text="".join(script))
    parts = re.split(rf"^{_MARK} (\d+)\n", out, flags=re.MULTILINE)
    outputs = [text.removesuffix("\n") for text in parts[:-1:2]]
    logs = "".join(log.read_text()[-1500:] for log in directory.glob("*.log"))
    assert len(outputs) == len(todo), (
        f"`{todo[min(len(outputs), len(todo) - 1)].command}` did not end:\n{err}\n{logs}"
    )
    bodies: dict[int, str] = {}
    for step, text in zip(todo, outputs, strict=True):
        text = (
            machine.public(text)
            .replace(str(directory.resolve()), "/home/you/work")
            .replace(str(directory), "/home/you/work")
        )
        bodies[step.block.number] = bodies.get(step.block.number, "") + f"$ {step.command}\n{text}"
        if not REWRITE:
            same = masked if step.block.mark == "varies" else str
            assert same(text) == same(step.output), f"{step.block}: $ {step.command}"
    if REWRITE:
        page.write_text(with_output(page, bodies), encoding="utf-8")
