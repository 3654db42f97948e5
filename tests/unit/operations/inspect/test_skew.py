"""How evenly the state lies, and what Millpond suggests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.cli.main import main
from millpond.model.key_groups import KeyGroups
from millpond.operations.inspect.skew import hot_groups, skew, suggest
from tests.row_checkpoints import RowsBuilder

GROUPS = KeyGroups(64, 8)


def test_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = RowsBuilder(tmp_path / "ckpt").build()
    report = skew(built.storage, "it")
    (operator,) = report.operators
    assert (report.batch, report.partitions, report.max_parallelism) == (5, 2, 16)
    assert [(load.number, load.keys) for load in operator.partitions] == [(0, 4), (1, 4)]
    # The builder puts all rows of a partition into its first key group.
    assert [(load.number, load.keys) for load in operator.groups] == [(0, 4), (1, 4)]
    assert [load.bytes for load in operator.groups] == [load.bytes for load in operator.partitions]
    assert (operator.fullest, operator.suggested, operator.hot) == (1.0, 2, ())
    assert skew(built.storage, "it", batch=1).operators[0].partitions[0].keys == 2
    assert main(["checkpoint", "skew", str(built.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"][0]["partitions"][1]["keys"] == 4
    assert main(["checkpoint", "skew", str(built.root)]) == 0
    text = capsys.readouterr().out
    assert "8 keys" in text and "8 keys are too few" in text and "suggested partitions: 2" in text
    assert (
        next(line for line in text.splitlines() if line.lstrip().startswith("1 ")).split()[5]
        == "█" * 24
    )


def test_even_state_stays() -> None:
    assert suggest(dict.fromkeys(range(64), 10), GROUPS, 8)[0] == 8
    assert suggest({}, GROUPS, 8)[0] == 8


def test_another_number_evens_it_out() -> None:
    sizes = {g: 100 if g % 8 == 0 else 10 for g in range(64)}
    assert suggest(sizes, GROUPS, 8) == (
        None,
        (
            "the fullest partition holds 4.71 times the mean, and no number near 8 evens it out:"
            " key group 0 alone holds 7.4% of all"
        ),
    )
    sizes = {g: 20 if g % 8 in (0, 5) else 10 for g in range(64)}
    assert suggest(sizes, GROUPS, 8) == (
        4,
        "the fullest of 4 would hold 1.20 times the mean, now 1.60",
    )
    sizes = {g: 30 if g % 8 in (0, 1) else 10 for g in range(64)}
    assert suggest(sizes, GROUPS, 8) == (
        2,
        "the fullest of 2 would hold 1.00 times the mean, now 2.00",
    )


def test_hot_groups() -> None:
    sizes = dict.fromkeys(range(64), 10)
    assert hot_groups(sizes, GROUPS) == ()
    sizes |= {7: 1000, 9: 2000}
    assert hot_groups(sizes, GROUPS) == (9, 7)
    assert hot_groups({3: 10}, GROUPS) == (), "a group with few keys is not hot"
