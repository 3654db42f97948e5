"""`millpond options` and `millpond errors`: print the tables that the code itself uses."""

from __future__ import annotations

import argparse
import json
import textwrap

from millpond import config
from millpond.cli.output import Output
from millpond.errors import ERRORS
from millpond.reference import errors_json, options_json


def options(arguments: argparse.Namespace, output: Output) -> int:
    """Print every option."""
    if arguments.json:
        output.json(json.loads(options_json()))
        return 0
    output.line(f"Options below {config.PREFIX}")
    for option in config.OPTIONS:
        output.line()
        output.line(f"{option.name} = {config.default_text(option)}")
        output.line(f"    {config.expected_text(option)}")
        for line in textwrap.wrap(option.doc, 100):
            output.line(f"    {line}")
    return 0


def errors(arguments: argparse.Namespace, output: Output) -> int:
    """Print every error."""
    if arguments.json:
        output.json(json.loads(errors_json()))
        return 0
    for kind, info in ERRORS.items():
        output.line(f"{kind.value}  ({info.error_class.__name__})")
        output.line(f"    {info.meaning}")
        output.line(f"    hint: {info.hint}")
    return 0
