"""The Python API: a verb for each verb of the command line, with the same options and reports."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond import api, checkpoint, config, errors, savepoint, state
from millpond.cli.main import main, parser
from millpond.errors import ErrorKind, InvalidInputError
from tests.checkpoints import CheckpointBuilder
from tests.conftest import Golden
from tests.reference import python_markdown

Verb = Callable[..., Any]

# Each command, and the verbs that do the same from Python. Two tables are data there.
VERBS: dict[str, tuple[Verb, ...]] = {
    "adopt": (millpond.adopt,),
    "checkpoint show": (checkpoint.show,),
    "checkpoint history": (checkpoint.history,),
    "checkpoint skew": (checkpoint.skew,),
    "checkpoint verify": (checkpoint.verify,),
    "conf": (millpond.conf,),
    "fork": (millpond.fork,),
    "release": (millpond.release,),
    "rescale": (millpond.rescale, millpond.undo_rescale),
    "savepoint bootstrap": (savepoint.bootstrap,),
    "savepoint create": (savepoint.create,),
    "savepoint delete": (savepoint.delete,),
    "savepoint diff": (savepoint.diff,),
    "savepoint edit": (savepoint.edit,),
    "savepoint list": (savepoint.list,),
    "savepoint plan": (savepoint.plan,),
    "savepoint restore": (savepoint.restore,),
    "savepoint show": (savepoint.show,),
    "savepoint verify": (savepoint.verify,),
    "state blame": (state.blame,),
    "state erase": (millpond.erase,),
    "state get": (state.lookup,),
    "state history": (state.history,),
    "state list": (state.list,),
    "state read": (state.read,),
    "storage check": (millpond.check_storage,),
    "storage take-over": (millpond.take_over,),
}
TABLES = {"errors": errors.ERRORS, "options": config.OPTIONS}
# Commands that run until a signal ends them.
PROCESSES = ("serve", "ui")
# Options of a command that its verb has in another form.
ELSEWHERE = {
    ("state get", "key"): "is the argument of `get` and `table`",
    ("rescale", "undo"): "is the verb millpond.undo_rescale",
    ("state read", "format"): "is for a terminal or a file: Python has the table",
    ("state read", "output"): "is for a terminal or a file: Python has the table",
}
# Commands for one key: `--key` gives its columns, one by one.
ONE_KEY = ("state history", "state erase")
# Arguments that only Python has: callbacks, a session (`--engine spark --conf ...`), an older name.
ONLY_PYTHON = {"announce", "join_names", "link", "progress", "spark"}

# Names that pages of docs/ have shown since the first version.
SHOWN = [
    "millpond.AgentError",
    "millpond.ConflictError",
    "millpond.ErrorKind",
    "millpond.FormatError",
    "millpond.InternalError",
    "millpond.InvalidInputError",
    "millpond.MillpondError",
    "millpond.NotFoundError",
    "millpond.QueryRescale",
    "millpond.UnavailableError",
    "millpond.UnsupportedError",
    "millpond.adopt",
    "millpond.api.rescale",
    "millpond.bootstrap",
    "millpond.conf_lines",
    "millpond.configure",
    "millpond.jar",
    "millpond.keygroups.KeyGroups",
    "millpond.keygroups.key_groups_for",
    "millpond.model.key_groups.key_groups_for",
    "millpond.read_state",
    "millpond.release",
    "millpond.rescale",
    "millpond.rescale_query",
    "millpond.savepoint.bootstrap",
    "millpond.savepoint.create",
    "millpond.savepoint.delete",
    "millpond.savepoint.diff",
    "millpond.savepoint.edit",
    "millpond.savepoint.fork",
    "millpond.savepoint.list_savepoints",
    "millpond.savepoint.plan",
    "millpond.savepoint.restore",
    "millpond.savepoint.show",
    "millpond.savepoint.verify",
    "millpond.stop_with_savepoint",
    "millpond.testing.storage_contract.StorageContract",
]


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands that do something, each with its name."""

    def below(name: str, command: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
        groups = [a for a in command._actions if isinstance(a, argparse._SubParsersAction)]
        if not groups:
            yield name, command
        for group in groups:
            for word, inner in group.choices.items():
                yield from below(f"{name} {word}".strip(), inner)

    yield from below("", parser())


COMMANDS = dict(commands())


def options(name: str) -> dict[str, argparse.Action]:
    """Return the options that a command's verb must have, by their names in Python."""
    found = {
        action.dest: action
        for action in COMMANDS[name]._actions
        if action.dest not in ("help", "json") and (name, action.dest) not in ELSEWHERE
    }
    if found.pop("engine", None) is not None and "job" not in found:
        found.pop("conf")  # the session has it, which the verb gets as `spark`
    # The verb has a plural for each, but for the columns of one key.
    repeatable = ("option", "map_operator", "drop_operator", *(["key"] * (name not in ONE_KEY)))
    return {(dest + "s" if dest in repeatable else dest): act for dest, act in found.items()}


def parameters(name: str) -> dict[str, inspect.Parameter]:
    return {
        key: parameter
        for verb in reversed(VERBS[name])
        for key, parameter in inspect.signature(verb).parameters.items()
    }


def test_each_command_has_its_verb() -> None:
    assert sorted(COMMANDS) == sorted([*VERBS, *TABLES, *PROCESSES])


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_has_the_options_of_its_command_and_no_others(name: str) -> None:
    assert set(parameters(name)) - ONLY_PYTHON == set(options(name))


@pytest.mark.parametrize("name", VERBS)
def test_what_is_not_given_means_the_same(name: str) -> None:
    for key, action in options(name).items():
        default = parameters(name)[key].default
        if isinstance(action.default, list):  # repeatable: the default is empty
            assert default in (None, (), inspect.Parameter.empty), key
        elif default is not inspect.Parameter.empty:
            assert default == action.default, key
        else:
            assert action.required or not action.option_strings or key == "partitions", key


def test_what_a_verb_has_in_another_way_is_an_option() -> None:
    for name, dest in ELSEWHERE:
        assert dest in {action.dest for action in COMMANDS[name]._actions}


@pytest.mark.parametrize(
    "verb", [v for verbs in VERBS.values() for v in verbs], ids=lambda verb: str(verb.__qualname__)
)
def test_a_verb_says_what_it_takes_returns_and_raises(verb: Verb) -> None:
    types = typing.get_type_hints(verb)
    assert set(types) == {*inspect.signature(verb).parameters, "return"}
    report = types["return"]
    if dataclasses.is_dataclass(report):
        kind: Any = report
        assert kind.__dataclass_params__.frozen and callable(kind.to_json)
    else:
        # They return lines, a pyarrow.Table, and an open reader.
        assert verb in (millpond.conf, state.read, state.blame, state.lookup)
    text = verb.__doc__ or ""
    assert "Raises:" in text or "Raises: " in text or "Args, Raises" in text
    for key in inspect.signature(verb).parameters:
        assert key in text or "as for" in text, f"{key} is not described"


@pytest.mark.parametrize("name", SHOWN)
def test_names_that_pages_showed_still_lead_somewhere(name: str) -> None:
    module, _, last = name.rpartition(".")
    assert getattr(import_module(module), last) is not None


def test_millpond_lists_what_it_has() -> None:
    assert set(millpond.__all__) <= set(dir(millpond))
    assert all(getattr(millpond, name) is not None for name in millpond.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        millpond.nonsense  # noqa: B018


def test_importing_millpond_imports_nothing_of_weight() -> None:
    heavy = ("boto3", "botocore", "numpy", "py4j", "pyarrow", "pyspark", "pytest", "rocksdict")
    code = (
        "import sys, millpond\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith('millpond.operations.')])\n"
        "print(callable(millpond.savepoint.create), callable(millpond.checkpoint.show))\n"
        "print(callable(millpond.api.conf), callable(millpond.state.read))\n"
        "print([name for name in ('pyarrow', 'pyspark', 'pytest') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        "['millpond.operations.lifecycle']",
        "True True",
        "True True",
        "[]",
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path_factory.mktemp("api") / "checkpoint").build()


def printed(capsys: pytest.CaptureFixture[str], *argv: object) -> Any:
    capsys.readouterr()
    main([*map(str, argv), "--json"])
    return json.loads(capsys.readouterr().out)


def as_json(report: Any) -> Any:
    return json.loads(json.dumps(report.to_json()))


def test_a_verb_returns_what_its_command_prints(
    built: CheckpointBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = built.root
    saved, broken = tmp_path / "some" / "saved", tmp_path / "some" / "broken"
    created = savepoint.create(root, saved, copy=True)
    assert created.bytes_linked == 0 and created.bytes_written > 0
    assert savepoint.create(root, tmp_path / "linked").bytes_linked > 0
    broken.mkdir()
    (broken / "savepoint.json").write_bytes(b"nonsense")
    for report, argv in (
        (checkpoint.show(root), ("checkpoint", "show", root)),
        (checkpoint.verify(root), ("checkpoint", "verify", root)),
        (checkpoint.skew(root), ("checkpoint", "skew", root)),
        (checkpoint.history(root), ("checkpoint", "history", root)),
        (savepoint.show(saved), ("savepoint", "show", saved)),
        (savepoint.verify(saved), ("savepoint", "verify", saved)),
        (savepoint.list(tmp_path / "some"), ("savepoint", "list", tmp_path / "some")),
        (savepoint.diff(saved, root), ("savepoint", "diff", saved, root)),
        (savepoint.delete(saved, dry_run=True), ("savepoint", "delete", saved, "--dry-run")),
        (millpond.undo_rescale(root), ("rescale", root, "--undo")),
        (
            millpond.fork(root, tmp_path / "fork", dry_run=True, keep_query_id=True),
            ("fork", root, tmp_path / "fork", "--dry-run", "--keep-query-id"),
        ),
    ):
        assert as_json(report) == printed(capsys, *argv), argv
    listed = savepoint.list(tmp_path / "some")
    assert [view.savepoint for view in listed.savepoints] == [str(saved)]
    assert [one.savepoint for one in listed.unreadable] == [str(broken)]
    older = savepoint.list_savepoints(tmp_path / "some")
    assert older == [*listed.savepoints, (str(broken), older[1][1])]  # type: ignore[index]


def test_a_storage_is_checked(tmp_path: Path) -> None:
    report = millpond.check_storage(tmp_path, quick=True)
    assert report.ok and [step.name for step in report.steps][:2] == ["look", "write"]
    assert as_json(report)["skipped"] == report.skipped == "left out by --quick"


def test_options_reach_the_storage(built: CheckpointBuilder) -> None:
    with pytest.raises(InvalidInputError) as caught:
        checkpoint.show(built.root, options={"storage.nonsense": 1})
    assert caught.value.kind is ErrorKind.UNKNOWN_OPTION
    with pytest.raises(InvalidInputError) as caught:
        millpond.rescale(built.root, 4, options={"storage.deadlineMs": "soon"})
    assert caught.value.kind is ErrorKind.INVALID_OPTION


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    from tests.row_checkpoints import RowsBuilder

    root = RowsBuilder(tmp_path / "rows").build().root
    whole = state.read(root)
    assert whole.num_rows > 3
    assert state.read(root, limit=3).to_pylist() == whole.to_pylist()[:3]
    assert state.read(root, limit=0).schema == whole.schema


def test_conf_takes_a_kind_of_cluster_or_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.spark.session.conf_lines", lambda master: [master])
    assert api.conf() == ("local[*]",)
    assert api.conf("yarn") == ("yarn",)
    assert api.conf("spark://a:7077") == ("spark://a:7077",)


def test_reference_page_is_current(golden: Golden, repository: Path) -> None:
    golden.check(repository / "docs/reference/python.md", python_markdown().encode())


def test_reference_page_has_each_verb_and_each_report() -> None:
    text = python_markdown()
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        last = "read_state" if verb is state.read else verb.__name__
        names = {
            "savepoints_of": "list",
            "verify_savepoint": "verify",
            "list_state": "list",
        }
        assert re.search(rf"^### millpond\.[a-z_.]*{names.get(last, last)}$", text, re.MULTILINE)
        report = typing.get_type_hints(verb)["return"]
        if dataclasses.is_dataclass(report):
            kind: Any = report
            assert f"### {kind.__name__}\n" in text
