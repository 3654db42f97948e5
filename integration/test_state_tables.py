"""State as Arrow tables equals the rows of Spark's own source.

Rows that Python encodes equal rows that Spark encodes.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal as Number
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import millpond
from integration.cases import Case
from integration.depth import quick_first
from integration.jvm import MILLPOND
from integration.shapes import named
from integration.streams import Input, Run, finish, start
from integration.streams import settings as session
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.query.image import operator_info
from millpond.query.row_source import NativeRows
from millpond.query.whole import checkpoint_image
from millpond.rows.avro_write import avro_rows
from millpond.rows.decode import decode_rows
from millpond.rows.encode import encode_rows
from millpond.rows.hashing import hash_rows
from millpond.spark.types import Array, Atom, Decimal, Field, Map, SparkType, Struct
from millpond.state.codec import AVRO, binary_array, decode_keys, decode_values, split_lists
from millpond.state.encoding import encode_keys, encode_values
from millpond.state.selection import family_schemas
from millpond.storage import open_storage
from tests.row_examples import ALL_ATOMS, arrow, tables

pytestmark = pytest.mark.spark

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
# A case, options of Spark's source, and Millpond's options for the same rows.
SELECTIONS: list[tuple[str, list[tuple[dict[str, str], dict[str, Any]]]]] = [
    ("agg-update-odd-keys", [({}, {})]),
    ("agg-update-deep-keys", [({}, {})]),
    ("sessions-append", [({}, {})]),
    (
        "join-left",
        [
            ({"storeName": name}, {"store": name})
            for name in (
                "left-keyToNumValues",
                "left-keyWithIndexToValue",
                "right-keyWithIndexToValue",
            )
        ],
    ),
    ("scala-event-time-avro", [({"stateVarName": "seen"}, {"column_family": "seen"})]),
]


def _plain(value: Any) -> Any:
    """Return a value of Spark's or Arrow's in one form.

    Structs become lists, because Spark allows a name twice.
    """
    if isinstance(value, dict):
        return [_plain(inner) for inner in value.values()]
    if isinstance(value, list | tuple):  # a Row is a tuple
        return [_plain(inner) for inner in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dt.datetime):
        return (
            value.astimezone(dt.timezone.utc)
            if value.tzinfo
            else value.astimezone().astimezone(dt.timezone.utc)
        )
    return value


def _pairs(value: Any) -> Any:
    """Return a value of Spark's in Arrow's form: maps become lists of pairs."""
    if isinstance(value, dict):
        return [[_pairs(key), _pairs(inner)] for key, inner in value.items()]
    return [_pairs(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    ("name", "selections"),
    quick_first(SELECTIONS),
    ids=[name for name, _ in SELECTIONS],
)
def test_tables_show_what_spark_shows(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    selections: list[tuple[dict[str, str], dict[str, Any]]],
) -> None:
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches[:4]:
            source.add(batch)
    run = Run(tmp_path / "run")
    conf = {_PROVIDER: MILLPOND, _FORMAT: str(case.checkpoint_format), **case.conf}
    frame = case.build([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    for asked, options in selections:
        for number in (1, max(run.rows)):
            with session(spark, conf):
                reader = spark.read.format("statestore").option("batchId", number).options(**asked)
                rows = reader.load(str(run.checkpoint)).collect()
            expected = sorted(
                repr((r.partition_id, _plain(_pairs(r.key)), _plain(_pairs(r.value)))) for r in rows
            )
            found = millpond.read_state(run.checkpoint, batch=number, **options).to_pylist()
            assert (
                sorted(repr((r["partition"], _plain(r["key"]), _plain(r["value"]))) for r in found)
                == expected
            )
            assert expected or number > 1
        if name == SELECTIONS[0][0]:
            found = millpond.read_state(run.checkpoint, raw=True, spark=spark, **options)
            assert isinstance(found, DataFrame)
            table = millpond.read_state(run.checkpoint, raw=True, **options)
            assert sorted(map(repr, found.toArrow().to_pylist())) == sorted(
                map(repr, table.to_pylist())
            )
            _executors_do_it(spark, run.checkpoint, tmp_path)
    if case.encoding == "avro":
        _rows_are_encoded_as_they_were(run.checkpoint)
        _edited_state_takes_effect(spark, case, inputs[0], run, tmp_path, conf)


def _rows_are_encoded_as_they_were(checkpoint: Path) -> None:
    """Check that rows which Spark encoded with Avro become the same bytes again."""
    storage = open_storage(str(checkpoint))
    image = checkpoint_image(storage, str(checkpoint))
    source = NativeRows(storage, image)
    kinds = set()
    for store in source.stores():
        info = operator_info(image, store.store.operator)
        schemas = {
            s.name: s for s in family_schemas(image, store.store.operator, info, store.store.name)
        }
        for rows in source.rows(store):
            schema, encoding = schemas[rows.family.name], rows.family.encoding
            assert encoding == AVRO
            values = split_lists(rows.values)[0] if rows.family.multi else rows.values
            keys = decode_keys(rows.keys, schema, place_bytes=0, encoding=encoding)
            assert encode_keys(keys, schema, encoding=encoding) == rows.keys, schema
            found = decode_values(values, schema, encoding=encoding)
            assert encode_values(found, schema, encoding=encoding) == values, schema
            kinds |= {schema.kind, "multi" if rows.family.multi else "single"}
    assert kinds == {"point", "prefix", "range", "multi", "single"}


def _edited_state_takes_effect(
    spark: SparkSession, case: Case, source: Input, run: Run, work: Path, conf: dict[str, str]
) -> None:
    """Check that the query goes on from edited state.

    One edit changes the value of each key. Another replaces entries of the map. The query finds
    these by their keys.
    """

    def counted(rows: Any) -> Any:
        found = rows.to_pylist()
        for row in found:
            row["value"]["n"] += 1000
        return pa.RecordBatch.from_pylist(found, schema=rows.schema)

    def entries(rows: Any) -> Any:
        found = [
            {"key": {**row["key"], "userKey": {"name": f"e{n}", "tags": ["t"]}}, "value": {"n": n}}
            for row in rows.to_pylist()
            if row["key"]["userKey"]["name"] == "m1"
            for n in (5000, 6000)
        ]
        return pa.RecordBatch.from_pylist(found, schema=rows.schema) if found else None

    savepoint.create(run.checkpoint, work / "saved")
    savepoint.edit(work / "saved", work / "counted", column_family="seen", function=counted)
    savepoint.edit(work / "counted", work / "edited", column_family="latest", function=entries)
    again = Run(work / "again")
    savepoint.restore(work / "edited", again.checkpoint, partitions=3)
    source.add(case.inputs[0][1][4])
    finish(
        start(spark, case.build([source.stream(spark)]), again, output_mode=case.mode, conf=conf),
        again,
    )
    text = "\n".join(row for rows in again.rows.values() for row in rows)
    # Spark makes one or the other of a list, with generated code or without.
    text = text.replace("Vector(", "List(")
    # Key d had a value, and an entry that is gone now. Key b has two entries instead of one. Its
    # timer fires.
    kept = "List((v3,2.750000000000000000)); List(Count(Some(11)))"
    assert f"before: Some(1001) Inner(Some(d),List(11)) {kept}; List(); List(); 1 timers" in text
    new = (
        "(Inner(Some(e5000),List(t)),Count(Some(5000))),"
        " (Inner(Some(e6000),List(t)),Count(Some(6000)))"
    )
    kept = "List((v1,3.250000000000000000)); List(Count(Some(13)))"
    assert f"Some(1001) Inner(Some(b),List(13)) {kept}; List({new}); List(); 1 timers" in text


def test_parquet_leaves_a_key_without_columns_out(spark: SparkSession, tmp_path: Path) -> None:
    case = named("global-update-ids")
    source = Input(tmp_path / "input", case.inputs[0][0])
    source.add(case.inputs[0][1][0])
    run, rows = Run(tmp_path / "run"), tmp_path / "rows"
    conf = {_PROVIDER: MILLPOND, _FORMAT: str(case.checkpoint_format), **case.conf}
    frame = case.build([source.stream(spark)])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    asked = ["state", "read", str(run.checkpoint), "--format", "parquet", "--output"]
    assert main([*asked, str(rows), "--engine", "spark"]) == 0
    assert main([*asked, str(tmp_path / "table.parquet")]) == 0
    count = millpond.read_state(run.checkpoint).num_rows
    assert spark.read.parquet(str(rows)).count() == count > 0
    assert pq.read_table(tmp_path / "table.parquet").num_rows == count


def _executors_do_it(spark: SparkSession, checkpoint: Path, work: Path) -> None:
    """Check that with `spark=` and `--engine spark` the session's tasks do the work.

    They save, read, check and restore. Errors in them are Millpond's.
    """
    saved, restored, again = work / "saved", work / "restored", work / "again"
    savepoint.create(checkpoint, saved, format="canonical", spark=spark)
    assert savepoint.diff(checkpoint, saved).equal
    assert savepoint.verify(saved, spark=spark).checked.entries > 0
    savepoint.restore(saved, restored, partitions=3, spark=spark)
    assert savepoint.diff(saved, restored).equal
    assert sorted(path.name for path in restored.iterdir() if path.name.startswith(".")) == []

    engine = ["--engine", "spark"]
    assert main(["fork", str(restored), str(again), "--partitions", "2", *engine]) == 0
    assert savepoint.diff(saved, again).equal
    assert (
        main(
            [
                "state",
                "read",
                str(again),
                "--format",
                "parquet",
                "--output",
                str(work / "rows"),
                *engine,
            ]
        )
        == 0
    )
    assert (
        spark.read.parquet(str(work / "rows")).count() == millpond.read_state(checkpoint).num_rows
    )
    assert (
        main(["state", "read", str(again), *engine])
        == main(["savepoint", "verify", str(saved), "--conf", "a=b"])
        == 2
    )

    (table,) = saved.glob("tables/0/*/*/0.parquet")
    table.write_bytes(table.read_bytes()[:-1] + b"?")
    with pytest.raises(FormatError) as caught:
        savepoint.restore(saved, work / "never", spark=spark)
    assert caught.value.kind is ErrorKind.SAVEPOINT_DAMAGED and not (work / "never").exists()


# ---- the codec, against Spark's own rows ---------------------------------------------------------

# Python cannot give Spark values of the types that are left out.
_ATOMS = tuple(
    name
    for name in ALL_ATOMS
    if name not in ("year_month_interval", "variant", "calendar_interval", "geometry")
)


def _json(kind: SparkType) -> Any:
    """Return Spark's JSON of a type."""
    if isinstance(kind, Atom):
        return {"day_time_interval": "interval day to second"}.get(kind.name, kind.name)
    if isinstance(kind, Decimal):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, Array):
        return {"type": "array", "elementType": _json(kind.element), "containsNull": True}
    if isinstance(kind, Map):
        key, value = _json(kind.key), _json(kind.value)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    fields = [
        {"name": f.name, "type": _json(f.type), "nullable": True, "metadata": {}}
        for f in kind.fields
    ]
    return {"type": "struct", "fields": fields}


