"""The generated month has the properties that other tests rely on."""

from datetime import timedelta

import pytest
from django.db import transaction

from delivery.maintenance import counters
from tests.pipeline import month

pytestmark = pytest.mark.django_db


def test_its_books_are_true_and_it_holds_every_kind_of_end() -> None:
    made = month.make(messages=800)

    assert counters.gap() == 0
    assert {row.state for row in made.deliveries} == {"queued", "delivered", "dead"}
    outcomes = {row.outcome for row in made.deliveries if row.state == "dead"}
    assert outcomes == {"unavailable", "server_error"}
    assert {row.outcome for row in made.attempts} > {"timeout", "client_error"}


def test_it_is_the_same_on_each_day() -> None:
    shapes = []
    for days in range(3):
        with transaction.atomic():
            made = month.make(messages=100, until=month.noon() - timedelta(days=days))
            shapes.append(
                [
                    (row.started_at - made.until, row.number, row.outcome, row.total_ms)
                    for row in made.attempts
                ]
            )
            transaction.set_rollback(True)

    assert len(shapes[0]) > 200
    assert shapes[0] == shapes[1] == shapes[2]
