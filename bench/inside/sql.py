"""Provide SQL that differs between databases, for creating rows from numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Field, Model

from channels_app.core import ids

TIME_SHIFT = 22
SLOT_SHIFT = 12
"""Bit positions of the instant and of the slot in a key (channels_app/core/ids.py)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL templates of one database."""

    numbers: str
    """The integers from {first} to {last} as column n of a derived table."""
    instant: str
    """{ms}, Unix milliseconds, as a column stores an instant."""


DIALECTS = {
    "mysql": Dialect(
        numbers="(SELECT seq AS n FROM seq_{first}_to_{last}) AS numbers",
        instant="TIMESTAMPADD(MICROSECOND, ({ms}) * 1000, TIMESTAMP'1970-01-01 00:00:00')",
    ),
    "sqlite": Dialect(
        numbers="(WITH RECURSIVE numbers(n) AS (VALUES({first}) UNION ALL SELECT n + 1"
        " FROM numbers WHERE n < {last}) SELECT n FROM numbers) AS numbers",
        instant="strftime('%%Y-%%m-%%d %%H:%%M:%%f000', ({ms}) / 1000.0, 'unixepoch')",
    ),
}


def numbers(first: int, last: int) -> str:
    """Return a derived table with ``n``. MariaDB's is its sequence engine, which MySQL lacks."""
    return _dialect().numbers.format(first=first, last=last)


def instant(ms: str) -> str:
    """Return the instant of an expression in Unix milliseconds."""
    return _dialect().instant.format(ms=ms)


def key(ms: str, slot: int) -> str:
    """Return the first time-ordered key of a slot, for an expression in Unix milliseconds."""
    return f"((({ms}) - {ids.EPOCH_MS}) << {TIME_SHIFT}) + {slot << SLOT_SHIFT}"


def binary(data: bytes) -> str:
    """Return bytes as a literal."""
    return f"x'{data.hex()}'"


def insert(model: type[Model], given: Mapping[str, str | None], source: str) -> int:
    """Insert a row for each row of ``source``; returns their number.

    ``given`` has expressions by column (None is NULL); other columns get the model's default.
    """
    fields: dict[str, Field[Any, Any]] = {
        str(field.column): field for field in model._meta.concrete_fields
    }
    if strange := given.keys() - fields.keys():
        raise ValueError(f"{model.__name__} has no columns {sorted(strange)}.")
    expressions, values = [], []
    for column, field in fields.items():
        if column in given:
            expressions.append(given[column] or "NULL")
        else:
            expressions.append("%s")
            values.append(field.get_db_prep_save(field.get_default(), connection))
    columns = ", ".join(map(connection.ops.quote_name, fields))
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        # Only table names and expressions from this package.
        cursor.execute(
            f"INSERT INTO {table} ({columns}) SELECT {', '.join(expressions)} FROM {source}",  # noqa: S608
            values,
        )
        return int(cursor.rowcount)


def _dialect() -> Dialect:
    return DIALECTS[connection.vendor]
