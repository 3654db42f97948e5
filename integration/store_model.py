"""What a state store must hold: every version as a dict, and which versions Spark may still ask
for.
"""

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
    """A key that can stand in a dict."""
    return json.dumps(row, ensure_ascii=True)


def as_state(pairs: list[tuple[Row, Row]]) -> State:
    """Pairs from a scan as a state; a key that came twice is an error."""
    state = {canon(k): (k, v) for k, v in pairs}
    if len(state) != len(pairs):
        raise AssertionError(f"a scan returned a key twice: {sorted(canon(k) for k, _ in pairs)}")
    return state


@dataclass
class Model:
    """All versions ever committed, as a tree of (version, id).

    In format 1 there are no ids: committing a version again replaces it and forgets what came after
    it.
    """

    checkpoint_format: int
    retain: int
    states: dict[Node, State] = field(default_factory=lambda: {(0, None): {}})
    parents: dict[Node, Node] = field(default_factory=dict)
    asked: Node = (0, None)
    newest: int = 0

    def ask(self, node: Node) -> None:
        """Spark asks for `node`: the proof that it, and not its siblings, was committed.

        From here on other attempts of the versions before it may be collected, and what was built
        on them is lost.
        """
        self.asked = node
        past = set(self.lineage(node))
        lost = {n for n in self.states if n[0] < node[0] and n not in past}
        self.states = {n: s for n, s in self.states.items() if lost.isdisjoint(self.lineage(n))}

    def add(self, node: Node, parent: Node, state: State) -> None:
        """`node` was committed on top of `parent`."""
        if self.checkpoint_format == 1:
            for late in [n for n in self.states if n[0] >= node[0]]:
                del self.states[late]
        self.states[node] = dict(state)
        self.parents[node] = parent
        self.newest = max(self.newest, node[0])

    def lineage(self, node: Node) -> list[Node]:
        """`node` and its ancestors, newest first."""
        chain = [node]
        while chain[-1] in self.parents:
            chain.append(self.parents[chain[-1]])
        return chain

    def restorable(self) -> list[Node]:
        """What Spark may ask for next.

        Ancestors and descendants of what it asked for last, within the retained batches.
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
    """What Spark's driver writes before the first task.

    Operator metadata and offset log. `state_variables`: names and types (`MapState`) of a
    transformWithState operator, whose metadata is of the second version. Returns
    `<checkpoint>/state`.
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
