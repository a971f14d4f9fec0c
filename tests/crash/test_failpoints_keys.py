"""Kill a process where ordering keys advance, and where consumers acknowledge by callback."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest

from tests.crash.failpoint import TIMEOUT_S
from tests.crash.place import NEVER, ONCE, PERHAPS_TWICE, Crash, Place, rows
from tests.support.receiver import Reply, Request

pytestmark = pytest.mark.e2e
WAITING = "FROM delivery_delivery WHERE state = 'awaiting_ack'"
LONG_WAIT = {"mode": "callback", "timeout_ms": 600_000}


@pytest.mark.seed("S3-29", "S3-34")
def advance(place: Place) -> None:
    # The first stays in flight until all are published, however slow the machine is: an idle key's
    # message is fanned out by another path.
    answered = Event()
    place.receiver.script("/slow", [Reply(until=answered), Reply(delay_ms=300)])
    place.register("/slow", ordering=True)
    place.publish("first", ordering_key="A")
    place.receiver.wait_for(1)
    with place.dying():
        for number in range(8):
            place.publish(f"{number}", ordering_key="A")
        answered.set()
    place.settle()
    assert len(place.arrivals()) <= len(place.published) + 1
    assert place.counts.number("SELECT COUNT(*) FROM delivery_orderingkey") == 0


def skip_the_head(place: Place) -> list[str]:
    key, path = _held_key(place, 600_000, 600_000, 0)
    with place.dying(), suppress(AssertionError):
        # A repeated call after success gets 404 or 409.
        place.call("POST", f"{path}/skip", json={"head": key["head"]})
    # The repeated call must not skip the next message, which is still there.
    place.make_due(place.published[1])
    place.settle()
    assert _key_actions(place) == ["ordering_key.skip"]
    return place.published[:1]


def pause(place: Place) -> None:
    _, path = _held_key(place, 600_000, 600_000)
    with place.dying():
        place.call("POST", f"{path}/pause")
    place.call("POST", f"{path}/resume")
    _check_resumed(place)


def resume(place: Place) -> None:
    _, path = _held_key(place, 600_000, 600_000)
    place.call("POST", f"{path}/pause")
    with place.dying():
        place.call("POST", f"{path}/resume")
    _check_resumed(place)


def resume_without_a_head(place: Place) -> list[str]:
    _, path = _held_key(place, 600_000, 600_000)
    cancelled, other = place.published
    place.call("POST", f"{path}/pause")
    place.call("DELETE", f"/messages/{cancelled}")
    headless = "SELECT COUNT(*) FROM delivery_orderingkey WHERE head_id IS NULL"
    assert place.counts.number(headless) == 1
    with place.dying():
        place.call("POST", f"{path}/resume")
    # The response comes after the repair, without waiting for a sweep.
    assert place.counts.number(headless) == 0
    place.make_due(other)
    return [cancelled]


def _held_key(place: Place, *delays_ms: int) -> tuple[dict[str, Any], str]:
    """Publish a message of one key for each delay; return the key, and its path."""
    place.register(ordering=True)
    for number, delay_ms in enumerate(delays_ms):
        place.publish(f"{number}", delay_ms=delay_ms, ordering_key="A")
    path = f"{place.path}/consumers/one/ordering-keys"
    place.wait_until(lambda: place.call("GET", path)["items"], "there is no key")
    (key,) = place.call("GET", path)["items"]
    return key, f"{path}/{key['id']}"


def _key_actions(place: Place) -> list[str]:
    """What operators did with ordering keys."""
    done = place.counts.audited(f"consumer:{place.channel}/one")
    return [action for action in done if action.startswith("ordering_key.")]


def _check_resumed(place: Place) -> None:
    """Check that the key was paused once and resumed once; then let its messages be sent."""
    for message_id in place.published:
        place.make_due(message_id)
    place.settle()
    assert _key_actions(place) == ["ordering_key.pause", "ordering_key.resume"]


@pytest.mark.seed("S3-05", "S3-29")
def time_out(place: Place) -> None:
    """The wait for an acknowledgement ends, and the next delivery of the key is released."""
    mode = {"mode": "callback", "timeout_ms": 3000, "on_timeout": "proceed"}
    place.register(ordering=True, ack=mode)
    for number in range(2):
        place.publish(f"{number}", ordering_key="A")
    _wait_for_wait(place)
    # While the consumer is paused no pump claims the delivery: its wait ends before the claim.
    place.call("POST", f"{place.path}/consumers/one/pause")

    def is_over() -> bool:
        return _end_of_wait(place) < datetime.now(UTC).replace(tzinfo=None)

    place.wait_until(is_over, "the wait does not end")
    with place.dying():
        place.call("POST", f"{place.path}/consumers/one/resume")
        place.receiver.wait_for(2, timeout=TIMEOUT_S)


@pytest.mark.seed("S3-29")
def acknowledge(place: Place) -> None:
    place.register(ordering=True, ack=LONG_WAIT)
    first, second = (place.publish(key, ordering_key="A") for key in ("first", "second"))
    (request,) = place.receiver.wait_for(1)
    assert request.header("webhook-id") == first
    _wait_for_wait(place)
    with place.dying():
        _acknowledge(place, request)
    # The response comes after the key has advanced, without waiting for a sweep.
    assert place.counts.number("SELECT COUNT(*) FROM delivery_orderingwaiter") == 0
    request = place.receiver.wait_for(2)[-1]
    assert request.header("webhook-id") == second
    _wait_for_wait(place)
    _acknowledge(place, request)


@pytest.mark.seed("S4-26")
def report_progress(place: Place) -> None:
    place.register(ack=LONG_WAIT)
    place.publish("first")
    (request,) = place.receiver.wait_for(1)
    _wait_for_wait(place)
    before = _end_of_wait(place)
    with place.dying():
        _acknowledge(place, request, {"status": "working"})
    # The wait started again once; the two waits were not added up.
    assert timedelta() < _end_of_wait(place) - before < timedelta(minutes=5)
    _acknowledge(place, request)


@pytest.mark.seed("S3-29", "S3-39")
def call_back_early(place: Place) -> None:
    # So slow that the callback comes before the response.
    answer = b'{"messages": [{"id": "wamid.1"}]}'
    place.receiver.script("/slow", [Reply(body=answer, delay_ms=4000)])
    mode = LONG_WAIT | {"correlation": {"preset": "whatsapp-cloud"}}
    place.register("/slow", ordering=True, timeout_ms=10_000, ack=mode)
    consumer = place.call("GET", f"{place.path}/consumers/one")
    status = {"id": "wamid.1", "status": "delivered"}
    told = {"entry": [{"changes": [{"value": {"statuses": [status]}}]}]}
    with place.dying():
        message_id = place.publish("first", ordering_key="A")
        place.receiver.wait_for(1)
        _call_openly(place, consumer["inbound_url"], told)
    place.settle()
    (delivery,) = place.call("GET", f"/messages/{message_id}")["deliveries"]
    assert delivery["reason"] == "acknowledged"


def _wait_for_wait(place: Place) -> None:
    """Wait until one delivery waits for its acknowledgement."""
    waiting = f"SELECT COUNT(*) {WAITING}"
    place.wait_until(lambda: place.counts.number(waiting) == 1, "it does not wait")


def _end_of_wait(place: Place) -> datetime:
    """When the only wait for an acknowledgement ends."""
    ((due_at,),) = place.counts.read(f"SELECT due_at {WAITING}")
    return datetime.fromisoformat(str(due_at))


def _acknowledge(place: Place, request: Request, body: object = None) -> None:
    """Acknowledge a request, or report about it."""
    _call_openly(place, request.header("Hookstation-Ack-Url") or "", body)


def _call_openly(place: Place, url: str, body: object) -> None:
    """Call without a key until there is a response; a repeated call is never refused."""
    place.call("POST", url, json=body, headers={"Authorization": None})


@pytest.mark.parametrize(
    "crash",
    [
        *rows(advance, PERHAPS_TWICE, "in_fanout", "after_fanout", "after_claim"),
        *rows(advance, PERHAPS_TWICE, "in_key_release", "in_settle", "after_settle"),
        *rows(skip_the_head, NEVER, "in_key_release", "after_key_change"),
        *rows(pause, ONCE, "in_pause_key", "after_key_change"),
        *rows(resume, ONCE, "in_pause_key", "after_key_change"),
        *rows(resume_without_a_head, NEVER, "in_key_release", "after_key_change"),
        *rows(time_out, ONCE, "in_claim", "after_claim", "in_key_release"),
        *rows(acknowledge, ONCE, "in_ack", "after_ack"),
        *rows(report_progress, ONCE, "in_ack", "after_ack"),
        *rows(call_back_early, PERHAPS_TWICE, "in_early_callback", "after_early_callback"),
        *rows(call_back_early, PERHAPS_TWICE, "in_settle", "after_settle"),
    ],
)
def test_a_crash_breaks_no_order_and_loses_no_acknowledgement(place: Place, crash: Crash) -> None:
    place.survive(crash)
