"""Receive and acknowledge over REST, for REST framework's views and for the fast path.

The callers are views/leases.py, and broker_site/server/fast_path.py in front of it.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from channels_app.access.principal import Principal
from channels_app.api import fast_path
from channels_app.api.base import read_object
from channels_app.api.fast_path import Response
from channels_app.core import ids, times
from channels_app.core.errors import Unavailable
from channels_app.database import clock
from channels_app.registry.cache import ConsumerConfig
from delivery.api import bodies
from delivery.core.outcome import Outcome
from delivery.pull import calls, receiving
from delivery.pull.receiving import Deliver, ReceivedMessage, ReceiveRequest
from delivery.serializers.base import url

Read = Callable[[int], bytes]
"""Reads up to so many bytes of the request's body."""


def answer_receipt(meta: Mapping[str, Any], read: Read, channel: str, client_id: str) -> Response:
    """Receive for the caller named in the headers of ``meta``. Raises what the views raise."""
    principal = fast_path.principal_of(meta, calls.SCOPES, channel)
    return Response(200, fast_path.to_json(receive(principal, meta, read, channel, client_id)))


def answer_acknowledgement(meta: Mapping[str, Any], read: Read) -> Response:
    """Acknowledge for the caller named in the headers of ``meta``. Raises what the views raise."""
    principal = fast_path.principal_of(meta, calls.SCOPES)
    return Response(200, fast_path.to_json(acknowledge(principal, meta, read)))


def receive(
    principal: Principal, meta: Mapping[str, Any], read: Read, channel: str, client_id: str
) -> dict[str, Any]:
    """Return messages for a caller who may receive, long-polling if the body asks for it.

    A server that can postpone a response sends the messages of a long poll later, and the return
    value is not sent. Raises NotFound, Conflict, Invalid and BrokerError; no message is claimed
    then.
    """
    consumer = calls.consumer_of(principal, channel, client_id)
    asked = calls.RECEIVE.read(read_object(principal, meta, read, optional=True))
    receive_request = calls.request_of(principal, asked)
    messages = receiving.receive_ignoring_outage(
        consumer,
        receive_request,
        asked.get("wait_s", 0.0),
        owner=principal.owner,
        defer=_deferring(meta, consumer, receive_request),
    )
    if messages is None:
        raise Unavailable("too_many_polls", calls.NO_PLACE)
    return _received(messages, consumer, receive_request)


def received_message(
    received: ReceivedMessage, consumer: ConsumerConfig, *, settled: bool
) -> dict[str, Any]:
    """Represent a received message; without a lease if it is settled on receipt.

    By hand, because it is on the path of every delivery to a pull consumer.
    """
    row, payload = received.row, received.payload
    message = ids.to_public(ids.MESSAGE, row.message_id)
    return {
        "id": message,
        "delivery_id": ids.to_public(ids.DELIVERY, row.id),
        "lease": None if settled else received.token,
        "lease_expires_at": None if settled else times.text(row.lease_until),
        "attempt": row.tries,
        "max_attempts": consumer.retry_for(row.event_type).max_attempts,
        "event_type": row.event_type,
        "priority": row.priority,
        "ordering_key": row.ordering_key,
        "replay": row.replayed,
        "accepted_at": times.text(row.accepted_at),
        "content_type": payload.content_type,
        "headers": payload.headers,
        **_body(payload.body, message),
    }


def acknowledge(principal: Principal, meta: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """Acknowledge the body's leases; returns each one's result. Raises BrokerError and Invalid."""
    asked = bodies.ACK.read(read_object(principal, meta, read))
    return calls.ended(principal, asked, Outcome.DELIVERED)


def _deferring(
    meta: Mapping[str, Any], consumer: ConsumerConfig, receive_request: ReceiveRequest
) -> Callable[[], Deliver] | None:
    """Return a callback that postpones the response of this request; None if the server cannot."""
    defer: fast_path.Defer | None = meta.get(fast_path.DEFER_RESPONSE)
    if defer is None:
        return None

    def begin() -> Deliver:
        answer_later = defer()

        def deliver(messages: Sequence[ReceivedMessage], confirm: Callable[[], object]) -> bool:
            done = Response(200, fast_path.to_json(_received(messages, consumer, receive_request)))
            return answer_later(done, confirm)

        return deliver

    return begin


def _received(
    messages: Sequence[ReceivedMessage],
    consumer: ConsumerConfig,
    receive_request: ReceiveRequest,
) -> dict[str, Any]:
    return {
        "messages": [
            received_message(message, consumer, settled=receive_request.settled)
            for message in messages
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
