"""Kill a process where ordering keys advance, and where consumers acknowledge by callback."""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event
from urllib.parse import urlsplit

import pytest
import requests

from tests.crash.counts import Counts
from tests.crash.failpoint import AWAY, TIMEOUT_S, at, retry_until_done
from tests.crash.test_failpoints import Place, place, started
from tests.support.broker import heard_ids, wait_until
from tests.support.receiver import Reply, Request

__all__ = ["place", "started"]
pytestmark = pytest.mark.e2e


@pytest.mark.seed("S3-29", "S3-34")
@pytest.mark.parametrize(
    "name",
    at("in_fanout", "after_fanout", "after_claim", "in_key_release", "in_settle", "after_settle"),
)
def test_an_ordering_key_keeps_its_order_after_a_crash(place: Place, name: str) -> None:
    # The first stays in flight until all are published, however slow the machine is: an idle key's
    # message is fanned out by another path.
    answered = Event()
    place.receiver.script("/slow", [Reply(until=answered), Reply(delay_ms=300)])
    place.register("/slow", ordering=True, timeout_ms=30_000)
    first = [place.publish("first", ordering_key="A")]
    place.receiver.wait_for(1)
    with place.point.armed(place.broker, name):
        ids = [*first, *(place.publish(f"{n}", ordering_key="A") for n in range(8))]
        answered.set()
    place.settle()
    heard = heard_ids(place.receiver, "/slow")
    assert list(dict.fromkeys(heard)) == ids
    assert heard == sorted(heard, key=ids.index), "one that came twice came before the next one"
    assert len(heard) <= len(ids) + 1
    assert Counts(place.broker).number("SELECT COUNT(*) FROM delivery_orderingkey") == 0


@pytest.mark.parametrize("name", at("in_key_release", "after_key_change"))
def test_a_key_continues_after_a_crash_while_its_head_is_skipped(place: Place, name: str) -> None:
    place.register("/ok", ordering=True)
    first, second, third = [
        place.publish(f"{n}", delay_ms=delay, ordering_key="A")
        for n, delay in enumerate([600_000, 600_000, 0])
    ]
    path = f"{place.path}/consumers/one/ordering-keys"
    wait_until(
        lambda: retry_until_done(place.broker, "GET", path)[0]["items"],
        TIMEOUT_S,
        "there is no key",
    )
    (key_row,) = retry_until_done(place.broker, "GET", path)[0]["items"]
    with place.point.armed(place.broker, name), suppress(AssertionError):
        # A repeated call after success gets 404 or 409.
        retry_until_done(
            place.broker, "POST", f"{path}/{key_row['id']}/skip", json={"head": key_row["head"]}
        )
    # The repeated call must not skip the next message, which is still there.
    retry_until_done(place.broker, "PATCH", f"/messages/{second}", json={"delay_ms": 0})
    place.settle()
    assert heard_ids(place.receiver, "/ok") == [second, third]
    assert first not in place.heard()
    done = Counts(place.broker).audited(f"consumer:{place.channel}/one")
    assert [it for it in done if it.startswith("ordering_key.")] == ["ordering_key.skip"]


@pytest.mark.parametrize("name", at("in_pause_key", "after_key_change"))
@pytest.mark.parametrize("what", ["pause", "resume"])
def test_a_key_is_paused_or_resumed_despite_a_crash(place: Place, what: str, name: str) -> None:
    place.register("/ok", ordering=True)
    ids = [place.publish(f"{n}", delay_ms=600_000, ordering_key="A") for n in range(2)]
    path = f"{place.path}/consumers/one/ordering-keys"
    wait_until(
        lambda: retry_until_done(place.broker, "GET", path)[0]["items"],
        TIMEOUT_S,
        "there is no key",
    )
    (key_row,) = retry_until_done(place.broker, "GET", path)[0]["items"]
    if what == "resume":
        retry_until_done(place.broker, "POST", f"{path}/{key_row['id']}/pause")
    with place.point.armed(place.broker, name):
        retry_until_done(place.broker, "POST", f"{path}/{key_row['id']}/{what}")
    if what == "pause":
        retry_until_done(place.broker, "POST", f"{path}/{key_row['id']}/resume")
    for message_id in ids:
        retry_until_done(place.broker, "PATCH", f"/messages/{message_id}", json={"delay_ms": 0})
    place.settle()
    assert heard_ids(place.receiver, "/ok") == ids
    done = Counts(place.broker).audited(f"consumer:{place.channel}/one")
    assert [it for it in done if it.startswith("ordering_key.")] == [
        "ordering_key.pause",
        "ordering_key.resume",
    ]