def _pythonic(kind: SparkType, value: Any) -> Any:
    """Return the form for `createDataFrame` of a value for `pyarrow.array`."""
    if value is None:
        return None
    if isinstance(kind, Struct):
        return tuple(_pythonic(field.type, value[field.name]) for field in kind.fields)
    if isinstance(kind, Array):
        return [_pythonic(kind.element, inner) for inner in value]
    if isinstance(kind, Map):
        return {_hashable(_pythonic(kind.key, k)): _pythonic(kind.value, v) for k, v in value}
    return value


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _flat_keys(kind: SparkType) -> bool:
    """Return whether a Python dict can hold the keys of all maps, in order."""
    if isinstance(kind, Map):
        return (
            isinstance(kind.key, Atom)
            and kind.key.name in ("long", "string", "boolean")
            and _flat_keys(kind.value)
        )
    if isinstance(kind, Array):
        return _flat_keys(kind.element)
    return not isinstance(kind, Struct) or all(_flat_keys(field.type) for field in kind.fields)


def _one_of_each_key(kind: SparkType, value: Any) -> Any:
    """Return the value with only the last of equal keys of each map, like a dict."""
    if value is None:
        return None
    if isinstance(kind, Struct):
        return {
            field.name: _one_of_each_key(field.type, value[field.name]) for field in kind.fields
        }
    if isinstance(kind, Array):
        return [_one_of_each_key(kind.element, inner) for inner in value]
    if isinstance(kind, Map):
        return list({k: _one_of_each_key(kind.value, v) for k, v in value}.items())
    return value


