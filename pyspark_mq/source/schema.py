"""The source's columns as a Spark schema, and the projection that a user's `.schema(...)` asks for.

Types come from `store.COLUMNS`; nothing is written down twice.
"""

from __future__ import annotations

from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pyspark_mq.errors import SchemaError
from store import COLUMNS, DEFAULT_COLUMNS

PROPERTIES = "properties"
_MAY_BE_NULL = ("brokerName", "tags", "keys", "bornTimestamp", "storeTimestamp")


def default_schema(include_properties: bool) -> StructType:
    """The columns of a query without `.schema(...)`."""
    names = (*DEFAULT_COLUMNS, PROPERTIES) if include_properties else DEFAULT_COLUMNS
    return StructType([_field(name) for name in names])


def projection(schema: StructType, *, null_bodies: bool = False) -> tuple[tuple[str, ...], pa.Schema]:
    """The columns to read for `schema`, in its order, and the Arrow schema Spark expects of each batch.

    null_bodies: whether bodies may be null. Any subset of `store.COLUMNS` in any order. Raises `SchemaError`
    for another column or type.
    """
    names = tuple(schema.fieldNames())
    if not names:
        raise SchemaError(f"The schema names no column; available are {', '.join(COLUMNS)}")
    for field in schema.fields:
        _check(field, may_be_null=field.name in _MAY_BE_NULL or (null_bodies and field.name == "body"))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaError(f"The schema names a column twice: {', '.join(repeated)}")
    return names, to_arrow_schema(schema, timezone="UTC")


def _check(field: StructField, *, may_be_null: bool) -> None:
    if field.name not in COLUMNS:
        near = get_close_matches(field.name, COLUMNS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"available are {', '.join(COLUMNS)}"
        raise SchemaError(f"There is no column {field.name!r}: {hint}")
    expected = _field(field.name).dataType
    if field.dataType != expected:
        raise SchemaError(
            f"Column {field.name} is {expected.simpleString()}, "
            f"the schema says {field.dataType.simpleString()}; read it as it is and cast it in the query"
        )
    if may_be_null and not field.nullable:
        raise SchemaError(f"Column {field.name} may be null, the schema says NOT NULL")


def _field(name: str) -> StructField:
    return StructField(name, from_arrow_type(COLUMNS[name]), nullable=True)