@pytest.mark.parametrize("name", at("in_key_release", "after_key_change"))
def test_a_paused_key_without_a_head_resumes_despite_a_crash(place: Place, name: str) -> None:
    place.register("/ok", ordering=True)
    ids = [place.publish(f"{n}", delay_ms=600_000, ordering_key="A") for n in range(2)]
    path = f"{place.path}/consumers/one/ordering-keys"
    wait_until(
        lambda: retry_until_done(place.broker, "GET", path)[0]["items"],
        TIMEOUT_S,
        "there is no key",
    )
    (key_row,) = retry_until_done(place.broker, "GET", path)[0]["items"]
    retry_until_done(place.broker, "POST", f"{path}/{key_row['id']}/pause")
    retry_until_done(place.broker, "DELETE", f"/messages/{ids[0]}")
    headless = "SELECT COUNT(*) FROM delivery_orderingkey WHERE head_id IS NULL"
    assert Counts(place.broker).number(headless) == 1
    with place.point.armed(place.broker, name):
        retry_until_done(place.broker, "POST", f"{path}/{key_row['id']}/resume")
    # The response comes after the repair, without waiting for a sweep.
    assert Counts(place.broker).number(headless) == 0
    retry_until_done(place.broker, "PATCH", f"/messages/{ids[1]}", json={"delay_ms": 0})
    place.settle()
    assert heard_ids(place.receiver, "/ok") == ids[1:]


@pytest.mark.seed("S3-05", "S3-29")
@pytest.mark.parametrize("name", at("in_claim", "after_claim", "in_key_release"))
def test_an_acknowledgement_timeout_releases_the_next_delivery_once_after_a_crash(
    place: Place, name: str
) -> None:
    mode = {"mode": "callback", "timeout_ms": 3000, "on_timeout": "proceed"}
    place.register("/ok", ordering=True, ack=mode)
    ids = [place.publish(f"{n}", ordering_key="A") for n in range(2)]
    waiting = "SELECT COUNT(*) FROM delivery_delivery WHERE state = 'awaiting_ack'"
    wait_until(lambda: Counts(place.broker).number(waiting) == 1, TIMEOUT_S, "it does not wait")
    # While the consumer is paused no pump claims the delivery: its wait ends before the claim.
    retry_until_done(place.broker, "POST", f"{place.path}/consumers/one/pause")
    wait_until(
        lambda: _end_of_wait(place) < datetime.now(UTC).replace(tzinfo=None),
        TIMEOUT_S,
        "the wait does not end",
    )
    with place.point.armed(place.broker, name):
        retry_until_done(place.broker, "POST", f"{place.path}/consumers/one/resume")
        place.receiver.wait_for(2, timeout=TIMEOUT_S)
    place.settle()
    assert heard_ids(place.receiver, "/ok") == ids


@pytest.mark.seed("S3-29")
@pytest.mark.parametrize("name", at("in_ack", "after_ack"))
def test_an_acknowledgement_can_be_repeated_after_a_crash(place: Place, name: str) -> None:
    mode = {"mode": "callback", "timeout_ms": 600_000}
    place.register("/ok", ordering=True, ack=mode)
    ids = [place.publish("first", ordering_key="A"), place.publish("second", ordering_key="A")]
    waiting = "SELECT COUNT(*) FROM delivery_delivery WHERE state = 'awaiting_ack'"
    for number, message_id in enumerate(ids, 1):
        request = place.receiver.wait_for(number)[-1]
        assert request.header("webhook-id") == message_id
        wait_until(lambda: Counts(place.broker).number(waiting) == 1, TIMEOUT_S, "it does not wait")
        if number == 1:
            with place.point.armed(place.broker, name):
                _acknowledge(place, request)
            # The response comes after the key has advanced, without waiting for a sweep.
            assert Counts(place.broker).number("SELECT COUNT(*) FROM delivery_orderingwaiter") == 0
        else:
            _acknowledge(place, request)
    place.settle()
    assert place.heard() == Counter(ids)


