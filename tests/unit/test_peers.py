"""How the jars of a peer are fetched; without Maven."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration.peers.maven import FetchError, fetch, is_fetched


@pytest.fixture
def pom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pom; a program that `_mvn` makes comes first on the path."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    (tmp_path / "pom.xml").write_text("<project/>")
    return tmp_path / "pom.xml"


def _mvn(tmp_path: Path, script: str) -> None:
    program = tmp_path / "bin/mvn"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)


def test_jars_are_fetched_once_for_each_pom(pom: Path, tmp_path: Path) -> None:
    target = tmp_path / "a folder" / "broker"
    touch = 'case $a in -DoutputDirectory=*) touch "${a#*=}/a.jar";; esac'
    _mvn(tmp_path, f'for a; do {touch}; done; echo x >> "{tmp_path}/runs"')
    for _ in range(2):
        fetch(pom, "broker", target)
        assert (target / "a.jar").is_file() and is_fetched(pom, "broker", target)
    assert (tmp_path / "runs").read_text() == "x\n"
    pom.write_text("<project></project>")
    assert not is_fetched(pom, "broker", target)
    fetch(pom, "broker", target)
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_out_of_reach_is_said_in_one_line_and_leaves_nothing(pom: Path, tmp_path: Path) -> None:
    _mvn(tmp_path, "echo Could not transfer artifact; exit 1")
    with pytest.raises(FetchError, match="Maven Central, which is out of reach") as caught:
        fetch(pom, "broker", tmp_path / "broker")
    assert "\n" not in str(caught.value)
    assert "Could not transfer" in (tmp_path / "broker.log").read_text()
    assert not (tmp_path / "broker").exists()


def test_no_mvn(pom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(FetchError, match="needs mvn"):
        fetch(pom, "broker", tmp_path / "broker")
    assert not (tmp_path / "broker").exists()
