# SPDX-License-Identifier: Apache-2.0
"""Turns the raw figures of `bench_s3.py` into tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from benchmarks.bench_report import table

_OURS, _SPARKS = "millpond", "rocksdb-changelog"
_LISTS = ("LIST", "list")
_SPARKS_OWN = ("logs", "metadata")
_GOAL_REQUESTS, _GOAL_RESTORE = 0.5, 0.8


def total(counts: Mapping[str, int]) -> int:
    """Return the sum of a tally."""
    return sum(counts.values())


def without_logs(counts: Mapping[str, int]) -> int:
    """Return the number of requests, without those for Spark's own logs.

    Those logs are offsets, commits, and the metadata of the query and its operators.
    """
    return sum(
        count for name, count in counts.items() if name.rpartition(" ")[2] not in _SPARKS_OWN
    )


def lists(counts: Mapping[str, int]) -> int:
    """Return the number of listings in a tally, without those of Spark's own logs."""
    return without_logs(
        {name: count for name, count in counts.items() if name.split(" ")[1] in _LISTS}
    )


def _puts(counts: Mapping[str, int]) -> int:
    return counts.get("s3 PUT changelog", 0)


def _measured(
    runs: Iterable[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], Mapping[str, int]]]:
    return [
        pair
        for run in runs
        for pair in list(zip(run["batches"], run["requests"], strict=True))[run["warmup"] :]
    ]


def summarise(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the medians, by scenario and contender, and the restores' rates."""
    summary: dict[str, Any] = {}
    for size in results["query_sizes"]:
        contenders: dict[str, Any] = {}
        for name, runs in results["query"][size["name"]].items():
            pairs = _measured(runs)
            made = [run["all_requests"] for run in runs]
            contenders[name] = {
                "batch_ms": median(batch["trigger_ms"] for batch, _ in pairs),
                "requests": median(total(counts) for _, counts in pairs),
                "state_requests": median(without_logs(counts) for _, counts in pairs),
                "mean_requests": sum(map(total, made)) / sum(len(run["batches"]) for run in runs),
                "lists": max(lists(counts) for _, counts in pairs),
                "changelog_puts_a_task": (
                    max(_puts(counts) for _, counts in pairs) / size["partitions"]
                ),
            }
            again = [run["restart"] for run in runs if "restart" in run]
            if again:
                contenders[name]["restart"] = {
                    "batch_ms": median(run["batch"]["trigger_ms"] for run in again),
                    "requests": median(total(run["requests"]) for run in again),
                    "lists": max(lists(run["requests"]) for run in again),
                }
        summary[size["name"]] = contenders
    if results["restore"]:
        summary["restore"] = {
            link: {
                **found["mb_per_s"],
                **{name: found[name] for name in ("share_of_raw", "share_of_files")},
            }
            for link, found in results["restore"]["links"].items()
        }
    return summary


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "-"


_ROWS = (
    ("batch, ms", ("batch_ms",)),
    ("requests a batch", ("requests",)),
    ("of these, for the state", ("state_requests",)),
    ("of these, listings", ("lists",)),
    ("first batch after a restart, ms", ("restart", "batch_ms")),
    ("requests of the restart and that batch", ("restart", "requests")),
    ("of these, listings for the state", ("restart", "lists")),
)
_TITLES = {
    "aggregation": "{partitions} partitions, {rows} rows a batch",
    "partitions200": "{partitions} partitions, {rows} rows a batch",
    "large": "{partitions} partitions, {rows:,} keys, all of them in each batch",
    "maintenance": "{partitions} partitions, {measured} batches with snapshots and deletions",
}


def _at(found: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = found
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of the docs."""
    blocks = []
    for size in results["query_sizes"]:
        found = results["summary"][size["name"]]
        ours, theirs = found[_OURS], found[_SPARKS]
        rows = []
        chosen = (
            _ROWS
            if size["name"] != "maintenance"
            else (("requests a batch, mean", ("mean_requests",)),)
        )
        for title, path in chosen:
            mine, other = _at(ours, path), _at(theirs, path)
            if mine is not None and other is not None:
                rows.append([title, f"{mine:,.0f}", f"{other:,.0f}", _ratio(mine, other)])
        if size["name"] not in ("maintenance", "large"):
            rows.append(
                [
                    "PUT of a task's commit, at most",
                    f"{ours['changelog_puts_a_task']:.2f}",
                    "-",
                    "-",
                ]
            )
        title = _TITLES[size["name"]].format(**size)
        blocks.append(table([title, "Millpond", "RocksDB, changelog", "Millpond / RocksDB"], rows))
    if results["restore"]:
        restore = results["restore"]
        rows = []
        for link, rates in results["summary"]["restore"].items():
            name = f"link of {float(link):.0f} MB/s" if float(link) else "loopback, no limit"
            shares = [
                (f"{rates[what]:.0f}", f"{100 * rates[f'share_of_{what}']:.0f} %")
                for what in ("raw", "files")
            ]
            rows.append([name, f"{rates['restore']:.0f}", *shares[0], *shares[1]])
        title = (
            f"restore of {restore['partitions']} partitions of {restore['megabytes']} MB,"
            f" {restore['tasks']} tasks"
        )
        head = [
            title,
            "Millpond, MB/s",
            "plain GETs, MB/s",
            "share",
            "plain GETs into files, MB/s",
            "share",
        ]
        blocks.append(table(head, rows))
    return "\n\n".join([*blocks, *goals(results)])


def goals(results: Mapping[str, Any]) -> list[str]:
    """Return the goals, and whether Millpond reached them, as one list.

    Empty if too little was measured.
    """
    lines = []
    found = results["summary"].get("aggregation")
    if found:
        ours, theirs = found[_OURS], found[_SPARKS]
        for what, met in (
            ("batch not slower than Spark's", ours["batch_ms"] <= theirs["batch_ms"]),
            ("one PUT a task and commit at most", ours["changelog_puts_a_task"] <= 1),
            (
                "requests a batch at most half of Spark's",
                ours["requests"] <= _GOAL_REQUESTS * theirs["requests"],
            ),
            (
                "no listing to commit or restore",
                ours["lists"] == 0 and ours["restart"]["lists"] == 0,
            ),
        ):
            lines.append(f"- {what}: {'reached' if met else 'missed'}")
    for link, rates in results["summary"].get("restore", {}).items():
        if float(link):  # 0: no limit; then the processor is the limit, not the link
            met = rates["share_of_raw"] >= _GOAL_RESTORE
            name = f"on a link of {float(link):.0f} MB/s"
            lines.append(
                f"- restore at 80 % of plain GETs or more, {name}: {'reached' if met else 'missed'}"
            )
    return ["\n".join(lines)] if lines else []