@pytest.mark.seed("S4-26")
@pytest.mark.parametrize("name", at("in_ack", "after_ack"))
def test_a_progress_report_extends_the_wait_despite_a_crash(place: Place, name: str) -> None:
    place.register("/ok", ack={"mode": "callback", "timeout_ms": 600_000})
    message_id = place.publish("first")
    (request,) = place.receiver.wait_for(1)
    waiting = "SELECT COUNT(*) FROM delivery_delivery WHERE state = 'awaiting_ack'"
    wait_until(lambda: Counts(place.broker).number(waiting) == 1, TIMEOUT_S, "it does not wait")
    until = _end_of_wait(place)
    with place.point.armed(place.broker, name):
        _call(place, request.header("Hookstation-Ack-Url") or "", {"status": "working"})
    assert Counts(place.broker).number(waiting) == 1
    # The wait started again once; the two waits were not added up.
    assert timedelta() < _end_of_wait(place) - until < timedelta(minutes=5)
    _acknowledge(place, request)
    place.settle()
    assert place.heard() == Counter([message_id])


@pytest.mark.seed("S3-29", "S3-39")
@pytest.mark.parametrize(
    "name", at("in_early_callback", "after_early_callback", "in_settle", "after_settle")
)
def test_an_early_provider_callback_survives_a_crash(place: Place, name: str) -> None:
    # So slow that the callback comes before the response.
    answer = b'{"messages": [{"id": "wamid.1"}]}'
    place.receiver.script("/slow", [Reply(body=answer, delay_ms=4000)])
    correlation = {"preset": "whatsapp-cloud"}
    mode = {"mode": "callback", "timeout_ms": 600_000, "correlation": correlation}
    place.register("/slow", ordering=True, timeout_ms=10_000, ack=mode)
    consumer, _ = retry_until_done(place.broker, "GET", f"{place.path}/consumers/one")
    status = {"id": "wamid.1", "status": "delivered"}
    told = {"entry": [{"changes": [{"value": {"statuses": [status]}}]}]}
    with place.point.armed(place.broker, name):
        message_id = place.publish("first", ordering_key="A")
        place.receiver.wait_for(1)
        _call(place, consumer["inbound_url"], told)
    place.settle()
    assert set(place.heard()) == {message_id}
    (delivery,) = retry_until_done(place.broker, "GET", f"/messages/{message_id}")[0]["deliveries"]
    assert delivery["reason"] == "acknowledged"


def _end_of_wait(place: Place) -> datetime:
    """When the only wait for an acknowledgement ends."""
    waiting = "SELECT due_at FROM delivery_delivery WHERE state = 'awaiting_ack'"
    ((due_at,),) = Counts(place.broker).read(waiting)
    return datetime.fromisoformat(str(due_at))


def _acknowledge(place: Place, request: Request) -> None:
    """Call until there is a response, as consumers should."""
    _call(place, request.header("Hookstation-Ack-Url") or "")


def _call(place: Place, address: str, body: object = None) -> None:
    path = urlsplit(address).path
    url = urlsplit(place.broker.base)._replace(path=path).geturl()

    def is_heard() -> bool:
        with suppress(requests.ConnectionError):
            answer = requests.post(url, json=body, timeout=60)
            # A repeated acknowledgement is never refused.
            assert answer.status_code in {200, *AWAY}, answer.text
            return answer.ok
        return False

    wait_until(is_heard, TIMEOUT_S, "nobody hears it", place.broker.log)
