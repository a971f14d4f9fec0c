"""The console's page of ordering keys: found by consumer, paused, resumed and skipped."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer
from delivery.admin import ordering_key
from delivery.models import Attempt, Delivery, OrderingKey
from delivery.queue import fanout
from tests.support import console
from tests.support.factories import ConsumerFactory
from tests.support.ordering import check, end, key_number_of, say, take

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def consumer() -> Consumer:
    made = ConsumerFactory.create(ordering=True, head_of_line="block")
    say(made, "A1 A2 A3 B1")
    fanout.fan_out(100, slot=0)
    return made


def press(operator: Client, key_row: OrderingKey, button: str) -> None:
    """Open the dialog of a button and confirm it."""
    url = reverse(f"admin:delivery_orderingkey_{button}", args=[key_row.pk])
    hidden = re.findall(r'name="head" value="(\d+)"', operator.get(url).content.decode())
    typed = {"_form_submitted": "True", "reason": "a test", "head": "".join(hidden)}
    assert operator.post(url, typed).status_code == 200


def test_keys_are_found_by_their_consumer(operator: Client, consumer: Consumer) -> None:
    name = f"{consumer.channel.slug}/{consumer.client_id}"
    page = console.list_url(OrderingKey)
    lane_a, lane_b = key_number_of(consumer, "A"), key_number_of(consumer, "B")
    text = console.look(operator, f"{page}?q={name}")
    assert all(console.page_url(key_row) in text for key_row in (lane_a, lane_b))
    text = console.look(operator, f"{page}?q={name}/B")
    assert console.page_url(lane_b) in text
    assert console.page_url(lane_a) not in text
    assert console.page_url(lane_a) not in console.look(operator, f"{page}?q=nobody")


@pytest.mark.seed("S2-64")
def test_the_page_shows_the_throughput_of_a_key(operator: Client, consumer: Consumer) -> None:
    page = console.page_url(key_number_of(consumer, "A"))
    assert "1 / response time" in console.look(operator, page)
    now = clock.now()
    end(take(consumer, now), "delivered", now + timedelta(milliseconds=250))
    Attempt.objects.update(started_at=now)
    assert "about 4 per second" in console.look(operator, page)


def test_a_key_is_paused_resumed_and_skipped(operator: Client, consumer: Consumer) -> None:
    key_row = key_number_of(consumer, "A")
    assert "resume" not in _buttons(operator, key_row)
    press(operator, key_row, "pause")
    assert key_number_of(consumer, "A").paused_at
    assert "until it is resumed" in console.look(
        operator, console.page_url(key_number_of(consumer, "A"))
    )
    assert "pause" not in _buttons(operator, key_row)
    press(operator, key_row, "resume")
    assert key_number_of(consumer, "A").paused_at is None
    now = clock.now()
    end([row for row in take(consumer, now) if row.ordering_key == "A"], "dead", now)
    assert "blocked" in console.look(operator, console.page_url(key_row))
    assert "The head is dead and blocks" in console.look(operator, console.page_url(key_row))
    press(operator, key_row, "skip")
    assert key_number_of(consumer, "A").waiting_count == 1
    actions = AuditEntry.objects.order_by("id").values_list("action", "reason")
    assert list(actions) == [(f"ordering_key.{it}", "a test") for it in ("pause", "resume", "skip")]
    check()


def test_only_the_displayed_head_is_skipped(operator: Client, consumer: Consumer) -> None:
    key_row = key_number_of(consumer, "A")
    url = reverse("admin:delivery_orderingkey_skip", args=[key_row.pk])
    assert f'value="{key_row.head_id}"' in operator.get(url).content.decode()
    press(operator, key_row, "skip")  # another operator is faster
    operator.post(url, {"_form_submitted": "True", "reason": "", "head": str(key_row.head_id)})
    assert Delivery.objects.filter(state="cancelled").count() == 1
    assert key_number_of(consumer, "A").waiting_count == 1


def test_a_keys_page_lists_what_waits_behind_its_head(
    operator: Client, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering_key, "WAITING_SHOWN", 1)
    head, second, third = Delivery.objects.filter(
        message__ordering_key="A", consumer=consumer
    ).order_by("id")
    page = console.page_url(key_number_of(consumer, "A"))

    first = behind(console.look(operator, page))
    assert str(second) in first
    assert str(head) not in first
    assert str(third) not in first
    (later,) = re.findall(r'href="(\?after=\d+)#waiting"', first)
    rest = behind(console.look(operator, page + later))
    assert str(third) in rest
    assert str(second) not in rest
    assert "Show later" not in rest
    console.look(operator, f"{page}?after={10**30}")

    found = operator.get(console.list_url(OrderingKey, f"?q={third}")).context["cl"]
    assert list(found.result_list) == [key_number_of(consumer, "A")]
    found = operator.get(console.list_url(OrderingKey, f"?q={head}")).context["cl"]
    assert list(found.result_list) == []


def test_what_waits_is_shown_to_users_who_may_view_it(consumer: Consumer) -> None:
    client = console.staff("view_orderingkey")

    assert behind(console.look(client, console.page_url(key_number_of(consumer, "A")))) == ""


def behind(page: str) -> str:
    """Return the section of a key's page with the deliveries behind the head."""
    return page.partition('id="waiting"')[2].partition("</section>")[0]


def test_a_waiting_delivery_links_to_the_head(operator: Client, consumer: Consumer) -> None:
    behind = Delivery.objects.order_by("message_id")[1]
    text = console.look(operator, console.page_url(behind))
    assert "It waits for an earlier delivery of its ordering key." in text
    assert "9000" not in text
    assert console.page_url(key_number_of(consumer, "A")) in text


def test_a_consumers_page_links_to_its_keys(operator: Client, consumer: Consumer) -> None:
    text = console.look(operator, console.page_url(consumer))
    assert all(console.page_url(key_number_of(consumer, key)) in text for key in "AB")
    name = f"{consumer.channel.slug}%2F{consumer.client_id}"
    assert f"{console.list_url(OrderingKey)}?q={name}" in text
    OrderingKey.objects.all().delete()
    assert "No key is open." in console.look(operator, console.page_url(consumer))
    assert "No key is open" in console.look(operator, console.list_url(OrderingKey))
    Consumer.objects.update(ordering=False)
    assert 'id="keys"' not in console.look(operator, console.page_url(consumer))


def _buttons(client: Client, key_row: OrderingKey) -> set[str]:
    text = console.look(client, console.page_url(key_row))
    names = ("pause", "resume", "skip")
    return {
        it for it in names if reverse(f"admin:delivery_orderingkey_{it}", args=[key_row.pk]) in text
    }
