"""`millpond checkpoint show` and `millpond checkpoint verify`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from itertools import groupby

from millpond import checkpoint as checkpoints
from millpond.cli.output import Output, bytes_text, count_text
from millpond.cli.progress import progress_bar
from millpond.model.key_groups import divisors_near
from millpond.operations.inspect.cost import StoreCost, sum_of
from millpond.operations.inspect.overview import OperatorView, Overview, StoreView
from millpond.query.whole import what_is_left

_MAX_PARTITIONS = 32  # of more, the sums are shown


def show(arguments: argparse.Namespace, output: Output) -> int:
    """Print what the Spark checkpoint holds. Exit code 1 if a file could not be read."""
    result = checkpoints.show(arguments.checkpoint, operator=arguments.operator)
    if arguments.json:
        output.json(result.to_json())
    else:
        _print_overview(result, output, each=arguments.operator is not None)
    for problem in result.problems:
        output.message(problem)
    return 1 if result.problems else 0


def _freely(result: Overview) -> str:
    if result.max_parallelism is None or result.partitions is None:
        return "not known"
    near = divisors_near(result.max_parallelism, result.partitions)
    return ", ".join(str(count) for count in near if count != result.partitions) + " partitions"


def _span(first: int | None, last: int | None) -> str:
    return "none" if first is None else f"{first} to {last}"


def _print_overview(result: Overview, output: Output, *, each: bool) -> None:
    """Print it.

    Args:
        each: print each partition, however many there are.
    """
    groups = "not known"
    if result.max_parallelism is not None:
        groups = f"{result.max_parallelism} (max parallelism), base {result.key_group_base}"
        if result.partitions is not None:
            groups += f", {result.max_parallelism / result.partitions:g} a partition"
    for label, text in (
        ("checkpoint", result.checkpoint),
        ("query id", result.query_id or "none"),
        ("provider", result.provider or "not recorded yet"),
        ("checkpoint format", str(result.spark_checkpoint_format)),
        ("batches started", _span(result.first_offset_batch, result.last_offset_batch)),
        ("batches committed", _span(result.first_committed_batch, result.last_committed_batch)),
        ("partitions", count_text(result.partitions)),
        ("key groups", groups),
        ("no row moves to", _freely(result)),
    ):
        output.line(f"{label:<18} {text}")
    if result.backend is not None:
        output.line(f"{'backend':<18} {result.backend}, unless the session sets the option")
    if result.cost is not None:
        output.line(f"{'estimated price':<18} {_price(result.cost)}")
    if result.asked_partitions is not None:
        output.line(
            f"{'asked for':<18} {result.asked_partitions} partitions, by the last start of the"
            " query"
        )
        if result.asked_refused:
            output.line(f"{'':<18} refused: {result.asked_refused}")
        command = shlex.join(
            ["millpond", "rescale", result.checkpoint, "--partitions", str(result.asked_partitions)]
        )
        output.line(f"{'':<18} to change it, stop the query and run: {command}")
    most = max((len(_by_name(operator, 0)) for operator in result.operators), default=0)
    if each or most <= _MAX_PARTITIONS:
        for operator in result.operators:
            output.line()
            _print_operator(operator, output, result.rescaling)
        return
    output.line()
    _print_sums(result.operators, output)
    output.line()
    words = ("millpond", "checkpoint", "show", result.checkpoint)
    output.line(
        "each partition: " + shlex.join([*words, "--operator", str(result.operators[0].operator)])
    )


def _by_name(operator: OperatorView, at: int) -> list[StoreView]:
    """Return the stores of an operator that have its name number `at`."""
    names = sorted({store.name for store in operator.stores})
    return [store for store in operator.stores if names[at : at + 1] == [store.name]]


def _print_sums(operators: Sequence[OperatorView], output: Output) -> None:
    """Print a line for each store of each operator, all partitions together."""
    rows = []
    for operator in operators:
        for at in range(len({store.name for store in operator.stores})):
            stores = _by_name(operator, at)
            _, keys, _, changelogs, size, snapshots, ssts, sst_size, _ = _total(stores)
            present = [store for store in stores if not store.removed]
            known = [store.keys for store in present if store.keys is not None]
            newest = [s.newest_version for s in stores if s.newest_version is not None]
            rows.append(
                (
                    str(operator.operator),
                    operator.name or "(no metadata)",
                    stores[0].name,
                    str(len(present)),
                    keys,
                    f"{min(known):,} to {max(known):,}" if known else "-",
                    str(max(newest)) if newest else "-",
                    changelogs,
                    size,
                    snapshots.removesuffix(" in all"),
                    ssts,
                    sst_size,
                )
            )
    output.table(
        (
            "operator",
            "name",
            "store",
            "partitions",
            "keys",
            "a partition",
            "version",
            "changelogs",
            "size",
            "snapshots",
            "SSTs",
            "size",
        ),
        rows,
        right=(0, 3, 4, 5, 6, 7, 8, 9, 10, 11),
    )


def _print_operator(operator: OperatorView, output: Output, rescaling: bool) -> None:
    output.line(f"operator {operator.operator}  {operator.name or '(no metadata)'}")
    by_name = sorted(operator.stores, key=lambda store: (store.name, store.partition))
    for name, group in groupby(by_name, key=lambda store: store.name):
        stores = list(group)
        output.line(f"  store {name}")
        costs = [store.cost for store in stores if store.cost is not None]
        output.table(
            (
                "partition",
                "keys",
                "versions",
                "changelogs",
                "size",
                "snapshots at",
                "SSTs",
                "size",
                "slots",
                *(("PUTs", "GETs to restore", "$ written", "$ a month") if costs else ()),
            ),
            [
                *((*_row(store), *_cost_cells(store.cost)) for store in stores),
                (*_total(stores), *_cost_cells(sum_of(costs) if costs else None)),
            ],
            right=(0, 1, 3, 4, 6, 7, 9, 10, 11, 12) if costs else (0, 1, 3, 4, 6, 7),
            indent="    ",
        )
        if gone := [store.partition for store in stores if store.removed]:
            what = (
                "are none of the last committed batch: of the rescale that has not come to its end,"
                " or gone by one before"
                if rescaling
                else "are gone, by a rescale; their files go with the last version that needs them"
            )
            output.line(f"    partitions {_span(gone[0], gone[-1])} {what}")
        for store in stores:
            if store.scalable is False:
                output.line(
                    f"    partition {store.partition} cannot be rescaled: {store.unscalable_reason}"
                )


def _price(cost: StoreCost) -> str:
    return (
        f"${cost.put_dollars:.6f} for the {cost.put_requests:,} PUTs that wrote what is there,"
        f" ${cost.month_dollars:.6f} a month to keep {bytes_text(cost.bytes)},"
        f" {cost.restore_requests:,} GETs a restore"
    )


def _cost_cells(cost: StoreCost | None) -> Sequence[str]:
    if cost is None:
        return ()
    requests = str(cost.put_requests), str(cost.restore_requests)
    return (*requests, f"{cost.put_dollars:.6f}", f"{cost.month_dollars:.6f}")


def _row(store: StoreView) -> Sequence[str]:
    slots = [f"{start}-{end - 1}" for start, end in store.slots]
    shown = " ".join(slots[:3]) + (f" +{len(slots) - 3} more" if len(slots) > 3 else "")
    snapshots = [str(snapshot.version) for snapshot in store.snapshots]
    return (
        str(store.partition),
        count_text(store.keys),
        _span(store.oldest_version, store.newest_version),
        str(store.changelogs),
        bytes_text(store.changelog_bytes),
        " ".join(["..."] * (len(snapshots) > 4) + snapshots[-4:]) or "-",
        str(store.sst_files),
        bytes_text(store.sst_bytes),
        shown or "-",
    )


def _total(stores: Sequence[StoreView]) -> Sequence[str]:
    keys = [store.keys for store in stores]
    known = [count for count in keys if count is not None]
    return (
        "total",
        count_text(sum(known) if len(known) == len(keys) else None),
        "",
        str(sum(store.changelogs for store in stores)),
        bytes_text(sum(store.changelog_bytes for store in stores)),
        f"{sum(len(store.snapshots) for store in stores)} in all",
        str(sum(store.sst_files for store in stores)),
        bytes_text(sum(store.sst_bytes for store in stores)),
        "",
    )


def verify_command(arguments: argparse.Namespace, output: Output) -> int:
    """Read everything back. Exit code 1 if anything is wrong."""
    with progress_bar(arguments.json) as progress:
        report = checkpoints.verify(arguments.checkpoint, progress=progress)
    if arguments.json:
        output.json(report.to_json())
        return 0 if report.ok else 1
    checked = report.checked
    output.line(f"checkpoint  {report.checkpoint}")
    output.line(f"stores      {checked.stores:,}")
    output.line(
        f"changelogs  {checked.changelogs:,} ({bytes_text(checked.changelog_bytes)},"
        f" {checked.records:,} records)"
    )
    output.line(f"snapshots   {checked.manifests:,} ({checked.entries:,} entries)")
    output.line(f"SSTs        {checked.ssts:,} ({bytes_text(checked.sst_bytes)})")
    output.line(f"versions    {checked.versions:,} restorable")
    output.problems(report.problems)
    if report.unfinished:
        output.message("Which batches are whole shows once the command that is half way has ended.")
    elif not report.ok:
        output.message(what_is_left(report.checkpoint, report.newest_whole_batch))
    output.hints(report.problems)
    return 0 if report.ok else 1
