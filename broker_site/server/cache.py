"""Adapt Django's database cache so that cached values cannot execute code.

Django unpickles rows of the cache table, so anybody who can write a row there could run code in a
web process. Here a value that refers to any class or function counts as missing.
"""

import base64
import io
import logging
import pickle
from collections.abc import Iterable
from typing import Any

from django.core.cache.backends.db import DatabaseCache
from django.db import connections, router
from django.utils import timezone

logger = logging.getLogger(__name__)


class _ValuesOnly(pickle.Unpickler):
    """Loads numbers, strings, lists and dicts, which is all that attempt counts need."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


class ValuesCache(DatabaseCache):
    """The ``BACKEND`` of settings.CACHES; an unreadable row does not raise."""

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """The values that exist and have not expired. A sweep deletes expired ones."""
        asked = {self.make_and_validate_key(key, version=version): key for key in keys}
        values = {}
        for key, stored in self._rows(list(asked)):
            try:
                values[asked[key]] = _ValuesOnly(io.BytesIO(base64.b64decode(stored))).load()
            except Exception as error:  # an unpickler may raise anything for data that is no pickle
                logger.error("a row of the cache was refused: %.100s", error)
        return values

    def _rows(self, keys: list[str]) -> list[tuple[str, str]]:
        if not keys:
            return []
        connection = connections[router.db_for_read(self.cache_model_class)]
        table, key, value, expires = map(
            connection.ops.quote_name,
            (self.cache_model_class._meta.db_table, "cache_key", "value", "expires"),
        )
        places = ", ".join(["%s"] * len(keys))
        sql = f"SELECT {key}, {value} FROM {table} WHERE {key} IN ({places}) AND {expires} >= %s"  # noqa: S608 (names of ours)
        now = connection.ops.adapt_datetimefield_value(timezone.now())
        with connection.cursor() as cursor:
            cursor.execute(sql, [*keys, now])
            return list(cursor.fetchall())
