"""The database cache returns stored values and never runs code from a stored row."""

import base64
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.utils import timezone

from tests.support.hostile import Bomb

pytestmark = [pytest.mark.django_db, pytest.mark.mysql]


@pytest.fixture(autouse=True)
def _empty() -> None:
    cache.clear()


def change(column: str, value: str | None) -> None:
    """Set a column in every row."""
    table = connection.ops.quote_name(settings.TRIES_TABLE)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s", [value])  # noqa: S608 (names of ours)


def test_values_are_kept_and_counted() -> None:
    cache.set("tries", [1.5, "a", {"b": None}])
    assert cache.add("count", 1)
    assert not cache.add("count", 5)
    cache.incr("count")

    assert cache.get_many(["tries", "count", "none"]) == {
        "tries": [1.5, "a", {"b": None}],
        "count": 2,
    }
    assert cache.get_many([]) == {}


def test_expired_values_are_absent() -> None:
    cache.set("tries", 1)
    change("expires", connection.ops.adapt_datetimefield_value(timezone.now() - timedelta(hours=1)))

    assert cache.get("tries") is None


@pytest.mark.trap("code in a row of the task tables")
def test_a_row_that_would_run_code_is_absent(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    cache.set("tries", 1)
    change("value", base64.b64encode(pickle.dumps(Bomb(witness))).decode())

    assert cache.get("tries", "absent") == "absent"
    assert not witness.exists()
    cache.set("tries", 2)
    assert cache.get("tries") == 2


@pytest.mark.parametrize("stored", ["", "?", "AAAA"])
def test_an_unreadable_row_is_absent(stored: str) -> None:
    cache.set("tries", 1)
    change("value", stored)

    assert cache.get("tries") is None
