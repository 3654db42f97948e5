"""A key is erased beside `millpond serve`: no answer has a row of some files that are of before it
and of others that are of after it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import millpond
from millpond.errors import ErrorKind
from millpond.serve.app import serve_app
from millpond.serve.following import Following
from millpond.serve.lookups import Limits
from tests.asgi import Answer, ask
from tests.erase_scenes import Deleting, erase_killed, keys_of, uncompressed


class Served:
    """A query whose logs show no batch after the fourth, its server, and a key that the fifth one
    deletes.
    """

    def __init__(self, root: Path, spark_format: int, batches: int) -> None:
        self.built = Deleting(root, spark_format=spark_format)
        self.built.build(batches, snapshots=(3,))
        self.key = min(keys_of(self.built, 0))
        self.hidden = self.built.hide(4, batches - 1)
        self.following = Following(root, every_ms=1)
        self.app = serve_app(self.following, Limits())

    def ask(self) -> Answer:
        body = json.dumps({"keys": [{"k": self.key}]}).encode()
        return ask(self.app, "/v1/lookup", method="POST", body=body)

    def rows(self) -> tuple[int, list[Any]]:
        told = self.ask().json()
        return told["batch"], [row["key"]["k"] for row in told["rows"]]


@pytest.fixture(autouse=True)
def readable_ssts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write SSTs that an erasure reads block by block."""
    monkeypatch.setattr(rocksdict, "Options", uncompressed)


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_store_that_is_opened_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_format: int
) -> None:
    """It had the value of before the deletion: changelogs were written anew without the key, the
    snapshot below was not gone yet.
    """
    served = Served(tmp_path / "query", spark_format, 7)
    for batch in (4, 5, 6):
        served.built.show(served.hidden[batch])
    served.following.look()
    erase_killed(monkeypatch, served.built.root, served.key, files=3)
    for _ in range(2):
        answer = served.ask()
        assert answer.json()["error"]["code"] == "ERASE_UNFINISHED"
    millpond.erase([served.built.root], key={"k": served.key})
    assert served.rows() == (6, [])
    assert served.following.problem is None
    served.following.stop()


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_store_that_was_open_before(tmp_path: Path, spark_format: int) -> None:
    """The changelog that deletes the key was read when it was written anew, without the key."""
    served = Served(tmp_path / "query", spark_format, 5)
    assert served.rows() == (3, [served.key])
    served.built.show(served.hidden[4])
    millpond.erase([served.built.root], key={"k": served.key})
    served.following.look()
    problem = served.following.problem
    assert problem is None or problem.kind is ErrorKind.ERASE_UNFINISHED
    served.following.look()
    assert served.following.problem is None
    assert served.rows() == (4, [])
    served.following.stop()
