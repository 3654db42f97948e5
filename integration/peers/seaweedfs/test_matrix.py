"""SeaweedFS as a place: the tests of all storages. Spark's logs are in a directory.

This release ignores `If-None-Match`: `millpond storage check` finds that, and names the option
with which queries run there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.peers.matrix import Place, PlaceContract, PlaceQueries, note
from millpond.cli.main import main
from millpond.storage import Storage, open_checkpoint
from tests.s3_server import HADOOP, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_ONE_OF_MANY = "put_if_absent_lets_one_of_many_win"
_MILLPOND = "spark.sql.streaming.stateStore.millpond."


def _place(weed: S3Server, **options: str) -> Place:
    """Return a bucket for the state.

    Args:
        options: Millpond's, by short name, with `_` for `.`.
    """
    root = f"s3://{weed.bucket()}/with space/ü%20"

    def open_there(uri: str) -> Storage:
        return open_checkpoint(uri, weed.settings(**options))

    return Place(
        storage="SeaweedFS",
        door="boto3",
        root=root,
        conf={
            f"{_MILLPOND}storage.uri": f"{root}/states",
            f"{_MILLPOND}storage.s3.endpoint": weed.endpoint,
            **{_MILLPOND + name.replace("_", "."): value for name, value in options.items()},
        },
        hadoop=HADOOP,
        state_only=True,
        open=open_there,
    )


@pytest.fixture
def place(weed: S3Server, boto: None) -> Place:
    """The state is in a bucket of the test. Millpond looks before it creates."""
    return _place(weed, storage_s3_conditionalPut="false")


class TestContract(PlaceContract):
    def test_put_if_absent_lets_one_of_many_win(self, storage: Storage) -> None:
        pytest.skip("the server creates no file once, so two writers at one instant may both win")


@pytest.mark.sample
def test_what_it_can_do(weed: S3Server, boto: None) -> None:
    note(_place(weed), "replaces_whole", "lists_at_once", "copies_itself")


@pytest.mark.sample
def test_storage_check_finds_what_it_lacks(
    weed: S3Server, boto: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user sees which part of the contract fails, and what to set."""
    uri = f"s3://{weed.bucket()}/checked"
    assert main(["storage", "check", uri]) == 1
    said = capsys.readouterr()
    assert "if_absent" in said.out
    assert "set the option storage.s3.conditionalPut to false" in said.err
    main(["storage", "check", uri, "--option", "storage.s3.conditionalPut=false", "--json"])
    results = json.loads(capsys.readouterr().out)["contract"]
    assert len(results) > 30
    assert {result["name"] for result in results if not result["ok"]} <= {_ONE_OF_MANY}


def test_large_objects(weed: S3Server, tmp_path: Path) -> None:
    """A large object goes up and comes down in parts."""
    body = b"0123456789abcdef" * (17 << 16)
    (tmp_path / "file").write_bytes(body)
    changes: dict[str, Any] = {
        "multipart_bytes": 5 << 20,
        "part_bytes": 5 << 20,
        "conditional_put": False,
    }
    storage = weed.storage(weed.bucket(), **changes)
    storage.put_file("x.sst", str(tmp_path / "file"), if_absent=True)
    storage.get_to_file("x.sst", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == body


class TestQueries(PlaceQueries):
    pass