def _as_spark_orders(kind: SparkType, value: Any, seen: Any) -> Any:
    """Return the value with map entries in the order of Spark's row, which is that of a hash map.

    Args:
        seen: Spark's row, decoded. `DataFrame.collect` may turn the entries round once more.
    """
    if value is None:
        return None
    if isinstance(kind, Struct):
        return {f.name: _as_spark_orders(f.type, value[f.name], seen[f.name]) for f in kind.fields}
    if isinstance(kind, Array):
        return [
            _as_spark_orders(kind.element, inner, known)
            for inner, known in zip(value, seen, strict=True)
        ]
    if isinstance(kind, Map):
        given = dict(value)
        return [(key, _as_spark_orders(kind.value, given[key], known)) for key, known in seen]
    return value


# When Spark encodes with Avro, it changes the order of a map's entries.
_MAPS = Struct(
    (
        Field("m", Map(Atom("string"), Decimal(20, 2))),
        Field("n", Map(Atom("string"), Array(Atom("date")))),
    )
)
_NAMES = ("v3", "Aa", "BB", "ü€", "v1", "\U0001f600", "v0", "", "v2")
_ENTRIES = [
    {
        "m": [(name, Number(n)) for n, name in enumerate(_NAMES[:count])],
        "n": [(name, None) for name in _NAMES[count:]],
    }
    for count in (2, 4, 9)
]
# `DataFrame.collect` gives these in another order than Spark's row has.
_TURNED_ROUND = [
    {"m": [("\u00fc\u00e2\u0085", None), ("\U00096eec", None), ("\u00f4 ", None)], "n": []}
]


