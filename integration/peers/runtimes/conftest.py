"""The versions of the Javas and Pythons that were found."""

from __future__ import annotations

import pytest

from integration.peers.runtimes.found import RUNTIMES, Missing, full_version, is_prepared


@pytest.fixture(autouse=True, scope="session")
def _found(versions: dict[str, str]) -> None:
    for runtime in RUNTIMES:
        if not is_prepared(runtime):
            continue
        try:
            found = full_version(runtime)
        except Missing:
            continue  # the tests say so
        before = versions.get(runtime.language)
        versions[runtime.language] = f"{before} and {found}" if before else found
