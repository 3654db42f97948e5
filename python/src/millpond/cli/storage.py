"""`millpond storage check` and `millpond storage take-over`."""

from __future__ import annotations

import argparse
import uuid
from importlib.util import find_spec

from millpond.cli.checkpoint import settings_of
from millpond.cli.output import Output
from millpond.storage import Storage, open_storage, root_of
from millpond.storage.steps import Step, run_steps
from millpond.taking_over import take_over


def check(arguments: argparse.Namespace, output: Output) -> int:
    """Try everything that Millpond does with a storage, below a prefix of its own that is removed. Exit code 1: something fails."""
    root, settings = root_of(arguments.uri).rstrip("/"), settings_of(arguments)
    place = f"{root}/.millpond-check-{uuid.uuid4().hex[:12]}"

    def make(name: str) -> Storage:
        return open_storage(f"{place}/{name}", settings)

    results = []
    skipped = ""
    steps = run_steps(make("steps"))
    failed = [step for step in steps if step.error is not None]
    try:
        if failed:
            skipped = "the steps above failed"
        elif arguments.quick:
            skipped = "left out by --quick"
        elif find_spec("pytest") is None:
            skipped = "pytest is not installed: pip install pytest"
        else:
            from millpond.testing.check import run_contract  # it needs pytest

            results = run_contract(make)
    finally:
        if len(steps) > 1:  # the first step writes nothing
            whole = open_storage(place, settings)
            whole.delete([info.key for info in whole.list("")])
    wrong = [result for result in results if not result.ok]
    if arguments.json:
        output.json(
            {
                "storage": root,
                "steps": [_step_json(step) for step in steps],
                "contract": [{"name": r.name, "ok": r.ok, "message": r.message} for r in results],
                "skipped": skipped,
            }
        )
    else:
        output.line(f"storage   {root}")
        output.table(
            ("step", "ms", ""),
            [
                (step.name, f"{step.ms:.0f}", "ok" if step.error is None else "failed")
                for step in steps
            ],
            right=(1,),
        )
        passed = f"{len(results) - len(wrong)} of {len(results)} passed"
        output.line(f"contract  {passed if results else f'not run: {skipped}'}")
        for result in wrong:
            output.line(f"  {result.name}: {result.message}")
    for step in failed:
        if step.error is not None:
            output.error(step.error)
    if any("if_absent" in result.name for result in wrong):
        output.message(
            "hint: this server ignores If-None-Match; set the option storage.s3.conditionalPut to false"
        )
    return 1 if failed or wrong else 0


def take_over_command(arguments: argparse.Namespace, output: Output) -> int:
    """Give the state at storage.uri to the Spark checkpoint that the arguments name."""
    report = take_over(
        arguments.checkpoint, settings_of(arguments), even_if_there=arguments.even_if_there
    )
    if arguments.json:
        output.json(report.to_json())
    else:
        output.line(f"checkpoint  {report.checkpoint}")
        output.line(f"state       {report.state}")
        output.line(f"before      {report.before or 'nobody had written it down'}")
    return 0


def _step_json(step: Step) -> dict[str, object]:
    error = (
        None if step.error is None else {"kind": step.error.kind.value, "message": str(step.error)}
    )
    return {"name": step.name, "ms": round(step.ms, 1), "error": error}
