"""Finds the state that a caller means: operator, store, column family and batch. Works without
Arrow.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, NotFoundError, error
from millpond.model.command_texts import option_words
from millpond.model.ids import DEFAULT_STORE, StoreId
from millpond.model.json_fields import ColumnFamily
from millpond.model.partition_keys import (
    PartitionKeyRule,
    partition_key_rule,
    with_dropped_variables,
)
from millpond.query.erasing import Erasures
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image, OperatorImage, operator_info
from millpond.query.index import CANONICAL, SavepointIndex, read_index
from millpond.query.schemas import schema_files
from millpond.query.whole import checkpoint_image
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.state_schemas import FamilySchema, parse_schema_file
from millpond.spark.types import Atom, Field, Struct
from millpond.storage import Storage, open_checkpoint, root_of
from millpond.store.entries import StoreVersion, open_version
from millpond.store.files import StoreFiles

_TIMED_OUT = ("flatMapGroupsWithState", "applyInPandasWithState")

_OFFERED = 8  # an error names so many choices

_SPECS = {"prefix": "PrefixKeyScanStateEncoderSpec"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One column family of one store of one operator, in all partitions, after one batch."""

    storage: Storage
    batch: int
    operator: OperatorImage
    store: str
    family: str
    schema: FamilySchema
    spark_format: int
    tables: SavepointIndex | None  # only of a canonical savepoint: tables have its rows, not stores
    sums: Mapping[str, int]  # key -> CRC-32 of files, from the index of a native savepoint

    def versions(
        self, partitions: Collection[int] | None = None
    ) -> Iterator[tuple[int, StoreVersion, ColumnFamily | None]]:
        """Yield each partition, how to read its store, and its record of the column family (None:
        it has no row of the family).

        Args:
            partitions: only these; None: all.
        Raises: as `restore.plan.plan_restore`.
        """
        for image in self.operator.stores:
            if image.name != self.store or (
                partitions is not None and image.partition not in partitions
            ):
                continue
            store = StoreId(self.operator.operator, image.partition, image.name)
            files = StoreFiles(self.storage, store, self.spark_format)
            target = image.version_id(self.spark_format)
            version = open_version(files, target, self.sums)
            yield (
                image.partition,
                version,
                next((f for f in version.families if f.name == self.family), None),
            )


