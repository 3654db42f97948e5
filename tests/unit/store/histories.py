"""Histories of a store that collection finds, and its clock."""

from __future__ import annotations

import time

from millpond.model.ids import VersionId
from tests.agent_driver import Driver, Provider


class Clock:
    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms


def history(provider: Provider, until: int, *snapshots: int) -> list[VersionId]:
    provider.open(0)
    versions = [VersionId(0)]
    for version in range(1, until + 1):
        versions.append(provider.commit())
        if version in snapshots:
            provider.snapshot()
    return versions


def names(provider: Provider) -> list[str]:
    return [n for n in provider.stored() if not n.startswith("sst/")]


def recorded(provider: Provider, versions: list[VersionId]) -> Driver:
    driver = Driver(provider.checkpoint, provider.spark_format)
    for version in versions[1:]:
        driver.record(version)
    return driver
