"""Damages Spark checkpoints and savepoints at random.

It removes, cuts, flips, exchanges, doubles or ages a file or a folder. After that everything still
reads right, or every command that needs the damaged file says so. Each seed does one damage, always
the same.

    python -m tests.damage --seeds 2000 --first 0      prints what came out healthy, and the score
    ... --queries DIRECTORY                            damages the Spark checkpoints in it
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from millpond import savepoint
from millpond.errors import ErrorKind, MillpondError, UnsupportedError
from millpond.format import layout, spark_names
from millpond.format.manifest import decode_manifest, encode_manifest
from millpond.model.ids import StoreId
from millpond.operations.inspect import overview, verify
from millpond.operations.rescale import rescale
from millpond.state.tables import read_state
from millpond.storage import LocalStorage
from tests.checkpoints import CheckpointBuilder
from tests.row_checkpoints import RowsBuilder

BATCHES, PARTITIONS, OPERATORS = 6, 4, 2
HEALTHY = "came out healthy"
Rows = list[str]
Part = tuple[int, str, str]  # operator, store, column family


def with_operators(built: CheckpointBuilder, count: int) -> None:
    """Give the query more operators with the same state."""
    for operator in range(1, count):
        shutil.copytree(built.root / "state/0", built.root / f"state/{operator}")
        for path in (built.root / f"state/{operator}").rglob("*.manifest"):
            manifest = decode_manifest(path.read_bytes())
            store = StoreId(operator, manifest.store.partition, manifest.store.name)
            path.write_bytes(encode_manifest(replace(manifest, store=store)))
        path = built.root / f"state/{operator}/_metadata/metadata"
        path.write_text(path.read_text().replace('"operatorId": 0', f'"operatorId": {operator}'))
        if built.spark_format == 1:
            built.storage.put_bytes(layout.operator_record_key(operator), b"")
    if built.spark_format == 2:
        for path in (built.root / "commits").iterdir():
            text = path.read_text()
            at, end = text.index('{"0": ') + 6, len(text) - 2
            ids = ", ".join(f'"{operator}": {text[at:end]}' for operator in range(count))
            path.write_text(f"{text[: at - 5]}{ids}{text[end:]}")


def with_sums(root: Path) -> None:
    """Write the checksum files that Hadoop keeps beside Spark's files on a local disk."""
    for path in [path for path in root.rglob("*") if path.is_file()]:
        key = path.relative_to(root).as_posix()
        if spark_names.is_sparks(key):
            data = path.read_bytes()
            sums = (
                zlib.crc32(data[at : at + 512]).to_bytes(4, "big")
                for at in range(0, len(data), 512)
            )
            (root / spark_names.crc_key(key)).write_bytes(b"crc\0\0\0\2\0" + b"".join(sums))


@dataclass(frozen=True, slots=True)
class Template:
    """A place to damage, and what a reader finds in it without damage."""

    name: str
    root: Path
    parts: tuple[Part, ...]  # the parts that have rows
    rows: dict[int, Rows]  # batch -> rows
    is_savepoint: bool
    refused: frozenset[str] = frozenset()  # commands that Millpond refuses even without damage


def templates(directory: Path) -> list[Template]:
    """Build the templates in both Spark checkpoint formats.

    They are a query, a query after a rescale, and savepoints in both formats.
    """
    made: list[Template] = []
    for spark_format in (1, 2):
        root = directory / f"query-{spark_format}"
        built = RowsBuilder(root, partitions=PARTITIONS, spark_format=spark_format).build(BATCHES)
        with_operators(built, OPERATORS)
        made += templates_of(root, f"checkpoint format {spark_format}", directory)
        with_sums(root)
    return made


def templates_of(query: Path, name: str, directory: Path) -> Iterator[Template]:
    """Yield the templates of one query, made below `directory`.

    They are the query itself, the query after a rescale, and savepoints in both formats.
    """
    batch, partitions = last_batch(query), {2: 4, 4: 8}
    saved = {form: directory / f"{form}-{query.name}" for form in ("native", "canonical")}
    for form, place in saved.items():
        savepoint.create(query, place, format=form)
    parts = tuple(
        (f.operator, f.store, f.column_family)
        for f in savepoint.diff(saved["native"], saved["native"]).families
    )
    yield _template(f"query, {name}", query, parts, [batch - 1, batch])
    rescaled = directory / f"rescaled-{query.name}"
    shutil.copytree(query, rescaled)
    storage = LocalStorage(str(rescaled))
    try:
        rescale(storage, "it", partitions[overview(storage, "it").partitions or 0])
        yield _template(f"rescaled, {name}", rescaled, parts, [batch, batch + 1])
    except UnsupportedError:  # only Spark can assign its rows to partitions
        shutil.rmtree(rescaled)
    for form, place in saved.items():
        yield _template(f"{form}, {name}", place, parts, [])


