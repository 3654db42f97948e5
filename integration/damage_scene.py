"""A Spark checkpoint with one store, and what each of its versions holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.harness import (
    Commit,
    Harness,
    Provider,
    ProviderError,
    Row,
    Schema,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.store_model import State, as_state, canon, write_spark_metadata


@dataclass
class Scene:
    """A Spark checkpoint with one store, and the content of each version."""

    harness: Harness
    checkpoint: Path
    checkpoint_format: int = 1
    partitions: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=lambda: {0: {}})
    ids: dict[int, str | None] = field(default_factory=lambda: {0: None})

    def __post_init__(self) -> None:
        if not self.checkpoint.exists():
            write_spark_metadata(
                self.checkpoint,
                operator_name="stateStoreSave",
                partitions=self.partitions,
                provider_class=MILLPOND,
            )

    @property
    def directory(self) -> Path:
        """Return the folder of the store's files."""
        return self.checkpoint / "state" / "0" / "0"

    def open(
        self,
        *,
        provider_class: str = MILLPOND,
        shuffle: int | None = None,
        run_id: str | None = None,
        **options: Any,
    ) -> Provider:
        """Return a new provider, like that of another executor. Without `run_id` it is of a run of
        its own.
        """
        conf = short_conf(
            {
                "checkpointFormatVersion": self.checkpoint_format,
                "minDeltasForSnapshot": 1,
                "rocksdb.changelogCheckpointing.enabled": True,
                **{f"millpond.{k}": v for k, v in {**self.options, **options}.items()},
            }
        )
        conf["spark.sql.shuffle.partitions"] = str(shuffle or self.partitions)
        return self.harness.open(
            self.checkpoint / "state",
            provider_class=provider_class,
            schema=Schema(),
            conf=conf,
            run_id=run_id,
        )

    def write(
        self,
        provider: Provider,
        versions: int,
        *,
        snapshot_at: tuple[int, ...] = (),
        rows: int = 40,
    ) -> None:
        """Commit `versions` more versions, each with changed, new and removed keys."""
        keys: list[Row] = [["k", i] for i in range(rows * 4)]
        mine = [
            k
            for k, p in zip(
                keys,
                self.harness.partitions_of(
                    keys, key_schema=Schema().key, partitions=self.partitions
                ),
                strict=True,
            )
            if p == 0
        ]
        rng = random.Random(len(self.states))
        for _ in range(versions):
            version = max(self.states)
            store, state = provider.store(version, self.ids[version]), dict(self.states[version])
            for key in rng.sample(mine, min(rows, len(mine))):
                if rng.random() < 0.25:
                    store.remove(key)
                    state.pop(canon(key), None)
                else:
                    value = [f"{version}-" + "x" * rng.randrange(200), rng.randrange(10**9)]
                    store.put(key, value)
                    state[canon(key)] = (key, value)
            self.note(store.commit(), state)
            if version + 1 in snapshot_at:
                provider.snapshot()

    def note(self, done: Commit, state: State) -> None:
        """Remember a committed version."""
        self.states[done.version], self.ids[done.version] = state, done.id

    def read(self, version: int, **options: Any) -> State:
        """Return a version, read by a new provider. Raises: ProviderError."""
        provider = self.open(**options)
        try:
            return as_state(provider.read_store(version, self.ids.get(version)).scan())
        finally:
            provider.close()

    def refuses(self, version: int, *kinds: str, **options: Any) -> str:
        """Check that the store refuses a version with one of the kinds. Return the message."""
        with pytest.raises(ProviderError) as caught:
            self.read(version, **options)
        assert any(f"[MILLPOND_{kind}]" in caught.value.text for kind in kinds), caught.value.text
        assert "Hint: " in caught.value.text, caught.value.text
        return caught.value.text


def written_scene(harness: Harness, tmp_path: Path, checkpoint_format: int = 1) -> Scene:
    scene = Scene(harness, tmp_path / "checkpoint", checkpoint_format)
    provider = scene.open()
    scene.write(provider, 8, snapshot_at=(3, 6))
    provider.close()
    # Millpond takes a snapshot of the newest version that is proven committed. That is the version
    # below the newest: Spark asked for it.
    found = {
        s: sorted(int(p.stem.split("_")[0]) for p in scene.directory.glob(f"*.{s}"))
        for s in ("changelog", "manifest")
    }
    assert found == {"changelog": [1, 2, 3, 4, 5, 6, 7, 8], "manifest": [2, 5]}
    return scene
