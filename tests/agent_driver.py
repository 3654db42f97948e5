"""Drives an `AgentService` as the shim does.

It uses real changelogs and real directories. The content of a made-up SST says what is in it. The
state of a store is the sequence of ids of the commits that made it. So a test sees at once if a
restore mixes attempts, skips one or repeats one. An "SST" holds such ids as lines. A "RocksDB
checkpoint" is a directory of hard links, as RocksDB makes it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader, ChangelogReader, ChangelogWriter
from millpond.model.ids import StoreId, VersionId, new_id
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo
from millpond.storage import Storage
from millpond.storage.local import LocalStorage

Ids = tuple[str, ...]


class CallError(Exception):
    """The agent answered with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['message']}")
        self.kind = ErrorKind(error["kind"])
        self.message: str = error["message"]
        self.hint: str = error["hint"]


def call(service: AgentService, method: str, **request: Any) -> dict[str, Any]:
    """Call the agent, in JSON both ways. Raises: CallError."""
    answer = json.loads(service.handle(method, json.dumps(request)))
    if "error" in answer:
        raise CallError(answer["error"])
    ok: dict[str, Any] = answer["ok"]
    return ok


@dataclass
class Provider:
    """One provider of one store on one executor."""

    service: AgentService
    checkpoint: Path
    local_dir: Path
    operator: int = 0
    partition: int = 0
    name: str = "default"
    spark_format: int = 1
    partitions_hint: int | None = 4
    retain_versions: int = 3
    maintenance_ms: int = 0  # 0: nobody knows
    options: dict[str, Any] = field(default_factory=dict)
    run_id: str = "run"
    storage: Storage | None = None  # where the agent keeps the files; None: in `checkpoint`
    hadoop: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generation = 0
        self.plan: dict[str, Any] = {}
        self.version = 0
        self.lineage_base = 0
        self.lineage: list[str] = [""]  # ids of lineage_base..version
        self.files: dict[str, Ids] = {}  # the local SSTs
        self.pending: list[str] = []  # ids that no local SST holds yet
        self.next_file = 1
        self.local_dir.mkdir(parents=True, exist_ok=True)

    # ---- protocol

    @property
    def generation_dir(self) -> Path:
        return self.local_dir / f"g{self.generation}"

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        self.generation_dir.mkdir(exist_ok=True)
        store = {
            "root": f"file:{self.checkpoint}/state",
            "operator": self.operator,
            "partition": self.partition,
            "name": self.name,
            "run_id": self.run_id,
            "local_dir": str(self.generation_dir),
            "checkpoint_format": self.spark_format,
            "partitions_hint": self.partitions_hint,
            "options": self.options,
            "retain_versions": self.retain_versions,
            "min_deltas_for_snapshot": 2,
            "maintenance_interval_ms": self.maintenance_ms,
        }
        if self.hadoop:
            store["hadoop"] = dict(self.hadoop)
        return call(self.service, method, store=store, **request)

    @property
    def store(self) -> StoreId:
        return StoreId(self.operator, self.partition, self.name)

    @property
    def directory(self) -> Path:
        path = self.checkpoint / "state" / str(self.operator) / str(self.partition)
        return path if self.name == "default" else path / self.name

    @property
    def id(self) -> str:
        return self.lineage[-1]

    @property
    def snapshot_version(self) -> int:
        """Return the version of the snapshot that the plan begins with; 0: it has none."""
        db = self.plan["db"]
        return 0 if db is None else int(db["version"])

    @property
    def unscalable(self) -> str:
        """Return why the store cannot be rescaled, by its plan; "": it can."""
        rule: dict[str, str] = self.plan["partition_key"]
        return rule.get("reason") or str(self.plan["misplaced"])

    @property
    def state(self) -> Ids:
        """Return the ids of all commits in the state, oldest first."""
        return (*(i for name in sorted(self.files) for i in self.files[name]), *self.pending)

    def open(
        self,
        version: int,
        id: str | None = None,
        *,
        excluded: Sequence[str] = (),
        load_empty: bool = False,
        snapshot: VersionId | None = None,
        listed: bool = False,
    ) -> Ids:
        """Open at a version, and read everything that the plan names. Return the state."""
        self.generation += 1
        chosen = (
            {}
            if snapshot is None
            else {"snapshot_version": snapshot.version, "snapshot_id": snapshot.id or None}
        )
        self.plan = plan = self.call(
            "open",
            version=version,
            id=id,
            excluded=list(excluded),
            load_empty=load_empty,
            generation=self.generation,
            listed=listed,
            **chosen,
        )
        self.version, self.lineage_base, self.lineage = (
            version,
            plan["lineage_base"],
            list(plan["lineage"]),
        )
        self.files, self.pending = {}, []
        if plan["db"] is not None:
            db = Path(plan["db"]["dir"])
            manifest = (db / "CURRENT").read_text().strip()
            names = (db / manifest).read_text().splitlines()
            self.files = {name: tuple((db / name).read_text().split()) for name in names}
            assert {p.name for p in db.iterdir()} == {*names, "CURRENT", manifest}
            self.next_file = max((int(name[:6]) for name in names), default=0) + 1
        else:
            self.next_file = 1
        for entry in plan["changelogs"]:
            with open(entry["path"], "rb") as file:
                reader = ChangelogReader(file)
                self.pending += [record.key.decode() for record in reader]
            assert (reader.header.version, reader.header.id) == (entry["version"], entry["id"])
        assert len(self.lineage) == version - self.lineage_base + 1
        return self.state

    def changes(self, start_version: int, version: int, id: str | None = None) -> Ids:
        """Read everything that `change_feed` names. Return the ids of the commits, oldest first."""
        return _commits(
            self.call("change_feed", start_version=start_version, version=version, id=id)
        )

    def followed(self, after_version: int, version: int, id: str | None = None) -> Ids:
        """Read everything that `follow` names. Return the ids of the commits, oldest first."""
        return _commits(self.call("follow", after_version=after_version, version=version, id=id))

    def stage(self, version: int, id: str, *, empty_base: bool = False, misplaced: str = "") -> str:
        """Write the changelog of `version` to a staging file, as a commit does.

        Args:
            misplaced: why a key of the store is in the wrong place. "": no key is.
        """
        path = os.path.join(self.plan["staging_dir"], f".staging-{uuid.uuid4().hex}")
        header = ChangelogHeader(
            version=version,
            id=id,
            lineage_base=self.lineage_base,
            lineage=tuple(self.lineage),
            empty_base=empty_base,
            run_id=self.run_id,
            store=self.store,
            key_groups=KeyGroupsInfo(
                max_parallelism=self.plan["max_parallelism"],
                base=self.plan["base"],
                partitions=self.plan["partitions"],
                scalable=not (misplaced or self.unscalable),
                reason=misplaced or self.unscalable,
            ),
            column_families=(ColumnFamily("default", 0),),
            keys=version,
            created_by="test",
        )
        with open(path, "xb") as file:
            writer = ChangelogWriter(file, header, codec="none")
            writer.put(id.encode(), b"")
            writer.finish()
        return path

    def commit(self, id: str | None = None) -> VersionId:
        """Commit the next version. The state grows by its id."""
        id = id or new_id()
        version = self.version + 1
        staged = self.stage(version, id)
        size_bytes = os.path.getsize(staged)
        answer = self.call("publish_changelog", version=version, id=id, staged=staged)
        assert os.path.getsize(answer["path"]) == size_bytes
        self.version = version
        self.lineage.append(id)
        self.pending.append(id)
        return VersionId(version, id)

    @property
    def db_dir(self) -> Path:
        return self.generation_dir / f"db-{self.generation}"

    def flush(self, *, compact: bool = False) -> None:
        """Write the pending ids to a local SST. With `compact`, write all SSTs anew as one."""
        self.db_dir.mkdir(exist_ok=True)
        if compact:
            self.pending = list(self.state)
            for name in self.files:
                (self.db_dir / name).unlink()
            self.files = {}
        if self.pending:
            name = f"{self.next_file:06d}.sst"
            self.next_file += 1
            (self.db_dir / name).write_text("\n".join(self.pending))
            self.files[name] = tuple(self.pending)
            self.pending = []

    def rocksdb_checkpoint(self) -> tuple[Path, list[dict[str, Any]]]:
        """Hard-link the local SSTs into a new directory.

        Returns: the directory, and the files as the protocol describes them.
        """
        directory = self.generation_dir / f"snapshot-{uuid.uuid4().hex}"
        directory.mkdir()
        files = []
        for name, ids in sorted(self.files.items()):
            os.link(self.db_dir / name, directory / name)
            files.append(
                {
                    "name": name,
                    "size_bytes": (directory / name).stat().st_size,
                    "smallest_hex": "00",
                    "largest_hex": "ff",
                    "entries": len(ids),
                    "deletions": 0,
                    "level": 6,
                }
            )
        (directory / "CURRENT").write_text("MANIFEST-000005\n")
        (directory / "MANIFEST-000005").write_text("\n".join(sorted(self.files)))
        return directory, files

    def snapshot(self, *, compact: bool = False) -> dict[str, Any]:
        """Publish a snapshot of the current version."""
        self.flush(compact=compact)
        directory, files = self.rocksdb_checkpoint()
        answer = self.publish(directory, files)
        # Later commits need not name older ancestors.
        self.lineage = self.lineage[self.version - self.lineage_base :]
        self.lineage_base = self.version
        return answer

    def publish(self, directory: Path, files: list[dict[str, Any]]) -> dict[str, Any]:
        return self.call(
            "publish_snapshot",
            version=self.version,
            id=self.id,
            db_checkpoint=str(directory),
            files=files,
            keys=self.version,
            column_families=[{"name": "default", "id": 0, "kind": "point", "internal": False}],
            partitions=self.plan["partitions"],
            scalable=not self.unscalable,
            unscalable_reason=self.unscalable,
        )

    def collect(self, anchor: VersionId, *, force: bool = True) -> dict[str, Any]:
        return self.call(
            "collect",
            anchor_version=anchor.version,
            anchor_id=anchor.id if self.spark_format == 2 else None,
            force=force,
        )

    def stored(self, suffix: str = "") -> list[str]:
        """Return the names of this store's published files, sorted. An SST begins with `sst/`."""
        if self.storage is not None:
            prefix = layout.store_prefix(self.store)
            names = [info.key.removeprefix(prefix) for info in self.storage.list(prefix)]
            return sorted(name for name in names if name.endswith(suffix))
        if not self.directory.is_dir():
            return []
        names = [p.name for p in self.directory.iterdir() if p.is_file()]
        if (self.directory / "sst").is_dir():
            names += [f"sst/{p.name}" for p in (self.directory / "sst").iterdir()]
        return sorted(name for name in names if name.endswith(suffix))

    def read_stored(self, name: str) -> bytes:
        """Return the content of one of `stored`."""
        if self.storage is not None:
            return self.storage.read(layout.store_prefix(self.store) + name)
        return (self.directory / name).read_bytes()

    def replace_stored(self, name: str, data: bytes | None) -> None:
        """Give one of `stored` other content. None: delete it."""
        if self.storage is not None:
            key = layout.store_prefix(self.store) + name
            self.storage.delete([key])
            if data is not None:
                self.storage.put_bytes(key, data)
            return
        (self.directory / name).unlink()
        if data is not None:
            (self.directory / name).write_bytes(data)


