"""`make demo`: kills real streaming jobs on Millpond in mid-batch (`kill -9`).

Then it compares their results row by row with a batch run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from integration.demo import data, processes
from integration.demo.campaign import Campaign, DemoFailed
from integration.demo.child import END_WITHIN_S, environment
from integration.demo.queries import JOBS
from integration.demo.screen import Screen, human_bytes
from integration.demo.session import PROVIDERS
from integration.demo.verify import verify

COMPARE_TIMEOUT_S = 150
FAST_DAYS = 24


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--fast", action="store_true", help=f"{FAST_DAYS} days instead of the whole year"
    )
    parser.add_argument("--kills", type=int, help="kills in mid-batch (default 3, with --fast 2)")
    parser.add_argument(
        "--seed", type=int, default=2013, help="moments of the kills, and which rows come twice"
    )
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        default="millpond",
        help="state store (rocksdb: Spark's own)",
    )
    parser.add_argument(
        "--json", action="store_true", help="the result as JSON on stdout, the story on stderr"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the work folder, and say where it is"
    )
    parser.add_argument(
        "--work", type=Path, help="a folder that does not exist yet, instead of a temporary one"
    )
    return parser.parse_args(arguments)


def introduce(screen: Screen, options: argparse.Namespace) -> None:
    store = "Millpond" if options.provider == "millpond" else "Spark's own RocksDB store"
    screen.line(
        f"Four streaming jobs keep their state in {store} and are killed while they write it.",
        style="bold",
    )
    span = f"the first {FAST_DAYS} days of 2013" if options.fast else "2013"
    screen.line(
        f"Every flight that left New York in {span}, with the weather, replayed as a stream of"
        " files:"
    )
    for job in JOBS:
        screen.line(f"  {job.name:9} {job.title}")
    screen.line(
        "Why it is hard: a killed batch leaves half-written files, and some state stores a version"
        " ahead of others."
    )
    screen.line(
        "To go on with no row lost, doubled or different, each store must come back exactly as it"
        " was committed."
    )
    screen.line()


def prepare(screen: Screen, work: Path, options: argparse.Namespace) -> data.Feeds:
    (work / "feeds").mkdir(parents=True)
    screen.live("writing the files that the streams will read ...")
    (work / "scratch").mkdir()
    days, period_days = (FAST_DAYS, 2) if options.fast else (366, 10)
    feeds = data.prepare(work / "feeds", days=days, period_days=period_days, seed=options.seed)
    screen.stamped(
        f"{feeds.flights:,} flights and {feeds.weather:,} hours of weather in {feeds.files} files"
        f" per feed; {feeds.redelivered:,} flights are delivered twice (seed {options.seed})"
    )
    return feeds


def compare(work: Path, tag: str) -> dict[str, Any]:
    """Run the comparison in a process of its own. Return its verdicts by job.

    Raises:
        DemoFailed: the comparison failed.
    """
    with (work / "compare.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "integration.demo.compare", str(work)],
            env=environment(work, tag),
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=COMPARE_TIMEOUT_S,
            check=False,
        )
    if done.returncode not in (0, 1) or not done.stdout.strip():
        tail = (work / "compare.log").read_text(errors="replace").splitlines()[-40:]
        raise DemoFailed("\n".join(["the comparison failed:", *tail]))
    verdicts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return verdicts


def result_of(
    campaign: Campaign, feeds: data.Feeds, verdicts: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the demo's result, as `--json` prints it."""
    rows_in = {
        "flights": feeds.flights,
        "deliveries": feeds.flights + feeds.redelivered,
        "weather": feeds.weather,
    }
    jobs = {}
    for job in JOBS:
        record, log, verdict = (
            campaign.records[job.name],
            campaign.logs[job.name],
            verdicts[job.name],
        )
        jobs[job.name] = {
            "rows_in": sum(rows_in[feed] for feed in job.feeds),
            "rows_out": verdict["rows"],
            "expected": verdict["expected"],
            "differences": verdict["missing"] + verdict["unexpected"],
            "source_rows": verdict["source_rows"],
            "source_expected": verdict["source_expected"],
            "samples": verdict["samples"],
            "batches": log.committed() + 1,
            "late_rows": record.late_rows,
            "peak_state_rows": record.peak_state_rows,
            "state_bytes": log.state_bytes(),
            "verified": (
                asdict(verify(log.root, campaign.work, campaign.tag))
                if options.provider == "millpond"
                else None
            ),
            "commit_ms_median": (
                sorted(record.commit_ms)[len(record.commit_ms) // 2] if record.commit_ms else None
            ),
            "custom_metrics": record.custom,
        }
    return {
        "provider": options.provider,
        "seed": options.seed,
        "fast": options.fast,
        "kills_mid_batch": sum(kill.mid_batch for kill in campaign.kills),
        "kills": [asdict(kill) for kill in campaign.kills],
        "agent_kills": [asdict(kill) for kill in campaign.agent_kills],
        "lives": campaign.lives,
        "jobs": jobs,
    }


def judge(result: dict[str, Any], kills_due: int) -> list[str]:
    """Return the faults of a result, in words."""
    wrong = []
    for name, job in result["jobs"].items():
        if job["differences"]:
            wrong.append(
                f"{name}: {job['differences']} rows differ, such as " + "; ".join(job["samples"])
            )
        if job["source_rows"] != job["source_expected"]:
            wrong.append(
                f"{name}: its output stands for {job['source_rows']} flights, not"
                f" {job['source_expected']}"
            )
        if job["late_rows"]:
            wrong.append(
                f"{name}: {job['late_rows']} rows were dropped as late, though all came in time"
            )
        if not job["rows_out"] or not job["peak_state_rows"]:
            wrong.append(f"{name}: wrote no rows or kept no state, so nothing was shown")
        if job["verified"] and job["verified"]["problems"]:
            wrong.append(
                f"{name}: millpond checkpoint verify: " + "; ".join(job["verified"]["problems"])
            )
    for kill in result["kills"]:
        if kill["verified"] and kill["verified"]["problems"]:
            wrong.append(
                f"{kill['job']}, after a kill: millpond checkpoint verify: "
                + "; ".join(kill["verified"]["problems"])
            )
    if result["kills_mid_batch"] < kills_due:
        wrong.append(f"only {result['kills_mid_batch']} of {kills_due} kills happened in mid-batch")
    if result["provider"] == "millpond" and kills_due and not result["agent_kills"]:
        wrong.append("the agent was not killed in mid-batch")
    return wrong


def conclude(screen: Screen, result: dict[str, Any]) -> None:
    screen.line()
    head = (
        "job",
        "rows in",
        "rows out",
        "batches",
        "peak state rows",
        "state on disk",
        "commit ms*",
        "differences",
    )
    rows = [
        (
            name,
            f"{job['rows_in']:,}",
            f"{job['rows_out']:,}",
            str(job["batches"]),
            f"{job['peak_state_rows']:,}",
            human_bytes(job["state_bytes"]),
            str(job["commit_ms_median"]),
            str(job["differences"]),
        )
        for name, job in result["jobs"].items()
    ]
    screen.table(head, rows)
    screen.line(
        "* median over batches of the time in commit, summed over the job's state partitions"
    )
    screen.line()
    if result["provider"] == "millpond":
        conclude_snapshots(screen, result["jobs"])
    agent = f", of the agent alone: {len(result['agent_kills'])}" if result["agent_kills"] else ""
    screen.line(
        f"kills -9 in mid-batch survived: {result['kills_mid_batch']}{agent}; time:"
        f" {result['seconds']:.0f} s"
    )


def conclude_snapshots(screen: Screen, jobs: dict[str, Any]) -> None:
    """Print the sums of Millpond's metrics in Spark's progress reports.

    They are lower bounds. The note below the table says why.
    """
    head = (
        "job",
        "snapshots",
        "uploaded",
        "reused",
        "changelogs",
        "restore ms*",
        "agent calls ms*",
    )
    names = ("millpondSnapshotNewBytes", "millpondSnapshotReusedBytes", "millpondChangelogBytes")
    times = ("millpondRestoreMs", "millpondAgentCallMs")
    rows = []
    for job, result in [*jobs.items(), ("all", None)]:
        customs = (
            [result["custom_metrics"]]
            if result
            else [each["custom_metrics"] for each in jobs.values()]
        )

        def total(metric: str, customs: list[dict[str, int]] = customs) -> int:
            return sum(custom.get(metric, 0) for custom in customs)

        snapshots = f"{total('millpondSnapshotCount'):,}"
        rows.append(
            (
                job,
                snapshots,
                *(human_bytes(total(name)) for name in names),
                *(f"{total(name):,}" for name in times),
            )
        )
    screen.table(head, rows)
    screen.line(
        "* summed over partitions and lives. Reused: files of a snapshot that were not uploaded"
        " again. A killed"
    )
    screen.line(
        "  batch reported nothing, and of a join Spark reports half of the stores: the true sums"
        " are higher"
    )
    checked = [job["verified"] for job in jobs.values()]
    screen.line(
        f"millpond checkpoint verify: {human_bytes(sum(one['bytes'] for one in checked))} in"
        f" {sum(one['changelogs'] for one in checked)} changelogs and"
        f" {sum(one['snapshots'] for one in checked)} snapshots read back,"
        f" {sum(len(one['problems']) for one in checked)} problems"
    )
    screen.line()


def run(screen: Screen, options: argparse.Namespace, work: Path, tag: str) -> dict[str, Any]:
    """Run the whole demo. Return its result. `wrong` lists the faults in words.

    Raises:
        DemoFailed, data.DataMissing: the demo cannot run to its end.
    """
    kills = options.kills if options.kills is not None else (2 if options.fast else 3)
    introduce(screen, options)
    feeds = prepare(screen, work, options)
    campaign = Campaign(
        work=work,
        provider=options.provider,
        files=feeds.files,
        kills=kills,
        seed=options.seed,
        screen=screen,
        tag=tag,
    )
    campaign.run()
    screen.stamped(
        "the end of the data is reached, no process is left; now the same four queries as batch,"
        " row by row"
    )
    screen.live("computing and comparing ...")
    verdicts = compare(work, tag)
    result = result_of(campaign, feeds, verdicts, options)
    result["seconds"] = round(screen.elapsed_s, 1)
    result["wrong"] = judge(result, kills)
    conclude(screen, result)
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    screen = Screen(sys.stderr if options.json else sys.stdout)
    if not Path("/proc/self/environ").exists():
        screen.line("the demo finds the processes that it kills in /proc, so it needs Linux")
        return 2
    if (
        shutil.which("java") is None
        and not (Path(os.environ.get("JAVA_HOME", "")) / "bin" / "java").is_file()
    ):
        screen.line(
            "no java on the PATH nor below JAVA_HOME: Spark needs Java 17 (Debian:"
            " openjdk-17-jre-headless)"
        )
        return 2
    tag = uuid.uuid4().hex
    signal.signal(signal.SIGTERM, _interrupt)
    work = options.work or Path(tempfile.mkdtemp(prefix="millpond-demo-"))
    try:
        result = run(screen, options, work, tag)
    except (DemoFailed, data.DataMissing, subprocess.TimeoutExpired) as error:
        screen.line(f"FAILED: {error}", style="red")
        return 1
    except KeyboardInterrupt:
        screen.line("interrupted", style="red")
        return 130
    finally:
        processes.end_all(tag, timeout_s=END_WITHIN_S)
        if options.keep:
            screen.line(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps(result, indent=2))
    if result["wrong"]:
        screen.line("FAILED: not everything was as it must be.", style="red")
        for line in result["wrong"]:
            screen.line(f"  {line}")
        return 1
    rows = sum(job["rows_out"] for job in result["jobs"].values())
    screen.line(
        f"OK: all {rows:,} rows of all four jobs are equal to the batch computation; 0"
        " differences.",
        style="green",
    )
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
