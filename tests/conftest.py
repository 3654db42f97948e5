"""Fixtures and settings for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Others share the two cores of the machine: a deadline would measure their load. A failing example
# prints the blob that replays it.
settings.register_profile(
    "millpond",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=60,
)
settings.load_profile("millpond")

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help=(
            "write golden files, test vectors and generated documentation anew instead of"
            " comparing; review the diff"
        ),
    )


class Golden:
    """Compares with committed files, or writes them under `--rewrite`."""

    def __init__(self, rewrite: bool) -> None:
        self.rewrite = rewrite

    def check(self, path: Path, content: bytes) -> None:
        """Assert that the file at `path` holds exactly `content`. With `--rewrite`, write it."""
        if self.rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return
        relative = path.relative_to(REPOSITORY)
        assert path.is_file(), (
            f"{relative} is missing: run `pytest {TESTS.name} --rewrite`, look at the diff,"
            " commit it"
        )
        assert path.read_bytes() == content, (
            f"{relative} is stale: run `pytest {TESTS.name} --rewrite`, look at the diff"
        )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--rewrite")))


@pytest.fixture
def repository() -> Path:
    """Return the root of the work tree."""
    return REPOSITORY
