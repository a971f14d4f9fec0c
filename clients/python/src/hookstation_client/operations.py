"""The operations of the broker: what each method takes, and the call that it makes.

`Hookstation` sends these calls and waits, `AsyncHookstation` awaits them. The fields and the errors
of each are in docs/api.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Union
from urllib.parse import quote

import httpx

from hookstation_client.calls import Call, Pages, as_json, given, milliseconds
from hookstation_client.models import (
    BatchResult,
    ItemResult,
    Message,
    Outgoing,
    ReceivedMessage,
    Resource,
    Settled,
    body_fields,
)

T = TypeVar("T")

MAX_LEASES = 100
"""Leases in one call."""

Lease = Union[str, ReceivedMessage]


class Operations:
    """Every operation but those that a client composes of several calls."""

    # -- Publish ---------------------------------------------------------------------------------

    def publish(
        self,
        channel: str,
        body: Any,
        *,
        event_type: str | None = None,
        id: str | None = None,
        ordering_key: str | None = None,
        priority: int | None = None,
        deliver_at: datetime | None = None,
        deliver_in: float | None = None,
        spread: float | None = None,
        expires_at: datetime | None = None,
        producer_seq: int | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Call[Message]:
        """Publish one message. When it returns, the broker has stored the message (S0-49).

        ``body`` is sent as it is when it is ``bytes`` or ``str``, anything else as JSON.
        ``id`` is the idempotency key: a repeat with the same one returns the first message and
        stores nothing. Without it the client makes one up, for its own retries.
        ``deliver_in`` and ``spread`` are seconds, ``priority`` is 0 to 9, ``headers`` are forwarded
        to the consumers.
        """
        outgoing = Outgoing(
            body,
            event_type=event_type,
            id=id,
            ordering_key=ordering_key,
            priority=priority,
            deliver_at=deliver_at,
            deliver_in=deliver_in,
            spread=spread,
            expires_at=expires_at,
            producer_seq=producer_seq,
            headers=headers or {},
            content_type=content_type,
        )
        said = outgoing.as_headers()
        if not all(value.isascii() for value in said.values()):
            # HTTP servers differ on bytes beyond ASCII in headers. JSON has no such limit.
            return _batch(channel, [outgoing], _only_message)
        content, kind = outgoing.content()
        return Call(
            "POST",
            _path("channels", channel, "messages"),
            lambda response: Message.from_json(response.json()),
            headers={"Content-Type": kind, **said},
            content=content,
        )

    def publish_batch(self, channel: str, messages: Iterable[Outgoing]) -> Call[list[BatchResult]]:
        """Publish up to 1,000 messages and 16 MiB in one request.

        All that are valid are stored in one transaction. The results are in the order of
        ``messages``; one that was refused holds its error.
        """
        return _batch(channel, messages, _batch_results)

    # -- Messages --------------------------------------------------------------------------------

    def message(self, id: str) -> Call[Resource]:
        """A message with its deliveries."""
        return _get("messages", id)

    def body(self, id: str) -> Call[bytes]:
        """The exact bytes of a message's body."""
        return Call("GET", _path("messages", id, "body"), lambda response: response.content)

    def messages(
        self,
        channel: str,
        *,
        state: str | None = None,
        event_type: str | None = None,
        id: str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
    ) -> Pages[Resource]:
        """The messages of a channel, newest first, accepted from ``from_`` and before ``to``.

        ``id`` finds the one that was published with it by this producer, or none once the
        channel's idempotency window has ended.
        """
        params = given(state=state, event_type=event_type, idempotency_key=id, from_=from_, to=to)
        return Pages(_path("channels", channel, "messages"), dict, params)

    def timeline(
        self, channel: str, *, from_: datetime | None = None, to: datetime | None = None
    ) -> Pages[Resource]:
        """The messages that are due in the future, the next one first."""
        return Pages(_path("channels", channel, "timeline"), dict, given(from_=from_, to=to))

    def timeline_histogram(
        self,
        channel: str,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        width: int = 60,
    ) -> Call[Resource]:
        """How many messages are due in each ``width`` seconds."""
        params = given(from_=from_, to=to, width_s=width)
        return _get("channels", channel, "timeline", "histogram", params=params)

    def move(
        self,
        id: str,
        *,
        deliver_at: datetime | None = None,
        deliver_in: float | None = None,
        priority: int | None = None,
        reason: str | None = None,
        version: int | None = None,
    ) -> Call[Resource]:
        """Move a waiting message to another instant or priority.

        With ``version`` only if the message still has it; raises `Conflict` else, and while a
        delivery of it is in flight.
        """
        said = given(
            due_at=deliver_at, delay_ms=milliseconds(deliver_in), priority=priority, reason=reason
        )
        return _write("PATCH", _path("messages", id), said, version)

    def cancel(
        self, id: str, *, reason: str | None = None, version: int | None = None
    ) -> Call[Resource]:
        """Cancel what is still queued of a message. Twice is harmless."""
        params = given(reason=reason)
        return _write("DELETE", _path("messages", id), None, version, params)

    def move_many(
        self, moves: Iterable[Mapping[str, Any]], *, reason: str | None = None
    ) -> Call[list[ItemResult]]:
        """Move up to 200 messages, each by itself.

        A move has ``id`` and one or more of ``deliver_at``, ``deliver_in``, ``priority`` and
        ``version``, which mean what they mean in `move`.
        """
        items = [
            given(
                id=move["id"],
                due_at=move.get("deliver_at"),
                delay_ms=milliseconds(move.get("deliver_in")),
                priority=move.get("priority"),
                version=move.get("version"),
            )
            for move in moves
        ]
        return _many("move", items, reason)

    def cancel_many(
        self, ids: Iterable[str], *, reason: str | None = None
    ) -> Call[list[ItemResult]]:
        """Cancel up to 200 messages, each by itself."""
        return _many("cancel", [{"id": id} for id in ids], reason)

    # -- Channels and consumers ------------------------------------------------------------------

    def create_channel(self, /, channel: str, **fields: Any) -> Call[Resource]:
        """Create a channel or replace its settings. The same call twice changes nothing."""
        return _write("PUT", _path("channels", channel), fields)

    def channel(self, channel: str) -> Call[Resource]:
        """A channel."""
        return _get("channels", channel)

    def channels(self) -> Pages[Resource]:
        """The channels that the key may use."""
        return Pages(_path("channels"), dict)

    def create_event_type(self, /, channel: str, name: str, **fields: Any) -> Call[Resource]:
        """Register an event type or replace it: ``schema``, ``example``, ``description``."""
        return _write("PUT", _path("channels", channel, "event-types", name), fields)

    def event_types(self, channel: str) -> Pages[Resource]:
        """The event types that are registered on a channel."""
        return Pages(_path("channels", channel, "event-types"), dict)

    def delete_event_type(self, channel: str, name: str) -> Call[None]:
        """Forget an event type; messages of that type are accepted unchecked from then on."""
        return _delete("channels", channel, "event-types", name)

    def register(
        self,
        /,
        channel: str,
        consumer: str,
        *,
        url: str | None = None,
        events: Sequence[str] = (),
        **fields: Any,
    ) -> Call[Resource]:
        """Register a consumer, or replace its settings. Safe at each start of a service.

        ``events`` are event types and patterns such as ``order.*``; none means every event. A
        consumer without ``url`` pulls (``mode="pull"``). ``fields`` are the API's, such as
        ``max_attempts``, ``retry`` and ``retry_overrides``. The result holds the signing secret as
        ``secret`` once: when the consumer is new.
        """
        said = {"event_types": list(events), **fields}
        if url is None:
            said.setdefault("mode", "pull")
        else:
            said["url"] = url
        return _write("PUT", _path("channels", channel, "consumers", consumer), said)

    def update_consumer(self, /, channel: str, consumer: str, **fields: Any) -> Call[Resource]:
        """Change the given fields of a consumer."""
        return _write("PATCH", _path("channels", channel, "consumers", consumer), fields)

    def consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """A consumer."""
        return _get("channels", channel, "consumers", consumer)

    def consumers(self, channel: str, *, state: str | None = None) -> Pages[Resource]:
        """The consumers of a channel; without ``state`` all but the retired ones."""
        return Pages(_path("channels", channel, "consumers"), dict, given(state=state))

    def retire_consumer(self, channel: str, consumer: str) -> Call[None]:
        """Remove a consumer: what is queued for it is cancelled, its history stays."""
        return _delete("channels", channel, "consumers", consumer)

    def pause_consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """Hold deliveries back. When it returns, no request begins any more."""
        return _write("POST", _path("channels", channel, "consumers", consumer, "pause"))

    def resume_consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """Send what waits, after a pause or after the broker disabled the consumer."""
        return _write("POST", _path("channels", channel, "consumers", consumer, "resume"))

    def rotate_secret(
        self, channel: str, consumer: str, *, overlap: int = 86_400
    ) -> Call[Resource]:
        """A new signing secret, as ``secret``; the old ones sign for ``overlap`` seconds more."""
        place = _path("channels", channel, "consumers", consumer, "secrets")
        return _post(place, {"overlap_s": overlap}, is_repeatable=False)

    def test_consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """Send one signed sample now; the result says what came back."""
        return _post(_path("channels", channel, "consumers", consumer, "test"), {}, wait_s=30.0)

    # -- Pull ------------------------------------------------------------------------------------

    def receive_call(
        self,
        channel: str,
        consumer: str,
        *,
        max: int = 10,
        wait: float = 0,
        lease: int = 30,
        worker_id: str | None = None,
        keys: str | None = None,
        resume: bool = False,
        auto_ack: bool = False,
    ) -> Call[list[Resource]]:
        """What `receive_batch` sends; it makes deliveries of the answer."""
        said = given(
            max=max,
            wait_s=wait,
            lease_s=lease,
            worker_id=worker_id,
            keys=keys,
            resume=resume or None,
            auto_ack=auto_ack or None,
        )
        place = _path("channels", channel, "consumers", consumer, "receive")
        return Call(
            "POST",
            place,
            lambda response: list(response.json()["messages"]),
            headers={"Content-Type": "application/json"},
            content=as_json(said),
            # With `auto_ack` what a lost response held is recorded as delivered: a repeat gets
            # other messages, and is as good as the next call.
            wait_s=wait,
        )

    def ack(self, leases: Lease | Iterable[Lease]) -> Call[Settled]:
        """Acknowledge up to 100 messages by their leases: they are delivered."""
        return _settle("ack", leases)

    def nack(
        self,
        leases: Lease | Iterable[Lease],
        *,
        delay: int | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> Call[Settled]:
        """Report a failed attempt: it comes again after ``delay`` seconds, or is dead.

        Without ``delay`` the consumer's retry policy decides; with ``final`` it is dead at once.
        ``error`` is for people.
        """
        said = error[:300] if error else None
        return _settle("nack", leases, delay_s=delay, error=said, final=final or None)

    def extend(self, leases: Lease | Iterable[Lease], lease: int) -> Call[Settled]:
        """Let leases end ``lease`` seconds from now."""
        return _settle("extend", leases, lease_s=lease)

    def release(
        self, leases: Lease | Iterable[Lease], *, delay: int | None = None
    ) -> Call[Settled]:
        """Give messages back, to come again at once or after ``delay`` seconds, uncharged."""
        return _settle("release", leases, delay_s=delay)

    # -- Deliveries, replays ---------------------------------------------------------------------

    def delivery(self, id: str) -> Call[Resource]:
        """A delivery with its attempts."""
        return _get("deliveries", id)

    def deliveries(
        self,
        channel: str,
        consumer: str,
        *,
        state: str | None = None,
        outcome: str | None = None,
        event_type: str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
    ) -> Pages[Resource]:
        """The deliveries of a consumer, newest first."""
        params = given(state=state, outcome=outcome, event_type=event_type, from_=from_, to=to)
        return Pages(_path("channels", channel, "consumers", consumer, "deliveries"), dict, params)

    def dead_letters(
        self,
        channel: str,
        consumer: str,
        *,
        outcome: str | None = None,
        event_type: str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
    ) -> Pages[Resource]:
        """The dead deliveries of a consumer, newest first."""
        place = _path("channels", channel, "consumers", consumer, "dead-letters")
        params = given(outcome=outcome, event_type=event_type, from_=from_, to=to)
        return Pages(place, dict, params)

    def replay_delivery(self, id: str, *, reason: str | None = None) -> Call[Resource]:
        """Send a finished delivery again, now and with all its attempts."""
        said = given(reason=reason)
        return _post(_path("deliveries", id, "replay"), said, is_repeatable=False)

    def cancel_delivery(self, id: str, *, reason: str | None = None) -> Call[Resource]:
        """Take a queued delivery back."""
        said = given(reason=reason)
        return _post(_path("deliveries", id, "cancel"), said, is_repeatable=False)

    def replay(
        self,
        channel: str | None = None,
        consumer: str | None = None,
        *,
        states: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        status_codes: Sequence[int] | None = None,
        event_types: Sequence[str] | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
        ids: Sequence[str] | None = None,
        dry_run: bool = False,
        rate_per_second: float | None = None,
        reason: str | None = None,
    ) -> Call[Resource]:
        """Send again what matches all conditions, each delivery at most once.

        ``states`` is ``["dead"]`` unless given; ``ids`` are ids of deliveries. With ``dry_run``
        nothing is sent: the result says how many match.
        """
        chosen = given(
            channel=channel,
            consumer=consumer,
            states=states,
            outcomes=outcomes,
            status_codes=status_codes,
            event_types=event_types,
            from_=from_,
            to=to,
            ids=ids,
        )
        said = given(
            filter=chosen, dry_run=dry_run or None, rate_per_second=rate_per_second, reason=reason
        )
        return _post(_path("replays"), said, is_repeatable=dry_run)

    def replay_progress(self, id: str) -> Call[Resource]:
        """A replay with its progress."""
        return _get("replays", id)

    def replays(self, *, state: str | None = None) -> Pages[Resource]:
        """The replays, newest first."""
        return Pages(_path("replays"), dict, given(state=state))

    def cancel_replay(self, id: str) -> Call[Resource]:
        """Stop a replay; what it has queued is sent all the same."""
        return _post(_path("replays", id, "cancel"), {}, is_repeatable=False)

    def backfill(
        self,
        channel: str,
        consumer: str,
        *,
        event_types: Sequence[str] | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
        dry_run: bool = False,
        rate_per_second: float | None = None,
        reason: str | None = None,
    ) -> Call[Resource]:
        """Give a consumer the stored messages that it wants and has no delivery of."""
        said = given(
            event_types=event_types,
            from_=from_,
            to=to,
            dry_run=dry_run or None,
            rate_per_second=rate_per_second,
            reason=reason,
        )
        return _post(_path("channels", channel, "consumers", consumer, "backfill"), said)

    def expected(self, channel: str, consumer: str, *, after: str | None = None) -> Pages[Resource]:
        """What a consumer was meant to get, oldest first, behind the message ``after``."""
        place = _path("channels", channel, "consumers", consumer, "messages")
        return Pages(place, dict, given(after=after, limit=200))


class ScheduleOperations:
    """The operations on the schedules of one channel."""

    channel: str

    def put(self, /, name: str, body: Any = None, **fields: Any) -> Call[Resource]:
        """Create a schedule, or replace it. The same call twice changes nothing.

        ``cron="0 9 * * 1-5"`` or ``every=seconds`` says when, ``body`` what is published. The
        other fields are those of docs/api.md, "Schedules".
        """
        return _write(
            "PUT",
            _schedules(self.channel, name),
            _schedule_fields({"body": body, **fields}),
        )

    def update(self, /, name: str, **fields: Any) -> Call[Resource]:
        """Change the given fields of a schedule."""
        return _write("PATCH", _schedules(self.channel, name), _schedule_fields(fields))

    def get(self, name: str) -> Call[Resource]:
        """A schedule, with its next occurrences and what became of the last ones."""
        return Call("GET", _schedules(self.channel, name), _json)

    def list(self, *, state: str | None = None) -> Pages[Resource]:
        """The schedules of the channel, newest first, without their bodies."""
        return Pages(_schedules(self.channel), dict, given(state=state))

    def delete(self, name: str) -> Call[None]:
        """Forget a schedule; its messages stay."""
        return Call("DELETE", _schedules(self.channel, name), _nothing)

    def pause(self, name: str) -> Call[Resource]:
        """Publish nothing until `resume`."""
        return _write("POST", _schedules(self.channel, name, "pause"))

    def resume(self, name: str) -> Call[Resource]:
        """Go on; what was due meanwhile is not published."""
        return _write("POST", _schedules(self.channel, name, "resume"))

    def run(self, name: str) -> Call[Message]:
        """Publish the schedule's message once more, now."""
        return Call(
            "POST",
            _schedules(self.channel, name, "run"),
            lambda response: Message.from_json(response.json()),
            is_repeatable=False,
        )


def _batch(
    channel: str, messages: Iterable[Outgoing], parse: Callable[[httpx.Response], T]
) -> Call[T]:
    return Call(
        "POST",
        _path("channels", channel, "messages", "batch"),
        parse,
        headers={"Content-Type": "application/json"},
        content=as_json([message.as_item() for message in messages]),
    )


def _batch_results(response: httpx.Response) -> list[BatchResult]:
    return [BatchResult.from_json(item) for item in response.json()["items"]]


def _only_message(response: httpx.Response) -> Message:
    (result,) = _batch_results(response)
    if result.message is None:
        assert result.error is not None
        raise result.error
    return result.message


def _schedule_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in fields.items() if name not in {"body", "every"}}
    if fields.get("body") is not None:
        said.update(body_fields(fields["body"], said.get("content_type")))
    if fields.get("every") is not None:
        said["every_ms"] = milliseconds(fields["every"])
    return said


