"""Asks what a job would do with a savepoint: in a process of its own, because that runs the job, in
a JVM.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.model.command_texts import option_words

_ERROR = re.compile(r"^millpond: ([A-Z_]+): (.*)\n(?:  hint: (.*))?", re.MULTILINE)
_OTHER = "Run the command in a terminal: it shows all that the job prints."


def job_plan(savepoint: str, job: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the report of `millpond savepoint plan`, as JSON values.

    Args:
        savepoint: path or URI. job: what follows `--job`.
        options: of the savepoint's storage, by name.
    Raises: InvalidInputError: the error that the command told.
    """
    command = [sys.executable, "-m", "millpond.cli.main", "savepoint", "plan", savepoint]
    given = [f"--option={name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [*command, *option_words("--job", job), "--json", *given],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="replace",
        env=os.environ,
    )
    if done.returncode in (0, 1) and done.stdout.lstrip().startswith("{"):
        report: dict[str, Any] = json.loads(done.stdout)
        return report
    told = _ERROR.findall(done.stderr)
    if not told:
        raise InvalidInputError(
            f"the command ended with exit code {done.returncode}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=_OTHER,
        )
    code, message, hint = told[-1]
    kind = ErrorKind.__members__.get(code, ErrorKind.INVALID_ARGUMENT)
    raise InvalidInputError(message, kind=kind, hint=hint or _OTHER)
