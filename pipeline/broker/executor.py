"""Read rows from the database as Arrow and write files, on Spark's executors.

Imports neither Spark nor Django, and nothing of the broker: executors have only this package and
the packages that it names. The database's address is passed as the name of an environment variable,
never as an option that Spark would show.
"""

from collections.abc import Iterator

import connectorx as cx
import pyarrow as pa

from pipeline import settings
from pipeline.broker import database

BATCH_ROWS = 20_000


def read(sql: str, schema: pa.Schema, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query, each batch cast to ``schema``.

    ``sql`` may contain only the program's own numbers and instants: the driver has no parameters.
    """
    address = database.parse(settings.get(settings.READ_URL))
    reader = cx.read_sql(
        address.dialect.reader_url(address),
        sql,
        return_type="arrow_stream",
        batch_size=batch_rows,
    )
    for batch in reader:
        yield cast(batch, schema)


def cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast rows to the declared types, since each database returns other types for a column."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if column.type == pa.null() or column.type.equals(field.type):
            columns.append(column.cast(field.type))
        else:
            columns.append(_as(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(wanted) and not pa.types.is_timestamp(column.type):
        # Days or text: cast them to an instant without a zone first, which the broker means as UTC.
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_string(wanted) and pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(wanted)