def _template(name: str, root: Path, parts: tuple[Part, ...], batches: list[int]) -> Template:
    rows = {batch: rows_of(root, parts, batch) for batch in batches} or {0: rows_of(root, parts)}
    return Template(name, root, parts, rows, is_savepoint=not batches)


def without_refusals(template: Template) -> Template:
    """Note which commands are refused without damage. Return the template.

    Other tests say why they are refused.
    """
    with tempfile.TemporaryDirectory() as scratch:
        judge = _Judge(template, template.root, Path(scratch))
        judge.run()
    assert not judge.wrong, (template.name, judge.wrong)
    return replace(template, refused=frozenset(judge.refused_commands))


def templates_in(queries: Path, directory: Path) -> list[Template]:
    """Return the templates of each Spark checkpoint in a directory, by its name."""
    made = (
        t for query in sorted(queries.iterdir()) for t in templates_of(query, query.name, directory)
    )
    return [without_refusals(template) for template in made]


def last_batch(query: Path) -> int:
    """Return the number of the last committed batch."""
    return max(int(path.name) for path in (query / "commits").iterdir() if path.name.isdigit())


def rows_of(place: Path, parts: tuple[Part, ...], batch: int | None = None) -> Rows:
    """Return the rows of all operators and partitions."""
    found: Rows = []
    for operator, store, family in parts:
        table = read_state(place, operator=operator, store=store, column_family=family, batch=batch)
        found += [
            repr((operator, store, family, row["key"], row["value"])) for row in table.to_pylist()
        ]
    return sorted(found)


# ---- damage


def damage(root: Path, random: Random) -> str:
    """Do one damage. Return its description."""
    everything = sorted(path for path in root.rglob("*"))
    files = [path for path in everything if path.is_file()]
    ways: list[Callable[[], str]] = [
        lambda: _removed(root, random.choice(everything)),
        lambda: _cut(root, random.choice([p for p in files if p.stat().st_size]), random),
        lambda: _flipped(root, random.choice([p for p in files if p.stat().st_size]), random),
        lambda: _exchanged(root, files, random),
        lambda: _written_over(root, files, random),
    ]
    return random.choice(ways)()


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _removed(root: Path, path: Path) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"{_name(root, path)} removed"


def _replaced(path: Path, data: bytes) -> None:
    path.unlink()  # another file may be a link to the same bytes
    path.write_bytes(data)


def _cut(root: Path, path: Path, random: Random) -> str:
    data = path.read_bytes()
    size = random.randrange(len(data))
    _replaced(path, data[:size])
    return f"{_name(root, path)} cut to {size} of {len(data)} bytes"


def _flipped(root: Path, path: Path, random: Random) -> str:
    data = bytearray(path.read_bytes())
    at, bit = random.randrange(len(data)), random.randrange(8)
    data[at] ^= 1 << bit
    _replaced(path, bytes(data))
    return f"{_name(root, path)}: bit {bit} of byte {at} flipped"


def _alike(path: Path, files: list[Path], random: Random) -> Path:
    """Return another file, most often one of the same kind."""
    alike = [
        p
        for p in files
        if p != path and p.suffix == path.suffix and p.name[0].isdigit() == path.name[0].isdigit()
    ]
    return random.choice(
        alike if alike and random.random() < 0.8 else [p for p in files if p != path]
    )


def _exchanged(root: Path, files: list[Path], random: Random) -> str:
    a = random.choice(files)
    b = _alike(a, files, random)
    of_a, of_b = a.read_bytes(), b.read_bytes()
    _replaced(a, of_b)
    _replaced(b, of_a)
    return f"{_name(root, a)} and {_name(root, b)} exchanged"


def _written_over(root: Path, files: list[Path], random: Random) -> str:
    a = random.choice(files)
    b = _alike(a, files, random)
    _replaced(a, b.read_bytes())
    return f"{_name(root, a)} replaced by a copy of {_name(root, b)}"


# ---- judgement


@dataclass(slots=True)
class Verdict:
    """The outcome of one damage.

    It is `noticed`, `harmless`, `as if not committed`, or HEALTHY. With HEALTHY, `why` gives the
    reasons.
    """

    what: str
    outcome: str
    why: list[str] = field(default_factory=list)


def judge(template: Template, root: Path, scratch: Path) -> Verdict:
    """Run every command on a damaged place. Return the verdict."""
    check = _Judge(template, root, scratch)
    check.run()
    if check.wrong:
        return Verdict("", HEALTHY, check.wrong)
    outcome = "noticed" if check.noticed else "as if not committed" if check.older else "harmless"
    return Verdict("", outcome)


