"""Retention marks of several channels are written in a few statements."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delivery.models import Pruned

pytestmark = pytest.mark.django_db


def marks() -> dict[int, int]:
    return dict(Pruned.objects.values_list("channel_id", "message_id"))


def test_retention_marks_only_increase() -> None:
    Pruned.note(1, 10)
    Pruned.note(2, 20)
    Pruned.note(9, 90)

    Pruned.note_each({1: 15, 2: 12, 3: 30})
    assert marks() == {1: 15, 2: 20, 3: 30, 9: 90}

    with CaptureQueriesContext(
        connection,
    ) as asked:
        Pruned.note_each({1: 16, 2: 21, 3: 31})
    assert marks() == {1: 16, 2: 21, 3: 31, 9: 90}
    # Independent of the number of channels: one SELECT, one UPDATE, and the savepoint.
    assert len(asked) <= 4
