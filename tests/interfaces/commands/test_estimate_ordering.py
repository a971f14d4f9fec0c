"""``manage.py estimate_ordering``: with given figures, and with those of a consumer."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from channels_app.database import clock
from channels_app.models import Consumer
from delivery.models import Attempt, Traffic
from delivery.models.traffic import HOUR_S
from delivery.queue import fanout
from tests.support.factories import ConsumerFactory
from tests.support.ordering import end, say, take

pytestmark = pytest.mark.django_db


def told(*arguments: str) -> dict[str, list[str]]:
    """Return the words of each output line, by their first word."""
    out = StringIO()
    call_command("estimate_ordering", *arguments, stdout=out)
    return {line.split()[0]: line.split() for line in out.getvalue().splitlines() if line}


@pytest.mark.seed("S3-41")
def test_the_rooms_of_the_requirement() -> None:
    found = told("--rooms", "25000", "--latency-ms", "100", "--rate", "25000")
    assert found["ordered"][2:4] == ["640", "9.09"], "so many requests are open by default"
    assert found["This"][-1] == "2,500."
    found = told("--rooms", "25000", "--latency-ms", "100", "--max-in-flight", "2500")
    assert found["no"][2] == found["ordered"][2] == "25,000"
    assert found["one"][3] == "9"
    assert "This" not in found


@pytest.mark.django_db(transaction=True)
def test_a_consumer_brings_its_own_figures() -> None:
    consumer: Consumer = ConsumerFactory.create(ordering=True, max_in_flight=8)
    name = f"{consumer.channel.slug}/{consumer.client_id}"
    with pytest.raises(CommandError, match="Give --keys"):
        told("--consumer", name)
    say(consumer, "A1 A2 B1 B2")
    fanout.fan_out(100, slot=0)
    now = clock.now()
    end(take(consumer, now), "delivered", now + timedelta(milliseconds=250))
    Attempt.objects.update(started_at=now)
    hour = now.replace(minute=0, second=0, microsecond=0)
    Traffic.objects.create(consumer_id=consumer.id, span_s=HOUR_S, begins_at=hour, delivered=7200)
    found = told("--consumer", name, "--between-ms", "0")
    assert found["2"][:4] == ["2", "keys,", "250", "ms"]
    assert found["no"][2] == "32"
    assert found["ordered"][2:] == ["8", "4", "250", "ms", "25%", "41.7", "ms"]
    assert told("--consumer", name, "--keys", "5")["5"][1] == "keys,"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--keys", "5"], "Give --latency-ms"),
        (["--keys", "-5", "--latency-ms", "5"], "must not be negative"),
        (["--keys", "5", "--latency-ms", "5", "--lost", "101"], "percentage"),
        (["--consumer", "rooms/nobody"], "There is no consumer rooms/nobody"),
    ],
)
def test_invalid_figures_are_refused(arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        told(*arguments)
