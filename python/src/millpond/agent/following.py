"""The changelogs that lead a store from a version that an executor has to a newer one.

Spark names the newer version, so nothing is listed: the header of its changelog names its
ancestors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

from millpond.agent.context import StoreContext
from millpond.agent.pending import check_wanted
from millpond.errors import ErrorKind, NotFoundError, error
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, read_header
from millpond.model.ids import VersionId
from millpond.model.lineage import walk
from millpond.storage.local import translate_restored
from millpond.store.files import read_changelog_header

log = logging.getLogger(__name__)


def changelogs_after(
    context: StoreContext, after: int, target: VersionId, *, local_dir: str
) -> list[dict[str, object]]:
    """Make the changelogs of versions `after + 1 .. target.version` readable on this machine.

    Args:
        after: below `target.version`.
        target: in Spark checkpoint format 1 its id is "": the newest attempt counts.
    Returns: the changelogs as the protocol describes them, ascending.
    Raises:
        NotFoundError: CHANGELOG_MISSING: one is not there, or was collected; VERSION_NOT_FOUND: the
            lineage begins above `after`.
        FormatError: CHANGELOG_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    here = _Here(context, local_dir)
    start = VersionId(target.version, here.header(target).id)
    steps: list[VersionId] = []
    for step in walk(start, here.header):
        if step.version <= after:
            break
        if step.id == "":
            raise error(
                ErrorKind.VERSION_NOT_FOUND,
                f"store {context.store}: the state begins with version {step.version}, and this"
                f" executor has version {after}",
            )
        steps.append(step)
    steps.reverse()
    wanted: list[Callable[[], object]] = [partial(here.path, step) for step in steps]
    if context.directory is None:
        context.checkpoint.parallel.run(wanted)
    log.info(
        "store followed store=%s version=%d changelogs=%d",
        context.store,
        target.version,
        len(steps),
    )
    return [{"version": step.version, "id": step.id, "path": here.path(step)} for step in steps]


class _Here:
    """The changelogs of a store, each fetched once if it is not on this machine's disk."""

    def __init__(self, context: StoreContext, local_dir: str) -> None:
        self._context = context
        self._local_dir = local_dir
        self._paths: dict[str, str] = {}
        self._check_wanted = check_wanted()  # of this thread's call; others fetch, too

    def path(self, version: VersionId) -> str:
        """Return where a changelog can be read."""
        context = self._context
        key = layout.changelog_key(context.store, version, context.spark_format)
        if key not in self._paths:
            path = context.storage.local_path(key)
            if path is None:
                self._check_wanted()
                path = os.path.join(self._local_dir, key.rpartition("/")[2])
                try:
                    context.storage.get_to_file(key, path)
                except NotFoundError as e:
                    raise _missing(key) from e
            elif not os.path.isfile(path):
                raise _missing(key)
            self._paths[key] = path
        return self._paths[key]

    def header(self, version: VersionId) -> ChangelogHeader:
        """Return the header of a changelog."""
        context, path = self._context, self.path(version)
        key = layout.changelog_key(context.store, version, context.spark_format)
        if context.storage.local_path(key) is not None:
            return read_changelog_header(context.storage, key)
        try:
            with open(path, "rb") as file:
                return read_header(file, name=key)
        except OSError as e:
            raise translate_restored(e, f"reading {path}") from e


def _missing(key: str) -> NotFoundError:
    return NotFoundError(f"{key} is not there", kind=ErrorKind.CHANGELOG_MISSING)
