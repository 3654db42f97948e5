"""Gives values other columns, in the schema file of Spark that an image holds (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millpond.errors import UnsupportedError
from millpond.query.expected import schema_keys
from millpond.query.image import Image, operator_info
from millpond.query.schemas import newest_families
from millpond.spark.column_changes import ChangedColumns, ColumnChanges, changed_columns
from millpond.spark.state_schemas import FamilySchema, with_value_schema
from millpond.state.selection import Selection, family_schemas

_JOIN, _MATCHED = "symmetricHashJoin", "matched"


@dataclass(frozen=True, slots=True)
class NewColumns:
    """What the values of a column family become."""

    schema: FamilySchema
    changed: ChangedColumns


def with_columns(
    image: Image, chosen: Selection, changes: ColumnChanges
) -> tuple[Image, NewColumns]:
    """Return the image with the changed schema file, and the changed column family.

    Raises: InvalidInputError: INVALID_ARGUMENT. UnsupportedError: several schemas are in use.
    """
    operator = chosen.operator.operator
    info = operator_info(image, operator)
    key = schema_keys(operator, info, chosen.store)[-1]
    prefix_columns, text = info.prefix_columns.get(chosen.store, 0), image.texts[key]
    texts = {
        family.name: family.value
        for family in newest_families(image.texts, operator, info, chosen.store)
    }
    if len(chosen.schema.values) > 1:
        raise UnsupportedError(
            f"values of {chosen.family!r} are of {len(chosen.schema.values)} schemas",
            hint="Let the job change its columns itself: Spark does so for state in Avro.",
        )
    changed = changed_columns(
        texts[chosen.family],
        changes,
        key=chosen.schema.key.names,
        last=own_last_column(chosen.operator.name),
    )
    anew = with_value_schema(
        text, chosen.family, changed.schema, prefix_columns=prefix_columns, name=key
    )
    image = replace(image, texts={**image.texts, key: anew})
    schemas = family_schemas(image, operator, info, chosen.store)
    (schema,) = (schema for schema in schemas if schema.name == chosen.family)
    return image, NewColumns(schema, changed)


def own_last_column(operator: str) -> str:
    """Return the column that Spark puts behind the user's in the values of an operator; "" if it
    puts none there.
    """
    return _MATCHED if operator == _JOIN else ""
