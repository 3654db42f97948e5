"""What a run of a peer leaves behind: its result, from which docs/reference/peers.md is made."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from integration.peers.results import Result, save

_VERSIONS = pytest.StashKey[dict[str, str]]()
_OUTCOMES = pytest.StashKey[dict[str, tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--peer`, which the make targets give."""
    parser.addoption("--peer", help="write the result of the run of this peer")


def pytest_configure(config: pytest.Config) -> None:
    """Start with no version and no outcome."""
    config.stash[_VERSIONS] = dict[str, str]()
    config.stash[_OUTCOMES] = dict[str, tuple[str, str]]()


@pytest.fixture(scope="session")
def versions(pytestconfig: pytest.Config) -> dict[str, str]:
    """Return the versions of what runs: the peer's fixtures fill it in, `{"Apache Kafka": ...}`."""
    return pytestconfig.stash[_VERSIONS]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember each test's worst outcome. A skip says why the test does not apply."""
    report: pytest.TestReport = yield
    outcomes = item.config.stash[_OUTCOMES]
    if report.failed:
        outcomes[item.nodeid] = ("failed", "")
    elif report.skipped:
        assert isinstance(report.longrepr, tuple)
        outcomes[item.nodeid] = ("not applicable", report.longrepr[2].removeprefix("Skipped: "))
    else:
        outcomes.setdefault(item.nodeid, ("passed", ""))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the result, if the run was a whole one."""
    config = session.config
    peer = config.option.peer
    whole = not config.option.keyword and config.option.markexpr == "peer"
    if peer is None or not whole or not config.stash[_OUTCOMES] or session.exitstatus > 1:
        return
    versions, outcomes = config.stash[_VERSIONS], config.stash[_OUTCOMES]
    save(Result.of(peer, versions, outcomes))
