"""Receive and acknowledge over REST, for REST framework's views and for the fast path.

The callers are views/leases.py, and broker_site/server/fast_path.py in front of it.
"""

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from channels_app.access.callers import Caller
from channels_app.api import fast_path
from channels_app.api.base import read_object
from channels_app.api.fast_path import Response
from channels_app.core import ids, times
from channels_app.core.errors import Conflict, Invalid, Unavailable
from channels_app.database import clock
from channels_app.registry.cache import ConsumerConfig
from delivery.api import bodies, policy
from delivery.core.leases import Lease
from delivery.core.outcome import Outcome
from delivery.pull import leasing, receiving
from delivery.pull.receiving import Deliver, ReceivedMessage, ReceiveRequest
from delivery.serializers.base import url

SCOPES = ("receive",)
MAX_MESSAGES = 10
LEASE_S = 30.0
NO_PLACE = "Too many calls wait for messages already; ask again, or ask without waiting."
NAMELESS = "Give the worker a name of its own: its keys, and what it holds, are found by that."
EXPIRED, UNKNOWN, TOO_LONG = "expired", "unknown", "too_long"

Read = Callable[[int], bytes]
"""Reads up to so many bytes of the request's body."""
TokensByLease = dict[Lease, str]
"""Leases with their tokens."""


def answer_receipt(meta: Mapping[str, Any], read: Read, channel: str, client_id: str) -> Response:
    """Receive for the caller named in the headers of ``meta``. Raises what the views raise."""
    caller = fast_path.caller_of(meta, SCOPES, channel)
    return Response(200, fast_path.to_json(receive(caller, meta, read, channel, client_id)))


def answer_acknowledgement(meta: Mapping[str, Any], read: Read) -> Response:
    """Acknowledge for the caller named in the headers of ``meta``. Raises what the views raise."""
    caller = fast_path.caller_of(meta, SCOPES)
    return Response(200, fast_path.to_json(acknowledge(caller, meta, read)))


def receive(
    caller: Caller, meta: Mapping[str, Any], read: Read, channel: str, client_id: str
) -> dict[str, Any]:
    """Return messages for a caller who may receive, long-polling if the body asks for it.

    A server that can postpone a response sends the messages of a long poll later, and the return
    value is not sent. Raises NotFound, Conflict, Invalid and BrokerError; no message is claimed
    then.
    """
    view = consumer_of(caller, channel, client_id)
    asked = bodies.RECEIVE.read(read_object(caller, meta, read, optional=True))
    receive_request = request_of(caller, asked)
    messages = receiving.receive_ignoring_outage(
        view,
        receive_request,
        asked.get("wait_s", 0.0),
        owner=caller.owner,
        defer=_deferring(meta, view, receive_request),
    )
    if messages is None:
        raise Unavailable("too_many_polls", NO_PLACE)
    return _received(messages, view, receive_request)


def consumer_of(caller: Caller, channel: str, client_id: str) -> ConsumerConfig:
    """Return the pull consumer with this name. Raises NotFound and Conflict."""
    view = policy.view_of(caller, channel, client_id)
    if view.mode != "pull":
        raise Conflict("not_pull", "Messages are sent to this consumer; make it a pull one.")
    return view


def request_of(caller: Caller, asked: Mapping[str, Any]) -> ReceiveRequest:
    """Return the request for checked fields of ``bodies.RECEIVE``. Raises Invalid."""
    is_sticky = asked.get("keys") == "sticky"
    is_back = asked.get("resume", False)
    if (is_sticky or is_back) and not asked.get("worker_id"):
        raise Invalid("invalid_fields", NAMELESS, field="worker_id")
    return ReceiveRequest(
        most=asked.get("max", MAX_MESSAGES),
        lease_ms=int(asked.get("lease_s", LEASE_S) * 1000),
        worker=asked.get("worker_id") or caller.key.key_id,
        settled=asked.get("auto_ack", False),
        sticky=is_sticky,
        resume=is_back,
    )


