"""Runs the commands of docs/guides/kafka.md against the broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration.doc_pages import PEER_PAGES
from integration.peers.kafka.broker import Broker
from integration.test_docs import Machine, check_commands

pytestmark = [pytest.mark.spark, pytest.mark.peer]


@pytest.mark.parametrize("page", [page for page, peer in PEER_PAGES.items() if peer == "kafka"])
def test_commands_print_what_the_page_says(
    page: Path, kafka: Broker, connectors: list[Path], tmp_path: Path
) -> None:
    """The connector's jars are there already, so no package is fetched."""
    jars = os.pathsep.join(map(str, connectors))
    machine = Machine(
        tmp_path,
        settings=f"spark.driver.extraClassPath {jars}\n",
        places={"localhost:9092": kafka.servers},
        seconds=400,
    )
    check_commands(page, machine)
