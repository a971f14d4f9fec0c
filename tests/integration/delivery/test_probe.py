"""Probe: one signed sample over a real connection, and the consumer's unmodified response."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from standardwebhooks import Webhook

from channels_app.core.errors import Conflict, RateLimited
from channels_app.database import clock
from channels_app.models import Consumer, ConsumerSecret
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery
from delivery.transport import test_delivery
from tests.support.factories import ConsumerFactory, EventTypeFactory, secret_of
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db


def view_of(consumer: Consumer) -> ConsumerConfig:
    return config_cache.consumers()[consumer.id]


def test_a_test_sample_is_signed_marked_and_not_stored(receiver: Receiver) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/hook"))
    receiver.script("/hook", [Reply(202, b"thanks")])

    found = test_delivery.probe(view_of(consumer), team_id=None)

    (request,) = receiver.wait_for(1)
    assert request.method == "POST"
    assert request.header("hookstation-test") == "true"
    assert request.header("content-type") == "application/json"
    assert request.header("webhook-id") == found.webhook_id
    assert found.webhook_id.startswith("msg_test_")
    assert "." not in found.webhook_id
    Webhook(secret_of(consumer)).verify(request.body, dict(request.headers))
    assert request.body == found.body
    assert (found.answer.outcome, found.answer.status) == (Outcome.DELIVERED, 202)
    assert found.answer.excerpt == b"thanks"
    assert not Delivery.objects.exists()
    assert not Attempt.objects.exists()


@pytest.mark.parametrize(
    ("path", "timeout_ms", "outcome", "status"),
    [
        ("/redirect", None, Outcome.REDIRECT, 302),
        ("/hang", 500, Outcome.TIMEOUT, None),
    ],
)
def test_a_failing_response_to_a_test_is_shown_unchanged(
    receiver: Receiver, path: str, timeout_ms: int | None, outcome: Outcome, status: int | None
) -> None:
    consumer = ConsumerFactory.create(url=receiver.url(path), timeout_ms=timeout_ms)

    answer = test_delivery.probe(view_of(consumer), team_id=None).answer

    assert (answer.outcome, answer.status) == (outcome, status)
    assert answer.error


def test_a_test_does_not_call_forbidden_addresses() -> None:
    consumer = ConsumerFactory.create(url="http://10.0.0.1/hook")

    assert (
        test_delivery.probe(view_of(consumer), team_id=None).answer.outcome
        is Outcome.BLOCKED_ADDRESS
    )


def test_a_paused_consumer_is_tested_too(receiver: Receiver) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/hook"), paused=True)

    assert test_delivery.probe(view_of(consumer), team_id=None).answer.outcome is Outcome.DELIVERED


def test_a_pull_consumer_and_one_with_unreadable_secrets_cannot_be_tested() -> None:
    with pytest.raises(Conflict, match="pull consumer"):
        test_delivery.probe(view_of(ConsumerFactory.create(pull=True)), team_id=None)
    broken = ConsumerFactory.create()
    ConsumerSecret.objects.filter(consumer=broken).update(sealed=b"\x01nonsense")
    with pytest.raises(Conflict, match="secrets"):
        test_delivery.probe(view_of(broken), team_id=None)


@pytest.mark.parametrize(
    ("wants", "event_type", "body"),
    [
        (["order.*"], "order.paid", {"order": 7}),
        ([], "order.paid", {"order": 7}),
        (["user.*"], "user.old", {"user": 1}),
        (["order.created"], "order.created", None),
        (["invoice.*"], "", None),
    ],
)
def test_the_sample_is_an_example_of_a_matching_event_type(
    wants: list[str], event_type: str, body: dict[str, Any] | None
) -> None:
    consumer = ConsumerFactory.create(event_types=wants)
    EventTypeFactory.create(channel=consumer.channel, name="order.created")
    EventTypeFactory.create(channel=consumer.channel, name="order.paid", example={"order": 7})
    EventTypeFactory.create(
        channel=consumer.channel, name="user.old", example={"user": 1}, deprecated=True
    )
    EventTypeFactory.create(name="elsewhere.a", example={"no": "no"})

    name, text = test_delivery.sample(view_of(consumer), clock.now())

    assert name == event_type
    assert json.loads(text) == body or json.loads(text)["type"] == (event_type or "test")


@contextmanager
def hanging(receiver: Receiver, teams: list[int | None]) -> Iterator[list[test_delivery.Probed]]:
    """Run concurrent probes of these teams, which get their responses at the end."""
    is_over = threading.Event()
    receiver.script("/held", [Reply(until=is_over)])
    view = view_of(ConsumerFactory.create(url=receiver.url("/held")))
    channel = config_cache.channel(view.channel_slug)
    assert channel is not None
    done = list[test_delivery.Probed]()

    def knock(team_id: int | None) -> Callable[[], None]:
        return lambda: done.append(
            test_delivery.probe_address(view.url, channel, "a", team_id=team_id)
        )

    threads = [threading.Thread(target=knock(team_id)) for team_id in teams]
    for thread in threads:
        thread.start()
    try:
        receiver.wait_for(len(teams), path="/held")
        yield done
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.django_db(transaction=True)
def test_concurrent_tests_are_limited(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/ok"))
    with hanging(receiver, [None] * test_delivery.MAX_CONCURRENT) as done:
        with pytest.raises(RateLimited, match="try again in a moment"):
            test_delivery.probe(view_of(consumer), team_id=None)
        assert done == []
    assert len(done) == test_delivery.MAX_CONCURRENT
    assert test_delivery.probe(view_of(consumer), team_id=None).answer.status == 200

    def breaks(*_: object) -> None:
        raise RuntimeError("no socket")

    with monkeypatch.context() as patched:
        patched.setattr(test_delivery, "_send", breaks)
        for _ in range(test_delivery.MAX_CONCURRENT + 1):
            with pytest.raises(RuntimeError):
                test_delivery.probe(view_of(consumer), team_id=7)
    assert test_delivery.probe(view_of(consumer), team_id=7).answer.status == 200


@pytest.mark.django_db(transaction=True)
def test_a_team_runs_one_test_at_a_time(receiver: Receiver) -> None:
    consumer = ConsumerFactory.create(url=receiver.url("/ok"))
    with hanging(receiver, [7]):
        with pytest.raises(RateLimited):
            test_delivery.probe(view_of(consumer), team_id=7)
        assert test_delivery.probe(view_of(consumer), team_id=8).answer.status == 200
    assert test_delivery.probe(view_of(consumer), team_id=7).answer.status == 200
