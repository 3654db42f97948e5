"""What becomes of each operator when a job starts from a savepoint.

Spark says what the job's operators are.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millpond import savepoint as savepoints
from millpond.cli.main import main
from millpond.errors import ErrorKind, InvalidInputError
from millpond.operations.savepoint.moved_operators import GIVEN, SAME, Matching, Pair, Unclear
from millpond.operations.savepoint.verdicts import (
    DROPPED,
    MAPPED,
    MOVED,
    NEW,
    REFUSED,
    RESTORED,
    verdicts,
)
from millpond.savepoint import OperatorVerdict, PlanReport, RestoreReport
from millpond.spark.job import JobOperator
from millpond.spark.job_script import JobQuery, chosen, function_at, load


class _JavaWriter:
    def queryName(self, name: str) -> _JavaWriter:
        return self


def _writer() -> Any:
    made: Any = object.__new__(DataStreamWriter)
    made._jwrite = _JavaWriter()
    return made


def test_writers_that_a_function_returns_keep_their_names() -> None:
    def build() -> list[Any]:
        _writer().queryName("thrown away")
        return [_writer(), _writer().queryName("one"), _writer().queryName("two")]

    queries = load(build, lambda: None)
    assert [query.name for query in queries] == [None, "one", "two"]
    assert chosen(queries, "two") is queries[2]


def test_a_job_that_stops_its_session_leaves_it_to_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[object] = []
    for cls in (SparkSession, SparkContext):
        monkeypatch.setattr(cls, "stop", lambda self: stopped.append(self))
    session, context = object.__new__(SparkSession), object.__new__(SparkContext)

    def build() -> None:
        with session:
            _writer().start()
        session.stop()
        context.stop()

    assert len(load(build, lambda: None)) == 1
    assert stopped == []
    session.stop()
    assert stopped == [session]


_TYPED = """
from __future__ import annotations

import types
from dataclasses import InitVar, dataclass

@dataclass
class Row:
    n: int
    more: InitVar[int]

    def __post_init__(self, more):
        assert isinstance(types, types.ModuleType)
        self.n += more

def change(n):
    return Row(n, 1)
