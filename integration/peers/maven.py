"""Jars from Maven Central, by mvn."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from integration.peers.fetching import FetchError, emptied, has, keep, need, run


def is_fetched(pom: Path, profile: str, target: Path) -> bool:
    """Return whether `target` has what the pom names now."""
    return has(target, _key(pom, profile))


def fetch(pom: Path, profile: str, target: Path) -> None:
    """Fetch the jars of a profile of a pom, and all that they need, into `target`, unless they are
    there.

    Raises: FetchError: no mvn, or Maven Central is out of reach.
    """
    if is_fetched(pom, profile, target):
        return
    need("mvn", "maven", "fetches the jars")
    work = emptied(target.with_name(f".{target.name}"))
    command = ["mvn", "-q", "-B", "-f", str(pom), "-P", profile, "dependency:copy-dependencies"]
    run(
        [*command, "-DincludeScope=runtime", f"-DoutputDirectory={work}"],
        target.with_name(f"{target.name}.log"),
        "it needs Maven Central, which is out of reach, and ~/.m2 lacks jars",
    )
    keep(work, _key(pom, profile))
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)


def version(pom: Path, name: str) -> str:
    """Return a property of a pom, such as `kafka.version`."""
    found = re.search(f"<{re.escape(name)}>(.*?)</{re.escape(name)}>", pom.read_text())
    if found is None:
        raise FetchError(f"{pom} has no property {name}")
    return found[1]


def _key(pom: Path, profile: str) -> str:
    return f"{profile} {hashlib.sha256(pom.read_bytes()).hexdigest()}"