class _Judge:
    def __init__(self, template: Template, root: Path, scratch: Path) -> None:
        self.template, self.root, self.scratch = template, root, scratch
        self.wrong: list[str] = []
        self.refused: list[str] = []
        self.refused_commands: list[str] = []
        self.noticed = self.older = False

    def run(self) -> None:
        problems = self._attempt("verify", self._problems)
        self.noticed = problems is None or bool(problems)
        for name, command in (
            ("state read", lambda: rows_of(self.root, self.template.parts)),
            ("savepoint create", lambda: self._made(savepoint.create, "saved")),
            ("fork", lambda: self._made(savepoint.fork, "forked")),
            ("restore", lambda: self._made(savepoint.restore, "restored")),
            (
                "restore to others",
                lambda: self._made(savepoint.restore, "rewritten", partitions=16),
            ),
            ("rescale", self._rescaled),
        ):
            if (
                self.template.is_savepoint != (name in ("restore", "restore to others"))
                and name != "state read"
            ):
                continue
            if name in self.template.refused:
                continue
            rows = self._attempt(name, command)
            if rows is not None and rows != self._right():
                if not self.noticed and rows in self.template.rows.values():
                    # Without its last commit, a query looks as if it was killed before that commit.
                    self.older = True
                else:
                    self.wrong.append(f"{name} gives other rows")
        if self.refused and not self.noticed:
            self.wrong.append(f"verify finds nothing, and {self.refused[0]}")

    def _right(self) -> Rows:
        return self.template.rows[max(self.template.rows)]

    def _attempt(self, name: str, command: Callable[[], Any]) -> Any:
        """Return what the command returns. None: it was refused, as it should be."""
        try:
            return command()
        except MillpondError as e:
            self.refused_commands.append(name)
            if e.kind is ErrorKind.BATCH_NOT_COMMITTED:
                # The newest commit is gone. So the query looks as if it was killed before that
                # commit.
                self.older = True
            elif e.kind is not ErrorKind.UNSUPPORTED:  # a later Spark may have this type
                self.refused.append(f"{name} is refused: {e.kind}: {e}")
            if e.kind is ErrorKind.INTERNAL or not e.hint:
                self.wrong.append(f"{name}: {e.kind}: {e}")
        except Exception as e:  # the command would print a traceback
            self.wrong.append(f"{name}: {type(e).__name__}: {e}")
        return None

    def _problems(self) -> list[Any]:
        if self.template.is_savepoint:
            return list(savepoint.verify(self.root).problems)
        return list(verify(LocalStorage(str(self.root)), "it").problems)

    def _made(self, make: Callable[..., object], name: str, **options: object) -> Rows | None:
        """Return the rows of what a command makes.

        None: `verify` finds a flipped bit in it.
        """
        place = self.scratch / name
        make(self.root, place, **options)
        found = (
            savepoint.verify(place) if name == "saved" else verify(LocalStorage(str(place)), name)
        )
        if found.problems:
            self.refused.append(f"what {name} is has problems: {found.problems[0]}")
            return None
        return rows_of(place, self.template.parts)

    def _rescaled(self) -> Rows | None:
        place = self.scratch / "rescaled"
        shutil.copytree(self.root, place)
        storage = LocalStorage(str(place))
        rescale(storage, "it", 16)
        if problems := verify(storage, "it").problems:
            self.refused.append(f"after a rescale there are problems: {problems[0]}")
            return None
        return rows_of(place, self.template.parts)


def run_seed(made: list[Template], seed: int, directory: Path) -> tuple[str, Verdict]:
    """Damage a template by a seed, and judge. Return the template's name and the verdict."""
    random = Random(seed)
    template = random.choice(made)
    root, scratch = directory / f"damaged-{seed}", directory / f"scratch-{seed}"
    shutil.copytree(template.root, root)
    scratch.mkdir()
    try:
        what = damage(root, random)
        return template.name, replace(judge(template, root, scratch), what=what)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Run many seeds. Print the damages that came out healthy, and the score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--queries", type=Path)
    arguments = parser.parse_args()
    score: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        made = (
            templates(Path(name))
            if arguments.queries is None
            else templates_in(arguments.queries, Path(name))
        )
        with suppress(KeyboardInterrupt):  # then the score counts the seeds so far
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                template, verdict = run_seed(made, seed, Path(name))
                score[template, verdict.outcome] += 1
                if verdict.why:
                    why = "; ".join(verdict.why)
                    print(f"seed {seed}: {template}: {verdict.what}: {why}", flush=True)
    for (template, outcome), count in sorted(score.items()):
        print(f"{template:<32} {outcome:<22} {count}")
    return 1 if any(outcome == HEALTHY for _, outcome in score) else 0


if __name__ == "__main__":
    sys.exit(main())