def select(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
) -> Selection:
    """Find what the caller means in the Spark checkpoint or savepoint at `path`.

    `operator`, `store` and `column_family` may be left out if there is only one.
    Args:
        operator: number, or name as `millpond checkpoint show` prints it.
        store: name; joins have four in their default format.
        column_family: name of a state variable, or of a part of a join in the formats 3 and 4.
        batch: a committed one; None: the last.
    Raises:
        InvalidInputError: OPERATOR_UNKNOWN; INVALID_ARGUMENT: no such store or column family, or
            several to choose from.
        Others: as `millpond.operations.savepoint.create`.
    """
    return open_state(path, batch).select(operator, store, column_family)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A column family that a caller can mean."""

    operator: int
    name: str  # of the operator
    store: str
    schema: FamilySchema

    def arguments(self) -> str:
        """Return the arguments of `millpond state read` that mean it."""
        words = ["--operator", str(self.operator), *option_words("--store", self.store)]
        return shlex.join([*words, *option_words("--column-family", self.schema.name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The state of a Spark checkpoint or savepoint after one batch.

    glanced: nobody has looked at the files of its stores yet. erasures: those of before it was
    opened; None: it is a savepoint, or whoever opened it looks whether a key is erased meanwhile.
    """

    storage: Storage
    place: str
    image: Image
    index: SavepointIndex | None  # None: a Spark checkpoint
    glanced: bool = False
    erasures: Erasures | None = None

    def selection(self, operator: int, store: str, family: str) -> Selection:
        """Return one column family. All names are there."""
        (chosen,) = [op for op in self.image.operators if op.operator == operator]
        info = operator_info(self.image, operator)
        schemas = {s.name: s for s in family_schemas(self.image, operator, info, store)}
        index = self.index
        return Selection(
            storage=self.storage,
            batch=self.image.batch,
            operator=chosen,
            store=store,
            family=family,
            schema=schemas[family],
            spark_format=self.image.spark_checkpoint_format,
            tables=index if index is not None and index.format == CANONICAL else None,
            sums=self.sums,
        )

    def operator(self, wanted: int | str | None) -> OperatorImage:
        """Return the operator that the caller means. Raises: as the function `select`."""
        return _operator(self.image, wanted)

    @property
    def sums(self) -> Mapping[str, int]:
        """CRC-32 of files by key: those of a savepoint's index; none of a Spark checkpoint."""
        if self.index is None:
            return {}
        return {file.source: file.crc32 for file in self.image.files if file.crc32 is not None}

    def select(
        self, operator: int | str | None, store: str | None, column_family: str | None
    ) -> Selection:
        """Return what the caller means. Raises: as the function `select`."""
        try:
            chosen = _operator(self.image, operator)
            info = operator_info(self.image, chosen.operator)
            store = _one("store", store, info.stores, DEFAULT_STORE)
            names = [s.name for s in family_schemas(self.image, chosen.operator, info, store)]
            visible = [name for name in names if not name.startswith("$")]
            family = _one(
                "column family", column_family, tuple(names), DEFAULT_STORE, offered=visible
            )
        except InvalidInputError as e:
            raise error(e.kind, e.message, hint=self._hint()) from e
        return self.selection(chosen.operator, store, family)

    def _hint(self) -> str:
        listed = f"`millpond state list {shlex.quote(self.place)}` shows all"
        some = [
            choice
            for op in self.image.operators
            for choice in choices_of(self.image, op.operator)
            if not choice.schema.name.startswith("$")
        ]
        if not 0 < len(some) <= _OFFERED:
            return f"{listed}, with the arguments that choose one."
        ways = "; or ".join(choice.arguments() for choice in some)
        return f"Choose by {ways}. {listed}."


def open_state(path: str | os.PathLike[str], batch: int | None) -> Opened:
    """Open the Spark checkpoint or savepoint at `path`.

    Args:
        batch: a committed one; None: the last.
    Raises: as `select`.
    """
    place = root_of(path)
    return opened_in(open_checkpoint(place), place, batch)


def opened_in(storage: Storage, place: str, batch: int | None) -> Opened:
    """Open the Spark checkpoint or savepoint in `storage`.

    Args:
        place: its name, for messages.
        batch: a committed one; None: the last.
    Raises: as `open_state`.
    """
    index = index_of(storage, place)
    image = (
        checkpoint_image(storage, place, batch)
        if index is None
        else savepoint_image(storage, index)
    )
    if index is not None and batch not in (None, image.batch):
        raise NotFoundError(
            f"{place} is of batch {image.batch}, not of {batch}", kind=ErrorKind.BATCH_NOT_COMMITTED
        )
    return Opened(storage=storage, place=place, image=image, index=index)


def choices_of(image: Image, operator: int) -> list[Choice]:
    """Return the column families of an operator, of all its stores."""
    info = operator_info(image, operator)
    return [
        Choice(operator=operator, name=info.name, store=store, schema=schema)
        for store in info.stores
        for schema in family_schemas(image, operator, info, store)
    ]


def index_of(storage: Storage, place: str) -> SavepointIndex | None:
    """Return the index of a savepoint; None for a Spark checkpoint."""
    try:
        return read_index(storage, place)
    except InvalidInputError:
        return None


def _operator(image: Image, wanted: int | str | None) -> OperatorImage:
    operators = image.operators
    if not operators:
        raise NotFoundError("the query keeps no state")
    found = [
        op
        for op in operators
        if wanted is None or wanted in (op.operator, str(op.operator), op.name)
    ]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{op.operator} ({op.name})" for op in operators)
    what = f"no operator {wanted!r}" if not found else "several operators: say which"
    raise InvalidInputError(f"{what}; there are: {there}", kind=ErrorKind.OPERATOR_UNKNOWN)