def _path(*parts: str) -> str:
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)


def _schedules(channel: str, *parts: str) -> str:
    return _path("channels", channel, "schedules", *parts)


def _json(response: httpx.Response) -> Resource:
    found: Resource = response.json()
    return found


def _nothing(response: httpx.Response) -> None:
    return None


def _get(*parts: str, params: Mapping[str, Any] | None = None) -> Call[Resource]:
    return Call("GET", _path(*parts), _json, params=params or {})


def _delete(*parts: str) -> Call[None]:
    return Call("DELETE", _path(*parts), _nothing)


def _write(
    method: str,
    path: str,
    said: Mapping[str, Any] | None = None,
    version: int | None = None,
    params: Mapping[str, Any] | None = None,
) -> Call[Resource]:
    """A call that leaves the object in the same state when it is made twice."""
    headers = {} if said is None else {"Content-Type": "application/json"}
    if version is not None:
        headers["If-Match"] = f'"{version}"'
    return Call(
        method,
        path,
        _json,
        params=params or {},
        headers=headers,
        content=None if said is None else as_json(said),
        # The repeat of a write that had its effect would meet the version that it made.
        is_repeatable=version is None,
    )


def _post(
    path: str, said: Mapping[str, Any], *, is_repeatable: bool = True, wait_s: float = 0.0
) -> Call[Resource]:
    return Call(
        "POST",
        path,
        _json,
        headers={"Content-Type": "application/json"},
        content=as_json(said),
        is_repeatable=is_repeatable,
        wait_s=wait_s,
    )


def _many(what: str, items: list[dict[str, Any]], reason: str | None) -> Call[list[ItemResult]]:
    return Call(
        "POST",
        _path("messages", what),
        lambda response: [ItemResult.from_json(item) for item in response.json()["items"]],
        headers={"Content-Type": "application/json"},
        content=as_json(given(messages=items, reason=reason)),
    )


def _settle(what: str, leases: Lease | Iterable[Lease], **fields: Any) -> Call[Settled]:
    listed = [leases] if isinstance(leases, (str, ReceivedMessage)) else list(leases)
    names = [one if isinstance(one, str) else one.lease for one in listed]
    if len(names) > MAX_LEASES:
        raise ValueError(f"{len(names)} leases in one call; {MAX_LEASES} are allowed.")
    return Call(
        "POST",
        _path("leases", what),
        lambda response: Settled.from_json(response.json()),
        headers={"Content-Type": "application/json"},
        content=as_json({"leases": names, **given(**fields)}),
    )
