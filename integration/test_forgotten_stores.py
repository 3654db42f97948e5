# SPDX-License-Identifier: Apache-2.0
"""The agent forgets a store that was closed, though somebody still used it then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from integration.harness import Harness, ProviderError
from integration.jvm import REPO
from integration.processes import wait_until
from integration.provider import Provider
from integration.store_cases import PLAIN, open_provider

# The agent writes down the stores that it knows whenever it gets or forgets one.
_AGENT = """
import os, sys
from millpond.agent import __main__ as agent
from millpond.agent.context import Contexts

def noted(change):
    def then(self, *args):
        done = change(self, *args)
        with open(sys.argv[1] + ".new", "w") as out:
            out.write("\\n".join(key[0] for key in self._stores))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        return done
    return then

Contexts._make, Contexts.forget = noted(Contexts._make), noted(Contexts.forget)
code = agent.main()
sys.stderr.flush()
os._exit(code)
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agent") / "known"


@pytest.fixture(scope="module")
def harness(own_harness: Harness) -> Harness:
    """Return a JVM whose agent is this module's."""
    return own_harness


@pytest.fixture
def provider(harness: Harness, known: Path, tmp_path: Path) -> Provider:
    script, python = known.with_name("agent.py"), known.with_name("python")
    script.write_text(_AGENT)
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{REPO}:$PYTHONPATH" exec "{sys.executable}" "{script}" "{known}"\n'
    )
    python.chmod(0o755)
    conf = {"millpond.agent.python": str(python)}
    return open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)


def _is_known(known: Path, tmp_path: Path) -> bool:
    return str(tmp_path / "state") in known.read_text().split("\n")


def _begin(provider: Provider) -> None:
    store = provider.store(0)
    store.put(["a", 1], ["first"])
    store.commit()


def test_a_task_still_has_the_store(
    harness: Harness, provider: Provider, known: Path, tmp_path: Path
) -> None:
    _begin(provider)
    store = provider.store(1, task="lingers")
    store.put(["a", 1], ["second"])
    harness.hold("commit.publish")
    commit = harness.begin("commit", s=store.name, task="lingers")
    wait_until(harness.is_holding, seconds=60, what="the commit")
    provider.close()
    harness.let_go()
    assert harness.join(commit)["version"] == 2
    harness.end_task("lingers")
    assert not _is_known(known, tmp_path)


def test_a_snapshot_is_on_its_way(
    harness: Harness, provider: Provider, known: Path, tmp_path: Path
) -> None:
    _begin(provider)
    provider.store(1).abort()
    harness.hold("snapshot.upload")
    snapshot = harness.begin("snapshot", p=provider.name)
    wait_until(harness.is_holding, seconds=60, what="the snapshot")
    provider.close()
    harness.let_go()
    harness.join(snapshot)
    assert not _is_known(known, tmp_path)


def test_a_killed_task_loads_the_store(
    harness: Harness, provider: Provider, known: Path, tmp_path: Path
) -> None:
    _begin(provider)
    harness.hold("load.open")
    asked = {"p": provider.name, "s": harness.name("s"), "version": 1, "load_empty": True}
    load = harness.begin("get_store", **asked, task="killed")
    wait_until(harness.is_holding, seconds=60, what="the load")
    harness.end_task("killed")
    provider.close()
    assert not _is_known(known, tmp_path)
    harness.let_go()
    with pytest.raises(ProviderError, match="MILLPOND_STORE_CLOSED"):
        harness.join(load)
    assert not _is_known(known, tmp_path)
