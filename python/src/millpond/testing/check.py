"""Run the contract of storages (`storage_contract`) on a user's storage. Reports failures instead
of raising them. Needs pytest.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from millpond.storage import Storage
from millpond.testing.storage_check import CheckResult
from millpond.testing.storage_contract import StorageContract


class TestStorage(StorageContract):
    """Gives pytest the suite to collect. The fixture `storage` comes from `_Plugin`."""


class _Plugin:
    def __init__(self, make: Callable[[str], Storage]) -> None:
        self._make = make
        self._count = 0
        self.results: list[CheckResult] = []

    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        """Provide an empty storage below its own prefix; empty it afterwards."""
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
    """Run every test of the contract. Return their results.

    Args:
        make: given a name, returns an empty storage below the place that is checked.
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
