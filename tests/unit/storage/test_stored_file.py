"""An object is read the same way, whether it lies on a local disk or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import ErrorKind, NotFoundError, UnavailableError
from millpond.storage import LocalStorage, MemoryStorage, Storage
from millpond.storage.stored_file import stored_file


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made: Storage = (
        LocalStorage(str(tmp_path / "root")) if request.param == "local" else MemoryStorage()
    )
    made.put_bytes("a/b", b"content")
    return made


@pytest.mark.parametrize("copied", [False, True])
def test_content_and_absence(storage: Storage, tmp_path: Path, copied: bool) -> None:
    copy = str(tmp_path / "copy") if copied else None
    for _ in range(2):  # a copy of before is replaced
        with stored_file(storage, "a/b", copy=copy) as file:
            assert file.read() == b"content"
    with pytest.raises(NotFoundError) as absent, stored_file(storage, "a/c", copy=copy):
        pass
    assert absent.value.kind is ErrorKind.OBJECT_NOT_FOUND


@pytest.mark.parametrize("storage", ["remote"], indirect=True)
def test_a_copy_that_is_lost_is_no_lost_object(storage: Storage, tmp_path: Path) -> None:
    """`state blame` took the rows below for ones that are not kept, and told no error."""
    copy = tmp_path / "copy"
    with pytest.raises(UnavailableError) as lost, stored_file(storage, "a/b", copy=str(copy)):
        open(tmp_path / "gone")  # noqa: SIM115 - it is not there
    assert lost.value.kind is ErrorKind.LOCAL_FILES_LOST
