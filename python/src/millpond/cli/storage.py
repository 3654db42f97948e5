"""`millpond storage check` and `millpond storage take-over`."""

from __future__ import annotations

import argparse

from millpond import api
from millpond.cli.output import Output


def check(arguments: argparse.Namespace, output: Output) -> int:
    """Try everything that Millpond does with a storage. Exit code 1: something fails."""
    report = api.check_storage(arguments.uri, quick=arguments.quick)
    wrong = [result for result in report.contract if not result.ok]
    if arguments.json:
        output.json(report.to_json())
    else:
        output.line(f"storage   {report.storage}")
        output.table(
            ("step", "ms", ""),
            [
                (step.name, f"{step.ms:.0f}", "ok" if step.error is None else "failed")
                for step in report.steps
            ],
            right=(1,),
        )
        passed = f"{len(report.contract) - len(wrong)} of {len(report.contract)} passed"
        output.line(f"contract  {passed if report.contract else f'not run: {report.skipped}'}")
        for result in wrong:
            output.line(f"  {result.name}: {result.message}")
    for step in report.steps:
        if step.error is not None:
            output.error(step.error)
    return 0 if report.ok else 1


def take_over_command(arguments: argparse.Namespace, output: Output) -> int:
    """Give the state at storage.uri to the Spark checkpoint that the arguments name."""
    report = api.take_over(arguments.checkpoint, even_if_there=arguments.even_if_there)
    if arguments.json:
        output.json(report.to_json())
    else:
        output.line(f"checkpoint  {report.checkpoint}")
        output.line(f"state       {report.state}")
        output.line(f"before      {report.before or 'nobody had written it down'}")
    return 0
