"""Run the contract of storages (`storage_contract`) against a place of the user's, and report instead of failing. Needs pytest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from millpond.storage import Storage
from millpond.testing.storage_contract import StorageContract


class TestStorage(StorageContract):
    """What pytest collects here; the fixture `storage` comes from `_Plugin`."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One test of the contract. `message`: the last line of what went wrong, "" if nothing did."""

    name: str
    ok: bool
    seconds: float
    message: str


class _Plugin:
    def __init__(self, make: Callable[[str], Storage]) -> None:
        self._make = make
        self._count = 0
        self.results: list[CheckResult] = []

    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        """An empty storage below a prefix of its own, emptied afterwards."""
        self._count += 1
        storage = self._make(str(self._count))
        yield storage
        storage.delete([info.key for info in storage.list("")])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            message = ""
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                message = str(crash.message if crash is not None else report.longrepr).splitlines()[
                    0
                ]
            name = report.nodeid.rpartition("::")[2].removeprefix("test_")
            self.results.append(CheckResult(name, report.passed, report.duration, message))


def run_contract(make: Callable[[str], Storage]) -> list[CheckResult]:
    """Run every test of the contract and return what became of each.

    Args:
        make: returns an empty storage, below the place that is checked, for the name that it is given.
    """
    plugin = _Plugin(make)
    with tempfile.TemporaryDirectory(prefix="millpond-check-") as directory:
        arguments = [
            "--import-mode=importlib",
            f"--rootdir={directory}",
            f"--basetemp={directory}/tmp",
            "-c",
            os.devnull,
        ]
        pytest.main(
            [
                __file__,
                *arguments,
                "-p",
                "no:cacheprovider",
                "-p",
                "no:terminal",
                "-p",
                "no:warnings",
            ],
            plugins=[plugin],
        )
    return plugin.results
