"""A model of a state store: every version as a dict, and the versions that Spark may ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = list[Any]
State = dict[str, tuple[Row, Row]]  # canonical key text -> (key, value)
Node = tuple[int, str | None]  # version, and its id in Spark checkpoint format 2


def canon(row: Row) -> str:
    """Return a key as a text that a dict can hold."""
    return json.dumps(row, ensure_ascii=True)


def as_state(pairs: list[tuple[Row, Row]]) -> State:
    """Return a scan's pairs as a state. Raises: AssertionError: a key came twice."""
    state = {canon(k): (k, v) for k, v in pairs}
    if len(state) != len(pairs):
        raise AssertionError(f"a scan returned a key twice: {sorted(canon(k) for k, _ in pairs)}")
    return state


@dataclass
class Model:
    """All committed versions, as a tree of (version, id).

    Format 1 has no ids. There a second commit of a version replaces the first, and removes all
    later versions.
    """

    checkpoint_format: int
    retain: int
    states: dict[Node, State] = field(default_factory=lambda: {(0, None): {}})
    parents: dict[Node, Node] = field(default_factory=dict)
    asked: Node = (0, None)
    newest: int = 0

    def ask(self, node: Node) -> None:
        """Note that Spark asks for `node`. That proves that `node` is committed, not a sibling.

        From now on Millpond may collect other attempts of earlier versions. All versions above
        those are lost.
        """
        self.asked = node
        past = set(self.lineage(node))
        lost = {n for n in self.states if n[0] < node[0] and n not in past}
        self.states = {n: s for n, s in self.states.items() if lost.isdisjoint(self.lineage(n))}

    def add(self, node: Node, parent: Node, state: State) -> None:
        """Note a commit of `node` on top of `parent`."""
        if self.checkpoint_format == 1:
            for late in [n for n in self.states if n[0] >= node[0]]:
                del self.states[late]
        self.states[node] = dict(state)
        self.parents[node] = parent
        self.newest = max(self.newest, node[0])

    def lineage(self, node: Node) -> list[Node]:
        """Return `node` and its ancestors, newest first."""
        chain = [node]
        while chain[-1] in self.parents:
            chain.append(self.parents[chain[-1]])
        return chain

    def restorable(self) -> list[Node]:
        """Return the versions that Spark may ask for next.

        They are ancestors and descendants of the last one that it asked for, within the retained
        batches.
        """
        oldest = self.newest - self.retain + 1
        past = self.lineage(self.asked)
        return sorted(
            (
                n
                for n in self.states
                if n[0] >= oldest and (n in past or self.asked in self.lineage(n))
            ),
            key=lambda n: (n[0], n[1] or ""),
        )


def write_spark_metadata(
    checkpoint: Path,
    *,
    operator_name: str,
    partitions: int,
    prefix_columns: int = 0,
    provider_class: str,
    state_variables: Mapping[str, str] | None = None,
) -> Path:
    """Write operator metadata and the offset log, as Spark's driver does before the first task.

    `state_variables`: names and types (such as `MapState`) of a transformWithState operator. Its
    metadata has version 2. Return `<checkpoint>/state`.
    """
    metadata = checkpoint / "state" / "0" / "_metadata"
    metadata.mkdir(parents=True)
    info = {
        "operatorInfo": {"operatorId": 0, "operatorName": operator_name},
        "stateStoreInfo": [
            {
                "storeName": "default",
                "numColsPrefixKey": prefix_columns,
                "numPartitions": partitions,
            }
        ],
    }
    if state_variables is None:
        (metadata / "metadata").write_text("v1\n" + json.dumps(info))
    else:
        variables = [{"stateName": n, "stateVariableType": t} for n, t in state_variables.items()]
        (metadata / "v2").mkdir()
        (metadata / "v2" / "0").write_text(
            "v2\n"
            + json.dumps(
                {**info, "operatorPropertiesJson": json.dumps({"stateVariables": variables})}
            )
        )
    offsets = checkpoint / "offsets"
    offsets.mkdir()
    conf = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": provider_class,
    }
    (offsets / "0").write_text(
        "v1\n" + json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}) + "\n-"
    )
    return checkpoint / "state"
