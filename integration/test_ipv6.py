"""A JVM that prefers IPv6, as Spark wants it on a Kubernetes cluster with IPv6 alone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from integration.harness import Harness, Schema, millponds_own
from integration.store_cases import open_provider

pytestmark = millponds_own


def test_the_agent_starts_below_a_jvm_that_prefers_ipv6(tmp_path: Path) -> None:
    """The JVM listened at ::1, and its agent asked at 127.0.0.1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    harness = Harness(tmp_path, env={"JAVA_TOOL_OPTIONS": "-Djava.net.preferIPv6Addresses=true"})
    try:
        provider = open_provider(
            harness,
            tmp_path / "checkpoint",
            operator="stateStoreSave",
            schema=Schema("k string", "v string"),
        )
        store = provider.store(0)
        store.put(["key"], ["value"])
        assert store.commit().version == 1
    finally:
        harness.stop()
