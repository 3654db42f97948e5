"""Put defects into a copy of the sources, one at a time. Count the seeds until each is found.

Usage: python -m integration.simulation.mutants [--seeds 4000] [--only NAME ...] [--out FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from integration.jvm import REPO, millpond_jar
from integration.simulation.defects import MUTANTS, Mutant


@dataclass(frozen=True)
class Result:
    """What became of one mutant. `symptom` None: no seed found it."""

    mutant: Mutant
    passed: int
    symptom: str | None


def _source_tree(target: Path) -> None:
    """Copy what the build of the jar reads, and the package."""
    for part in ("jvm-shim", "python"):
        shutil.copytree(
            REPO / part, target / part, ignore=shutil.ignore_patterns("jars", "__pycache__")
        )
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(REPO / name, target / name)


def _build(root: Path) -> Path:
    spec = importlib.util.spec_from_file_location(
        "mutant_build", REPO / "jvm-shim" / "build_shim.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutant_build"] = module
    spec.loader.exec_module(module)
    return Path(module.build_jar(root, root / "jars"))


def mutated(root: Path, mutant: Mutant) -> None:
    """Put the defect into the sources below `root`.

    Raises: ValueError: a file does not have the text exactly once.
    """
    for file, old, new in mutant.edits:
        path = root / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name}: {file} has {text.count(old)} times {old!r}")
        path.write_text(text.replace(old, new))


def hunt(mutant: Mutant, seeds: int) -> Result:
    """Run seeds until one finds the defect."""
    with tempfile.TemporaryDirectory(prefix="millpond-mutant-") as directory:
        root = Path(directory)
        _source_tree(root)
        mutated(root, mutant)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root / "python" / "src"), str(REPO)]),
        }
        env["MILLPOND_TEST_JAR"] = str(_build(root) if mutant.is_scala else millpond_jar())
        command = [
            sys.executable,
            "-m",
            "integration.simulation",
            "--first",
            str(mutant.first),
            "--seeds",
            str(seeds),
            "--no-shrink",
            "--most",
            "1",
            "--processes",
            "1",
        ]
        done = subprocess.run(
            command, env=env, cwd=REPO, capture_output=True, text=True, check=False
        )
    counts = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout, re.MULTILINE)
    if counts is None:
        raise RuntimeError(f"{mutant.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    symptom = re.search(r"^\d+ times: (.*)$", done.stdout, re.MULTILINE)
    return Result(mutant, int(counts[1]), symptom[1] if symptom else None)


def table(results: list[Result]) -> str:
    """Return the results as a table in Markdown."""
    lines = ["| defect | seeds that passed before it was found | how it showed |", "|---|---|---|"]
    for result in results:
        again = " (mended before)" if result.mutant.again else ""
        found = str(result.passed) if result.symptom else f"not found in {result.passed}"
        lines.append(f"| {result.mutant.name}{again} | {found} | {result.symptom or ''} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Hunt all mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4000, help="give up after so many")
    parser.add_argument(
        "--only", nargs="*", default=(), help="those whose name has one of these texts"
    )
    parser.add_argument("--out", type=Path, help="write the table there")
    options = parser.parse_args(arguments)
    results = []
    for mutant in MUTANTS:
        if not options.only or any(text in mutant.name for text in options.only):
            results.append(hunt(mutant, options.seeds))
            print(table(results[-1:]).splitlines()[-1], flush=True)
    if options.out is not None:
        options.out.write_text(table(results))
    missed = [result for result in results if result.symptom is None]
    print(f"{len(results) - len(missed)} found, {len(missed)} not found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
