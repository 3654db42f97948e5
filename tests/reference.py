"""Makes docs/reference/python.md from signatures, docstrings and the fields of reports."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import millpond
from millpond import api, checkpoint, savepoint, state
from millpond.state.lookups import Lookup

_WIDTH = 100
_HEAD = """# Python

Generated from signatures and docstrings; do not edit. [From Python](../guides/python.md) shows
them at work, [versions](versions.md) says what may change.

A place is a path or a URI, as text or as `os.PathLike`. Functions that are not given something
optional do what the command does without the option. Each report has `to_json()`, which is what
the command prints with `--json`. All errors are `millpond.MillpondError`:
[classes and kinds](errors.md).
"""
_SESSIONS = (
    "configure",
    "jar",
    "conf_lines",
    "read_state",
    "lookup",
    "stop_with_savepoint",
    "rescale_query",
)


def python_markdown() -> str:
    """Return the text of `docs/reference/python.md`."""
    own: list[tuple[str, Callable[..., Any]]] = [
        (f"millpond.{name}", getattr(millpond, name)) for name in _SESSIONS
    ]
    own += [(f"millpond.{name}", verb) for name, verb in _functions(api)]
    parts = [_HEAD, "## Sessions, state, and commands without a group\n"]
    own += [
        (f"millpond.state.{name}", getattr(state, name)) for name in ("list", "history", "blame")
    ]
    own += [("Lookup.get", Lookup.get), ("Lookup.table", Lookup.table)]
    parts += [_function(name, verb) for name, verb in own]
    for module in (checkpoint, savepoint):
        parts.append(f"## {module.__name__}\n")
        parts += [_function(f"{module.__name__}.{n}", verb) for n, verb in _functions(module)]
    parts.append("## Reports\n")
    parts.append("Frozen: a function makes them, nothing changes them.\n")
    parts += [_report(report) for report in _reports()]
    return "\n".join(parts)


def _functions(module: ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    found = [(name, getattr(module, name)) for name in sorted(module.__all__)]
    return [(name, thing) for name, thing in found if inspect.isfunction(thing)]


def _reports() -> list[type]:
    found = {
        getattr(module, name)
        for module in (api, checkpoint, savepoint, state)
        for name in module.__all__
        if dataclasses.is_dataclass(getattr(module, name))
    }
    return sorted(found | {millpond.QueryRescale}, key=lambda report: str(report.__name__))


def _function(name: str, function: Callable[..., Any]) -> str:
    lines = [f"### {name}", "", "```text", *_signature(name, function), "```", ""]
    return "\n".join([*lines, *_text(inspect.getdoc(function) or "")]) + "\n"


def _signature(name: str, function: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(function)
    lines: list[str] = []
    before = None
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        kind = parameter.kind
        if before is inspect.Parameter.POSITIONAL_ONLY is not kind:
            lines.append("    /,")
        if before is not kind is inspect.Parameter.KEYWORD_ONLY:
            lines.append("    *,")
        star = "**" if kind is inspect.Parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {star}{parameter.name}: {_type(parameter.annotation)}{default},")
        before = kind
    returned = f") -> {_type(signature.return_annotation)}"
    yield from [f"{name}(", *lines, returned] if lines else [f"{name}({returned}"]


def _type(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _text(doc: str) -> Iterator[str]:
    """Yield a docstring as Markdown: prose stays, arguments and errors become lists."""
    parts = re.split(r"^(Args, Raises|Args|Raises):", doc, flags=re.MULTILINE)
    yield from parts[0].strip().splitlines()
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        yield from ["", f"**{title}**", ""]
        # An entry on the line of the title is the only one. Below the title, each line without a
        # further indent begins an entry.
        body = " ".join(body.split()) if body.strip(" ")[0] != "\n" else textwrap.dedent(body)
        for entry in re.split(r"\n(?! )", body.strip("\n")):
            text = " ".join(entry.split())
            names = re.match(r"((?:\w+, )*\w+): ", text)
            if names is not None:
                quoted = f"`{names[1].replace(', ', '`, `')}`"
                text = quoted + text.removeprefix(names[1])
            yield from _bullet(text)


def _bullet(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  ")


def _report(report: type) -> str:
    head = [f"### {report.__name__}", "", *(inspect.getdoc(report) or "").splitlines(), ""]
    fields = []
    for name, kind, said in _fields(report):
        text = f"`{name}`: `{kind}`" + (f", {said}" if said else "")
        fields += _bullet(text)
    return "\n".join([*head, *fields]) + "\n"


def _fields(report: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, type and comment of each field and property."""
    source = textwrap.dedent(inspect.getsource(report))
    whole_lines = source.splitlines()
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            first = node.lineno
            while whole_lines[first - 2].lstrip().startswith("#"):
                first -= 1
            lines = range(first, (node.end_lineno or node.lineno) + 1)
            said = " ".join(comments[line] for line in lines if line in comments)
            yield ast.unparse(node.target), ast.unparse(node.annotation), said
        elif isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list
        ):
            assert node.returns is not None
            said = (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
            yield node.name, ast.unparse(node.returns), said[:1].lower() + said[1:]
