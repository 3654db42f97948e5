"""`millpond checkpoint skew`: a chart for the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from millpond import checkpoint as checkpoints
from millpond.checkpoint import OperatorSkew, SkewReport
from millpond.cli.output import Output, bytes_text, count_text
from millpond.model.key_groups import KeyGroups

_BAR_WIDTH = 24
_GROUPS_WIDTH = 32
_LEVELS = " ▁▂▃▄▅▆▇█"
_MAX_ROWS = 64  # if there are more partitions, only the fullest are shown


def skew_command(arguments: argparse.Namespace, output: Output) -> int:
    """Print how evenly state lies."""
    report = checkpoints.skew(arguments.checkpoint)
    if arguments.json:
        output.json(report.to_json())
        return 0
    output.line(f"{'checkpoint':<18} {report.checkpoint}")
    output.line(f"{'batch':<18} {report.batch}")
    output.line(f"{'partitions':<18} {report.partitions}")
    output.line(f"{'key groups':<18} {report.max_parallelism}")
    for operator in report.operators:
        output.line()
        _print_operator(report, operator, output)
    return 0


def _print_operator(report: SkewReport, operator: OperatorSkew, output: Output) -> None:
    loads = operator.partitions
    keys, size = sum(load.keys for load in loads), sum(load.bytes for load in loads)
    output.line(
        f"operator {operator.operator}  {operator.name}: {count_text(keys)} keys,"
        f" {bytes_text(size)}"
    )
    most, mean = max((load.bytes for load in loads), default=0), size / len(loads) if loads else 0
    by_group = {load.number: load.bytes for load in operator.groups}
    groups = KeyGroups(report.max_parallelism, report.key_group_base)
    peak = max(by_group.values(), default=0)
    rows = loads
    if len(loads) > _MAX_ROWS:
        fullest = sorted(loads, key=lambda load: (-load.bytes, load.number))[:_MAX_ROWS]
        rows = tuple(sorted(fullest, key=lambda load: load.number))
        output.line(f"  the fullest {_MAX_ROWS} of {len(loads)} partitions:")
    output.table(
        ("partition", "keys", "bytes", "of the mean", "", "its key groups"),
        [
            (
                str(load.number),
                count_text(load.keys),
                bytes_text(load.bytes),
                f"{load.bytes / mean:.2f}" if mean else "-",
                "█" * round(_BAR_WIDTH * load.bytes / most) if most else "",
                (
                    _levels(_in_order(load.number, report.partitions, by_group, groups), peak)
                    if by_group
                    else ""
                ),
            )
            for load in rows
        ],
        right=(0, 1, 2, 3),
        indent="  ",
    )
    if by_group and not operator.few:
        output.line(
            f"  key groups: {len(by_group):,} of {report.max_parallelism:,} hold rows, the fullest "
            f"{peak * report.max_parallelism / size:.2f} times the mean"
        )
    for group in operator.hot:
        load = next(load for load in operator.groups if load.number == group)
        output.line(
            f"  hot: key group {group} in partition {group % report.partitions}:"
            f" {load.bytes / size:.1%} of all, {count_text(load.keys)} keys"
        )
    output.line(f"  suggested partitions: {operator.suggested or '-'} ({operator.why})")


def _in_order(
    partition: int, partitions: int, by_group: dict[int, int], groups: KeyGroups
) -> list[int]:
    """Return the bytes of each of the partition's key groups, in the order of their slots."""
    ranges = groups.slot_ranges(partition, partitions)
    return [
        by_group.get(groups.group(slot), 0) for start, end in ranges for slot in range(start, end)
    ]


def _levels(sizes: Sequence[int], peak: int) -> str:
    """Return a bar for each key group, or for the fullest of several if there are too many."""
    step = -(-len(sizes) // _GROUPS_WIDTH)
    shown = [max(sizes[i : i + step]) for i in range(0, len(sizes), step)]
    return "".join(_LEVELS[-(-size * (len(_LEVELS) - 1) // peak) if peak else 0] for size in shown)
