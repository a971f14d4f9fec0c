"""Shapes: what executors do with dead letters: the signature of each, from its last answer.

As broker/worker.py: imports neither Spark nor Django.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.rules import signature

ADDED = ("signature", "shape")
READ = ("error", "excerpt")
"""What is not needed any more when the shape is known."""


def sign(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with signature and shape in place of what was answered."""
    for batch in batches:
        rows = batch.select(["outcome", "status_code", "host", *READ]).to_pylist()
        shapes = [signature.shape(signature.answer(row["error"], row["excerpt"])) for row in rows]
        signatures = [
            signature.signature(row["outcome"], row["status_code"], row["host"] or "", shape)
            for row, shape in zip(rows, shapes, strict=True)
        ]
        signed = batch.drop_columns(list(READ))
        for name, values in zip(ADDED, (signatures, shapes), strict=True):
            signed = signed.append_column(name, pa.array(values, pa.string()))
        yield signed