"""


def test_a_function_may_use_a_dataclass_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text(_TYPED)
    before, search = dict(sys.modules), list(sys.path)
    change = function_at(f"{tmp_path}/types.py:change")
    assert change(1).n == 2
    assert sys.modules == before and sys.path == search
    # Spark's workers get it by value: they have no such file.
    make = [sys.executable, "-c", "import sys, pickle; print(pickle.load(sys.stdin.buffer)(1))"]
    path = os.pathsep.join(search)
    by_value = cloudpickle.dumps(change)  # type: ignore[no-untyped-call]
    done = subprocess.run(make, input=by_value, capture_output=True, env={"PYTHONPATH": path})
    assert done.stdout.endswith(b"Row(n=2)\n"), done.stderr


SAVED = {0: "stateStoreSave", 1: "dedupe"}


def op(operator: int, name: str, error: str = "") -> JobOperator:
    return JobOperator(operator=operator, name=name, error=error)


def matched(
    *pairs: tuple[int, int], why: str = SAME, unclear: tuple[Unclear, ...] = ()
) -> Matching:
    return Matching(pairs=tuple(Pair(old, new, why) for old, new in pairs), unclear=unclear)


_BOTH = [op(0, "stateStoreSave"), op(1, "dedupe")]


@pytest.mark.parametrize(
    ("found_as", "dropped", "found", "expected"),
    [
        (
            matched((0, 0), (1, 1)),
            set(),
            _BOTH,
            [(0, 0, RESTORED, ""), (1, 1, RESTORED, "")],
        ),
        (
            matched((1, 0), why=GIVEN),
            {0},
            [op(0, "dedupe")],
            [(0, 1, MAPPED, ""), (None, 0, DROPPED, "")],
        ),
        (
            matched((1, 0)),
            {0},
            [op(0, "dedupe")],
            [(0, 1, MOVED, "--map-operator 1=0"), (None, 0, DROPPED, "")],
        ),
        (
            matched((1, 0)),
            set(),
            [op(0, "dedupe")],
            [(0, 1, MOVED, "--match-operators"), (None, 0, REFUSED, "--drop-operator 0")],
        ),
        (
            matched((1, 0), (0, 3), why=GIVEN),
            set(),
            [op(0, "dedupe")],
            [(0, 1, MAPPED, ""), (None, 0, REFUSED, "the job has no operator 3")],
        ),
        (
            matched((1, 0), why=GIVEN),
            {0},
            [op(0, "stateStoreSave")],
            [(0, 1, REFUSED, "that of a dedupe"), (None, 0, DROPPED, "")],
        ),
        (
            matched((0, 0), (1, 1)),
            set(),
            [op(0, "stateStoreSave", "NOT_COMPATIBLE: the key"), op(1, "dedupe")],
            [(0, 0, REFUSED, "NOT_COMPATIBLE"), (1, 1, RESTORED, "")],
        ),
        (
            matched((0, 0), (1, 1)),
            set(),
            [*_BOTH, op(2, "limit")],
            [(0, 0, RESTORED, ""), (1, 1, RESTORED, ""), (2, None, REFUSED, "no state for it")],
        ),
        (
            matched((0, 0), unclear=(Unclear("dedupe", (1,), (1, 2)),)),
            set(),
            [*_BOTH, op(2, "dedupe")],
            [
                (0, 0, RESTORED, ""),
                (1, None, REFUSED, "--map-operator 1=NEW"),
                (2, None, REFUSED, "--map-operator 1=NEW"),
                (None, 1, REFUSED, "--map-operator 1=NEW"),
            ],
        ),
        (matched(), {0, 1}, [], [(None, 0, DROPPED, ""), (None, 1, DROPPED, "")]),
    ],
)
def test_verdicts(
    found_as: Matching,
    dropped: set[int],
    found: list[JobOperator],
    expected: list[tuple[int | None, int | None, str, str]],
) -> None:
    result = verdicts(SAVED, found_as, dropped, found)
    assert [(v.operator, v.saved_as, v.verdict) for v in result] == [e[:3] for e in expected]
    for verdict, (_, _, _, reason) in zip(result, expected, strict=True):
        assert reason in verdict.reason and bool(reason) == bool(verdict.reason)


def test_an_operator_that_moved_and_is_confirmed() -> None:
    (told, _) = verdicts(SAVED, matched((1, 0)), {0}, [op(0, "dedupe")], confirmed=True)
    assert (told.verdict, told.reason, told.why) == (MAPPED, "", SAME)


def test_a_new_operator_that_is_allowed() -> None:
    """It starts empty, unless Spark does not start it at all."""
    found = [*_BOTH, op(2, "globalLimit")]
    result = verdicts(SAVED, matched((0, 0), (1, 1)), set(), found, allow_new=True)
    assert [(v.operator, v.saved_as, v.verdict, v.reason) for v in result] == [
        (0, 0, RESTORED, ""),
        (1, 1, RESTORED, ""),
        (2, None, NEW, ""),
    ]
    found[2] = op(2, "globalLimit", "AVRO: not for it")
    told = verdicts(SAVED, matched((0, 0), (1, 1)), set(), found, allow_new=True)[2]
    assert (told.verdict, told.reason) == (REFUSED, "AVRO: not for it")


def test_which_query() -> None:
    one, two = JobQuery(writer=1, name="one"), JobQuery(writer=2, name=None)
    assert chosen([one], None) is one and chosen([one, two], "one") is one
    for queries, name in (([one, two], None), ([one], "three")):
        with pytest.raises(InvalidInputError, match="one"):
            chosen(queries, name)


def test_no_job(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no file"):
        load(tmp_path / "none.py", lambda: None)


def test_a_script_that_takes_arguments(tmp_path: Path) -> None:
    file = tmp_path / "the job.py"
    file.write_text("import sys\nprint(sys.argv[1])\nsys.exit(int(sys.argv[2]))\n")
    with pytest.raises(InvalidInputError, match=r"raised IndexError.* in line 2 of the job"):
        load(file, lambda: None)
    quoted = shlex.quote(str(file))
    with pytest.raises(InvalidInputError, match="exit code 3"):
        load(f"{quoted} '2026 01' 3", lambda: None)
    with pytest.raises(InvalidInputError, match="starts no streaming query"):
        load(f"{quoted} '2026 01' 0", lambda: None)


def test_a_fault_of_the_job_is_told_as_its_own(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("def build(spark):\n    return {}['nothing']\n")
    with pytest.raises(InvalidInputError, match="your function build raised KeyError") as error:
        load(f"{file}:build", lambda: None)
    assert " in line 2 of job.py" in str(error.value)
    assert error.value.kind is ErrorKind.USER_CODE_FAILED


def test_of_an_error_of_the_jvm_the_innermost_reason_is_told() -> None:
    """The form is that of py4j."""

    def build() -> None:
        raise RuntimeError(
            "An error occurred while calling o48.load.\n: java.lang.IllegalStateException: outer\n"
            "\tat some.Thing\nCaused by: java.lang.ClassNotFoundException: org.apache.kafka.Some\n"
            "\t... 96 more\n"
        )

    with pytest.raises(InvalidInputError, match="ClassNotFoundException") as error:
        load(build, lambda: None)
    assert "spark-sql-kafka-0-10_2.13:" in error.value.hint


@pytest.mark.parametrize("ok", [True, False])
def test_command(
    ok: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repository: Path
) -> None:
    verdict = OperatorVerdict(
        operator=0,
        name="dedupe",
        saved_as=1,
        verdict=MAPPED if ok else REFUSED,
        reason="" if ok else "it is so",
    )
    report = PlanReport(savepoint="/s", batch=3, query=None, operators=(verdict,))
    monkeypatch.setattr(
        savepoints, "plan", lambda *_, **given: report if given["map_operators"] else None
    )
    arguments = ["savepoint", "plan", "/s", "--job", "job.py", "--map-operator", "1=0"]
    assert main(arguments) == (0 if ok else 1)
    text = capsys.readouterr().out
    assert ("mapped" in text) == ok and ("dedupe: it is so" in text) != ok
    assert main([*arguments, "--json"]) == (0 if ok else 1)
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is ok
    guide = (repository / "docs/guides/savepoints.md").read_text()
    (row,) = [line for line in guide.splitlines() if line.startswith("| `plan` |")]
    assert [name for name in [*found, *found["operators"][0]] if f"`{name}`" not in row] == []


@pytest.mark.parametrize("families", [1, 2])
def test_columns_of_several_families_change_by_a_call_for_each(
    families: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`restore` takes the options of one column family alone: after it the job was refused."""
    options = tuple(f"--column-family f{n} --add-column v:long" for n in range(families))
    verdict = OperatorVerdict(
        operator=0,
        name="transformWithStateExec",
        saved_as=0,
        verdict=REFUSED,
        reason="",
        column_options=options,
    )
    report = PlanReport(savepoint="/my saved", batch=3, query=None, operators=(verdict,))
    monkeypatch.setattr(savepoints, "plan", lambda *_, **given: report)
    assert main(["savepoint", "plan", "/my saved", "--job", "job.py"]) == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if "--add-column" in line]
    verb = "restore" if families == 1 else "edit"
    new = "NEW_CHECKPOINT" if families == 1 else "NEW_SAVEPOINT"
    assert len(shown) == families
    for line, wanted in zip(shown, options, strict=True):
        assert line.endswith(f"millpond savepoint {verb} '/my saved' {new} {wanted}")
        assert ("each change on top of the one before" in line) is (families > 1)


class _Typed(io.StringIO):
    """A terminal, or a pipe, with what somebody types."""

    def __init__(self, text: str, terminal: bool) -> None:
        super().__init__(text)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("typed", "terminal", "meant"),
    [("y\n", True, True), ("YES\n", True, True), ("\n", True, False), ("y\n", False, False)],
)
def test_restore_asks_on_a_terminal(
    typed: str,
    terminal: bool,
    meant: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It shows what becomes of each operator. Elsewhere it asks nobody."""
    moved = OperatorVerdict(
        operator=1, name="dedupe", saved_as=0, verdict=MOVED, reason="", why="same columns"
    )
    answers = []

    def restore(*_: object, match_operators: Any, **__: object) -> RestoreReport:
        answers.append(match_operators((moved,)))
        raise InvalidInputError("enough")

    monkeypatch.setattr(savepoints, "restore", restore)
    monkeypatch.setattr(sys, "stdin", _Typed(typed, terminal))
    assert main(["savepoint", "restore", "/s", "/c", "--job", "job.py"]) == 2
    shown = capsys.readouterr()
    assert answers == [meant] and shown.out == ""
    assert "1  dedupe         0  moved    same columns" in shown.err
    assert ("[y/N]" in shown.err) is terminal
