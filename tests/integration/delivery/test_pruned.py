"""Retention marks of several channels are written in a few statements."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delivery.models import RetentionMark

pytestmark = pytest.mark.django_db


def marks() -> dict[int, int]:
    return dict(RetentionMark.objects.values_list("channel_id", "message_id"))


def test_retention_marks_only_increase() -> None:
    RetentionMark.note(1, 10)
    RetentionMark.note(2, 20)
    RetentionMark.note(9, 90)

    RetentionMark.note_each({1: 15, 2: 12, 3: 30})
    assert marks() == {1: 15, 2: 20, 3: 30, 9: 90}

    with CaptureQueriesContext(
        connection,
    ) as asked:
        RetentionMark.note_each({1: 16, 2: 21, 3: 31})
    assert marks() == {1: 16, 2: 21, 3: 31, 9: 90}
    # Independent of the number of channels: one SELECT, one UPDATE, and the savepoint.
    assert len(asked) <= 4