def _some(examples: int) -> settings:
    return settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )


_of_tables = given(
    st.lists(
        tables(atoms=_ATOMS, most=6).filter(
            lambda example: bool(example[1]) and _flat_keys(example[0])
        ),
        min_size=1,
        max_size=1,
    )
)
_Examples = list[tuple[Struct, list[dict[str, Any]]]]


@_some(5)
@_of_tables
@example([(_MAPS, _ENTRIES)])
@example([(_MAPS, _TURNED_ROUND)])
def test_rows_are_those_that_spark_makes(spark: SparkSession, examples: _Examples) -> None:
    _are_those_that_spark_makes(spark, examples)


@pytest.mark.deep
@_some(12)
@_of_tables
def test_more_rows_are_those_that_spark_makes(spark: SparkSession, examples: _Examples) -> None:
    _are_those_that_spark_makes(spark, examples)


def _are_those_that_spark_makes(spark: SparkSession, examples: _Examples) -> None:
    for schema, rows in examples:
        rows = [_one_of_each_key(schema, row) for row in rows]
        frame = spark.createDataFrame(
            [_pythonic(schema, row) for row in rows], StructType.fromJson(_json(schema))
        )
        found = list(frame._jdf.queryExecution().executedPlan().executeCollect())
        made = [bytes(row.getBytes()) for row in found]
        ordered = [
            _as_spark_orders(schema, row, seen)
            for row, seen in zip(
                rows, decode_rows(binary_array(made), schema).to_pylist(), strict=True
            )
        ]
        array = arrow(schema, ordered)
        _hashes_are_those_of_spark(frame, schema, array)
        encoded = encode_rows(array, schema)
        assert sorted(encoded.to_pylist()) == sorted(made), schema
        assert decode_rows(encoded, schema).equals(array)
        _avro_is_that_of_spark(frame, found, schema, array)


def _hashes_are_those_of_spark(frame: DataFrame, schema: Struct, array: Any) -> None:
    try:
        hashes = hash_rows(array, schema)
    except UnsupportedError:
        return  # Millpond hashes no array and no map
    made = [row[0] for row in frame.select(F.hash(*schema.names)).collect()]
    assert sorted(hashes.tolist()) == sorted(made), schema


def _avro_is_that_of_spark(frame: DataFrame, rows: list[Any], schema: Struct, array: Any) -> None:
    try:
        encoded = avro_rows(array, schema)
    except (InvalidInputError, UnsupportedError):
        return  # an interval, a map with keys that are no text, a null in an array
    jvm: Any = frame.sparkSession._jvm
    state, avro = jvm.org.apache.spark.sql.execution.streaming.state, jvm.org.apache.spark.sql.avro
    # With its own schema the encoder would also decode. It refuses that for more schemas.
    plain = jvm.org.apache.spark.sql.types.StructType().add("x", "long")
    encoder = state.AvroStateEncoder(
        state.NoPrefixKeyStateEncoderSpec(plain), plain, jvm.scala.Option.empty(), "x"
    )
    kind = frame._jdf.schema()
    written = avro.SchemaConverters.toAvroTypeWithDefaults(kind)
    serializer = avro.AvroSerializer(kind, written, False)
    out = jvm.java.io.ByteArrayOutputStream()
    made = [bytes(encoder.encodeUnsafeRowToAvro(row, serializer, written, out)) for row in rows]
    assert sorted(encoded) == sorted(made), schema


@pytest.mark.parametrize("name", quick_first(["join-left-v4", "join-left", "join-full-v3"]))
def test_a_join_shows_its_own_columns(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The user asks without arguments, is told how to choose, and finds `lk` where it is."""
    case = named(name)
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for batch in batches[:2]:
            source.add(batch)
    run = Run(tmp_path / "run")
    conf = {_PROVIDER: MILLPOND, _FORMAT: str(case.checkpoint_format), **case.conf}
    frame = case.build([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    assert main(["state", "read", str(run.checkpoint)]) == 2
    told = capsys.readouterr().err
    assert "Choose by --operator 0 --store" in told and "millpond state list" in told
    assert main(["state", "list", str(run.checkpoint)]) == 0
    text = capsys.readouterr().out
    assert "field0" not in text and "lk string" in text and "rk string" in text
    commands = [line.split()[2:] for line in text.splitlines() if "millpond state read" in line]
    read = 0
    for command in commands:
        assert main([*command, "--format", "json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        column = "lk" if "left-" in " ".join(command) else "rk"
        assert all(column in row["key"] for row in rows)
        if rows and column == "lk":
            wanted = next(row["key"]["lk"] for row in rows if row["key"]["lk"] is not None)
            assert main([*command, "--format", "json", "--key", f"lk={wanted}"]) == 0
            found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert found == [row for row in rows if row["key"]["lk"] == wanted]
            read += 1
    assert read > 0
