"""Read columns with connectorx and run statements in DuckDB: `python -m bench.pipeline.duck`.

It is a process of its own, to measure its memory; its argument is a file with a JSON object.
"""

import json
import os
import sys
from pathlib import Path

import connectorx
import duckdb

PARTS = 2
"""Connections that read a table at once."""


def main() -> None:
    """Process ``{"columns": {table: columns}, "statements": [...]}``."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    url = os.environ["DATABASE_URL"]
    with duckdb.connect() as duck:
        for table, columns in asked["columns"].items():
            names, _, condition = columns.partition(" WHERE ")
            named = names if names == "*" or names.startswith("id") else f"id, {names}"
            source = f"{table} WHERE {condition}" if condition else table
            rows = connectorx.read_sql(
                url,
                f"SELECT {named} FROM {source}",
                partition_on="id",
                partition_num=PARTS,
                return_type="arrow",
            )
            duck.register(f"{table}_rows", rows)
            duck.execute(f"CREATE VIEW {table} AS SELECT * FROM {table}_rows")
        for statement in asked["statements"]:
            duck.execute(statement).fetchall()


if __name__ == "__main__":
    main()