def received_message(
    one: ReceivedMessage, view: ConsumerConfig, *, settled: bool
) -> dict[str, Any]:
    """Represent a received message; without a lease if it is settled on receipt.

    By hand, because it is on the path of every delivery to a pull consumer.
    """
    row, payload = one.row, one.payload
    message = ids.to_public(ids.MESSAGE, row.message_id)
    return {
        "id": message,
        "delivery_id": ids.to_public(ids.DELIVERY, row.id),
        "lease": None if settled else one.token,
        "lease_expires_at": None if settled else times.text(row.lease_until),
        "attempt": row.tries,
        "max_attempts": view.retry_for(row.event_type).max_attempts,
        "event_type": row.event_type,
        "priority": row.priority,
        "ordering_key": row.ordering_key,
        "replay": row.replayed,
        "accepted_at": times.text(row.accepted_at),
        "content_type": payload.content_type,
        "headers": payload.headers,
        **_body(payload.body, message),
    }


def acknowledge(caller: Caller, meta: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """Acknowledge the body's leases; returns each one's result. Raises BrokerError and Invalid."""
    asked = bodies.ACK.read(read_object(caller, meta, read))
    return ended(caller, asked, Outcome.DELIVERED)


def ended(caller: Caller, asked: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Settle the leases with this outcome; returns each one's result."""
    mine, failed = known(caller, asked["leases"])
    done = leasing.end(
        mine,
        outcome,
        delay_s=asked.get("delay_s"),
        error=asked.get("error", ""),
        is_final=asked.get("final", False),
    )
    return result(mine, done, failed)


def released(caller: Caller, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Give the messages of the leases back; returns each lease's result."""
    asked = {"delay_s": 0.0} | dict(asked) | {"error": "Its worker released it."}
    return ended(caller, asked, Outcome.INTERRUPTED)


def extended(caller: Caller, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Extend the leases; returns each one's result."""
    mine, failed = known(caller, asked["leases"])
    done, too_long = leasing.extend(mine, int(asked.get("lease_s", LEASE_S) * 1000))
    failed |= {mine[lease]: TOO_LONG for lease in too_long}
    return result(mine, done, failed)


def known(caller: Caller, tokens: Collection[str]) -> tuple[TokensByLease, dict[str, str]]:
    """Return the leases that the caller may see with their tokens, and errors for the others."""
    found = {token: leasing.lease_of(token) for token in tokens}
    theirs = policy.received_by(caller, {lease.consumer_id for lease in found.values() if lease})
    mine = {lease: token for token, lease in found.items() if lease and lease.consumer_id in theirs}
    failed = dict.fromkeys(tokens, UNKNOWN)
    for token in mine.values():
        del failed[token]
    return mine, failed


def result(
    mine: TokensByLease, done: Collection[Lease], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Return the response: settled leases, and failed ones with errors."""
    lost = {token: EXPIRED for lease, token in mine.items() if lease not in done}
    return {
        "done": [token for lease, token in mine.items() if lease in done],
        "failed": [{"lease": token, "error": error} for token, error in {**lost, **failed}.items()],
    }


def _deferring(
    meta: Mapping[str, Any], view: ConsumerConfig, receive_request: ReceiveRequest
) -> Callable[[], Deliver] | None:
    """Return a callback that postpones the response of this request; None if the server cannot."""
    defer: fast_path.Defer | None = meta.get(fast_path.DEFER_RESPONSE)
    if defer is None:
        return None

    def begin() -> Deliver:
        answer_later = defer()

        def deliver(messages: Sequence[ReceivedMessage], confirm: Callable[[], object]) -> bool:
            done = Response(200, fast_path.to_json(_received(messages, view, receive_request)))
            return answer_later(done, confirm)

        return deliver

    return begin


def _received(
    messages: Sequence[ReceivedMessage],
    view: ConsumerConfig,
    receive_request: ReceiveRequest,
) -> dict[str, Any]:
    return {
        "messages": [
            received_message(one, view, settled=receive_request.settled) for one in messages
        ],
        "now": times.text(clock.now()),
    }


def _body(body: bytes | None, message: str) -> dict[str, str]:
    if body is None:
        return {"body_url": url(f"messages/{message}/body")}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
