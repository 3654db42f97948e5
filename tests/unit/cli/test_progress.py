"""The line that long work draws on a terminal, as the other side of the terminal sees it."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond import api, savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, UnavailableError
from tests.row_checkpoints import RowsBuilder


class Terminal:
    """A pseudo-terminal as stderr. It reads along, as a terminal does."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        self.stderr = os.fdopen(slave, "w")
        self._seen = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # Linux raises this when the other side is closed
                return
            if not data:
                return
            self._seen += data

    def close(self) -> str:
        """Return everything that was written."""
        if not self.stderr.closed:
            self.stderr.close()
            self._reader.join()
            os.close(self._master)
        return self._seen.decode()


def screen(text: str) -> list[str]:
    """Return the lines that stay visible."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return [line for line in lines if line]


Command = Callable[[list[str]], str]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run a command. Return what it wrote to the terminal that is its stderr."""

    def run(arguments: list[str]) -> str:
        terminal = Terminal()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", terminal.stderr)
                main(arguments)
        finally:
            text = terminal.close()
        return text

    yield run


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("places")
    built = RowsBuilder(root / "job").build()
    savepoint.create(built.root, root / "tables", format="canonical")
    return str(built.root), str(root / "tables")


def commands(job: str, tables: str, new: str) -> list[list[str]]:
    return [
        ["savepoint", "create", job, f"{new}-1", "--format", "canonical"],
        ["savepoint", "restore", tables, f"{new}-2"],
        ["fork", job, f"{new}-3", "--partitions", "3"],
        ["savepoint", "verify", tables],
        ["savepoint", "diff", job, tables],
        ["checkpoint", "verify", job],
    ]


BAR = re.compile(r"\[#* *\] +\d+%")


@pytest.mark.parametrize("number", range(6))
def test_bar(places: tuple[str, str], tmp_path: Path, on_terminal: Command, number: int) -> None:
    text = on_terminal(commands(*places, str(tmp_path / "new"))[number])
    assert "100%" in text and len(BAR.findall(text)) > 1
    assert screen(text) == [], "nothing of the bar is left"


@pytest.mark.parametrize("number", range(6))
def test_no_bar(
    places: tuple[str, str],
    tmp_path: Path,
    on_terminal: Command,
    capfd: pytest.CaptureFixture[str],
    number: int,
) -> None:
    assert on_terminal([*commands(*places, str(tmp_path / "new"))[number], "--json"]) == ""
    assert main(commands(*places, str(tmp_path / "other"))[number]) == 0
    assert capfd.readouterr().err == "", "without a terminal, stderr gets nothing"


def test_rows_that_are_written_to_a_file(
    places: tuple[str, str], tmp_path: Path, on_terminal: Command
) -> None:
    text = on_terminal(
        ["state", "read", places[0], "--format", "csv", "--output", str(tmp_path / "rows.csv")]
    )
    assert "\r8 rows" in text
    assert screen(text) == [f"millpond: 8 rows written to {tmp_path / 'rows.csv'}"]


def test_an_error_has_its_own_line(
    places: tuple[str, str], tmp_path: Path, on_terminal: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(progress: Any, **_: Any) -> None:
        progress(1, 3)
        raise UnavailableError("the disk is gone", kind=ErrorKind.STORAGE_UNAVAILABLE)

    monkeypatch.setattr(api, "adopt", failing)
    monkeypatch.setattr(api, "release", failing)
    for command in (["adopt"], ["release", "--provider", "rocksdb"]):
        text = on_terminal([*command, "a", "b"])
        assert "33%" in text
        assert screen(text)[0] == "millpond: STORAGE_UNAVAILABLE: the disk is gone"