@dataclass
class Driver:
    """What Spark's driver writes beside the state of one operator.

    That is the query's id and the commit log.
    """

    checkpoint: Path
    spark_format: int
    storage: Storage | None = None  # where the agent looks; None: in `checkpoint`

    def __post_init__(self) -> None:
        if self.storage is None:
            self.storage = LocalStorage(str(self.checkpoint), fsync=False)
            (self.checkpoint / spark_names.COMMITS_DIR).mkdir(parents=True, exist_ok=True)
        query = b'{"id":"8a3b7c9e-0000-4000-8000-000000000001"}'
        self.storage.put_bytes(spark_names.QUERY_METADATA_KEY, query)

    def record(self, version: VersionId) -> None:
        """Record that the batch that made `version`, in partition 0, is committed."""
        text = 'v1\n{"nextBatchWatermarkMs":0}'
        if self.spark_format == 2:
            ids = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[version.id]]}}
            text = f"v2\n{json.dumps(ids)}"
        assert self.storage is not None
        self.storage.put_bytes(spark_names.commits_key(version.version - 1), text.encode())

    def go_back(self, version: int) -> None:
        """Forget the batches that made versions above `version`.

        The troubleshooting guide calls this going back.
        """
        assert self.storage is not None
        keys = [info.key for info in self.storage.list(f"{spark_names.COMMITS_DIR}/")]
        self.storage.delete(key for key in keys if int(key.rpartition("/")[2]) >= version)


def attempts_of_one_batch(committed: Provider, late: Provider) -> VersionId:
    """Let attempts of the first batch follow each other. Return what the last of them made.

    Args:
        late: has begun the batch, too, and not committed.
    """
    for provider in (committed, late):
        provider.open(0)
    for _ in range(2):
        committed.commit()
        committed.open(0)  # in one batch an attempt may replace another
    return committed.commit()


def _commits(answer: Mapping[str, Any]) -> Ids:
    """Read the changelogs that an answer names. Return the ids of the commits in them."""
    ids = []
    for entry in answer["changelogs"]:
        with open(entry["path"], "rb") as file:
            reader = ChangelogReader(file)
            ids += [record.key.decode() for record in reader]
        assert (reader.header.version, reader.header.id) == (entry["version"], entry["id"])
    return tuple(ids)