def _one(
    what: str,
    wanted: str | None,
    names: tuple[str, ...],
    default: str,
    *,
    offered: list[str] | None = None,
) -> str:
    choice = list(names) if offered is None else offered
    if wanted is not None and wanted in names:
        return wanted
    if wanted is None and len(choice) == 1:
        return choice[0]
    if wanted is None and default in choice:
        return default
    there = ", ".join(sorted(names)) or "none"
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    problem = f"several {several}: say which" if wanted is None else f"no {what} {wanted!r}"
    raise InvalidInputError(
        f"{problem}; there are: {there}",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="`millpond state list` shows all, with the arguments that choose one.",
    )


def family_schemas(
    image: Image, operator: int, info: OperatorInfo, store: str
) -> tuple[FamilySchema, ...]:
    """Return the column families of a store, from Spark's newest schema file in `image`.

    Raises: FormatError: FORMAT_DAMAGED. UnsupportedError.
    """
    return _described(image, operator, info, store)[-1]


def every_schema(
    image: Image, operator: int, info: OperatorInfo, store: str
) -> dict[str, FamilySchema]:
    """Return the newest schema of each column family of a store by name, of those too that the job
    has dropped: Spark keeps their rows.

    Raises: as `family_schemas`.
    """
    files = _described(image, operator, info, store)
    return {schema.name: schema for schemas in files for schema in schemas}


def _described(
    image: Image, operator: int, info: OperatorInfo, store: str
) -> list[tuple[FamilySchema, ...]]:
    """Return the column families of each of Spark's schema files of a store, the newest last."""
    prefix_columns = info.prefix_columns.get(store, 0)
    parsed = [
        parse_schema_file(text, prefix_columns=prefix_columns, name=key)
        for key, text in schema_files(image.texts, operator, info, store).items()
    ]
    values: dict[str, dict[int, Struct]] = {}
    for schema in (schema for schemas in parsed for schema in schemas):
        values.setdefault(schema.name, {})[schema.value_id] = schema.value
    return [
        tuple(
            replace(schema, value=_value(info, schema), values=values[schema.name])
            for schema in schemas
        )
        for schemas in parsed
    ]


def _value(info: OperatorInfo, schema: FamilySchema) -> Struct:
    """Return the columns that values really have."""
    fields = schema.value.fields
    if (
        info.name in _TIMED_OUT
        and fields
        and fields[-1] == Field("timeoutTimestamp", Atom("integer"))
    ):
        # The schema of state format 1 says integer, but Spark writes 8 bytes: milliseconds since
        # the epoch (Spark 4.3: StateManagerImplV1).
        return Struct((*fields[:-1], Field("timeoutTimestamp", Atom("long"))))
    return schema.value


def rule_of(info: OperatorInfo, store: str, schema: FamilySchema) -> PartitionKeyRule:
    """Return which part of the keys of a column family decides their partition."""
    return _rule(info, store, schema, info.state_variables)


def every_rule(
    image: Image, operator: int, info: OperatorInfo, store: str
) -> dict[str, tuple[FamilySchema, PartitionKeyRule]]:
    """Return, of each column family of `every_schema`, which part of its keys decides their
    partition, too.

    Raises: as `every_schema`.
    """
    schemas = every_schema(image, operator, info, store)
    families = [(name, schema.kind, schema.key.names) for name, schema in schemas.items()]
    variables = with_dropped_variables(info.state_variables, families)
    return {
        name: (schema, _rule(info, store, schema, variables)) for name, schema in schemas.items()
    }


def _rule(
    info: OperatorInfo, store: str, schema: FamilySchema, variables: Sequence[dict[str, Any]]
) -> PartitionKeyRule:
    return partition_key_rule(
        info.name,
        store,
        schema.name,
        schema.key.names,
        _SPECS.get(schema.kind, ""),
        variables,
    )
