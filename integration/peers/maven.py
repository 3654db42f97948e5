"""Jars from Maven Central, by mvn."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path


class FetchError(Exception):
    """The jars are not there, and Maven cannot fetch them. The message is one line."""


def is_fetched(pom: Path, profile: str, target: Path) -> bool:
    """Return whether `target` has what the pom names now."""
    done = target / ".fetched"
    return done.is_file() and done.read_text() == _key(pom, profile)


def fetch(pom: Path, profile: str, target: Path) -> None:
    """Fetch the jars of a profile of a pom, and all that they need, into `target`, unless they are
    there.

    Raises: FetchError: no mvn, or Maven Central is out of reach.
    """
    if is_fetched(pom, profile, target):
        return
    if shutil.which("mvn") is None:
        raise FetchError("it needs mvn, which fetches the jars; on Debian: apt-get install maven")
    work, log = target.with_name(f".{target.name}"), target.with_name(f"{target.name}.log")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = ["mvn", "-q", "-B", "-f", str(pom), "-P", profile, "dependency:copy-dependencies"]
    with log.open("wb") as said:
        done = subprocess.run(
            [*command, "-DincludeScope=runtime", f"-DoutputDirectory={work}"],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise FetchError(
            f"it needs Maven Central, which is out of reach, and ~/.m2 lacks jars; {log} says more"
        )
    (work / ".fetched").write_text(_key(pom, profile))
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)


def version(pom: Path, name: str) -> str:
    """Return a property of a pom, such as `kafka.version`."""
    found = re.search(f"<{re.escape(name)}>(.*?)</{re.escape(name)}>", pom.read_text())
    if found is None:
        raise FetchError(f"{pom} has no property {name}")
    return found[1]


def _key(pom: Path, profile: str) -> str:
    return f"{profile} {hashlib.sha256(pom.read_bytes()).hexdigest()}\n"
