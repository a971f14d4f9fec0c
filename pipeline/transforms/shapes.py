"""Compute on executors the signature of each dead letter from its last response.

Like broker/executor.py it imports neither Spark nor Django.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from pipeline import settings
from pipeline.core import encryption, triage
from pipeline.core.encryption import DecryptionKeys

ADDED = ("signature", "shape")
READ = ("number", "error", "excerpt")
"""Columns that are dropped once the shape is known."""
HIDDEN = "Sealed at rest: the page of the sample shows it."
"""Shown instead of an encrypted response's shape."""


def sign(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows with signature and shape instead of the response."""
    keys = DecryptionKeys(settings.keys())
    for batch in batches:
        rows = batch.select(["id", "outcome", "status_code", "host", *READ]).to_pylist()
        found = [_signed(row, keys) for row in rows]
        signed = batch.drop_columns(list(READ))
        for place, name in enumerate(ADDED):
            values = pa.array([values[place] for values in found], pa.string())
            signed = signed.append_column(name, values)
        yield signed


def _signed(row: dict[str, Any], keys: DecryptionKeys) -> tuple[str, str]:
    """Return signature and shape. Encrypted responses get a keyed signature and no shape."""
    error, excerpt = row["error"] or "", bytes(row["excerpt"] or b"")
    kind = row["outcome"], row["status_code"], row["host"] or ""
    if not excerpt.startswith(encryption.ENCRYPTED):
        excerpt = excerpt.removeprefix(encryption.PLAIN)
        shape = triage.shape(triage.response_text(error, excerpt))
        return triage.signature(*kind, shape), shape
    answer = keys.decrypt_response(row["id"], row["number"], error, excerpt)
    shape = triage.shape(triage.response_text(*answer)) if answer else HIDDEN
    return triage.signature(*kind, shape, keys.mac_key), HIDDEN
