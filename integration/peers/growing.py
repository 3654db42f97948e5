"""What a real S3 server makes of a changelog that is sent while its batch runs.

Each test of a peer calls this with its server. `integration/test_growing_on_s3.py` has the faults.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from integration.growing import PARTS, ROWS, Scene
from integration.harness import Harness
from tests.s3_server import S3Server

_LATER_MS = 1 << 42  # the year 2109


class _Scene(Scene):
    """The server counts no requests. It lists the upload's parts."""

    def parts(self) -> int:
        client, sent = self.server.client(), 0
        for upload in self.uploads():
            where = {"Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            sent += len(client.list_parts(**where).get("Parts", ()))
        return sent


def growing_changelog(server: S3Server, work: Path, *, lists_by_prefix: bool = True) -> None:
    """Send changelogs of batches that are taken back, that are killed, and that are committed.

    Args:
        work: an empty folder.
        lists_by_prefix: the server lists the uploads below a folder.
    """
    with ExitStack() as ending:
        harness, doomed = Harness(work), Harness(work)
        ending.callback(doomed.stop)
        ending.callback(harness.stop)
        scene = _Scene(server, harness, work / "checkpoint")
        ending.callback(scene.provider.close)
        _check(scene, doomed, lists_by_prefix)


def _check(scene: _Scene, doomed: Harness, lists_by_prefix: bool) -> None:
    taken_back = scene.batch()
    scene.sent()
    assert len(scene.keys()) == 1, "nobody sees it before the commit"
    taken_back.abort()
    scene.all_end()
    assert len(scene.keys()) == 1

    scene.open(doomed).store(1, scene.first.id).put_numbered(ROWS)
    scene.sent()
    doomed.kill()
    assert scene.unfinished() == 1 and len(scene.keys()) == 1

    store = scene.batch()
    scene.sent(2 * PARTS)
    done = store.commit()
    assert store.metrics()["custom"]["millpondStoragePutRequests"] >= PARTS + 4
    assert scene.unfinished() == 1 and len(scene.keys()) == 2
    assert scene.drop_unfinished(0) == 0
    assert scene.drop_unfinished(_LATER_MS) == int(lists_by_prefix)
    assert scene.unfinished() == (0 if lists_by_prefix else 1)
    scene.check(done.id)
