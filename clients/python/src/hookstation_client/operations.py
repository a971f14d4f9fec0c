"""The operations of the broker: the parameters of each method, and the call that it makes.

`Hookstation` and `AsyncHookstation` send these calls. docs/api.md describes the fields and errors
of each.
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
"""Most leases in one call."""

Lease = Union[str, ReceivedMessage]


class Operations:
    """All operations, except those that a client composes of several calls."""

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

        The client sends a ``body`` of type ``bytes`` or ``str`` as it is, any other as JSON.
        ``id`` is the idempotency key: a repeat with the same one returns the first message and
        stores nothing. Without it the client generates one for its own retries.
        ``deliver_in`` and ``spread`` are in seconds, ``priority`` is 0 to 9. The broker forwards
        ``headers`` to the consumers.
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
            # HTTP servers treat non-ASCII bytes in headers differently. JSON has no such problem.
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

        The broker stores all valid messages in one transaction. The results are in the order of
        ``messages``; the result for a refused message has its error.
        """
        return _batch(channel, messages, _batch_results)

    # -- Messages --------------------------------------------------------------------------------

    def message(self, id: str) -> Call[Resource]:
        """Return a message with its deliveries."""
        return _get("messages", id)

    def body(self, id: str) -> Call[bytes]:
        """Return the exact bytes of a message's body."""
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
        """List the messages of a channel, newest first, accepted from ``from_`` and before ``to``.

        ``id`` finds the message that this producer published with that idempotency key. After the
        channel's idempotency window it finds none.
        """
        params = given(state=state, event_type=event_type, idempotency_key=id, from_=from_, to=to)
        return Pages(_path("channels", channel, "messages"), dict, params)

    def timeline(
        self, channel: str, *, from_: datetime | None = None, to: datetime | None = None
    ) -> Pages[Resource]:
        """List the messages that are due in the future, the earliest first."""
        return Pages(_path("channels", channel, "timeline"), dict, given(from_=from_, to=to))

    def timeline_histogram(
        self,
        channel: str,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        width: int = 60,
    ) -> Call[Resource]:
        """Return the number of messages that are due in each interval of ``width`` seconds."""
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
        """Change the due time or priority of a waiting message.

        Raises `Conflict` if the message no longer has the ``version`` that you pass, or if a
        delivery of it is in flight.
        """
        said = given(
            due_at=deliver_at, delay_ms=milliseconds(deliver_in), priority=priority, reason=reason
        )
        return _write("PATCH", _path("messages", id), said, version)

    def cancel(
        self, id: str, *, reason: str | None = None, version: int | None = None
    ) -> Call[Resource]:
        """Cancel the queued deliveries of a message. Idempotent."""
        params = given(reason=reason)
        return _write("DELETE", _path("messages", id), None, version, params)

    def move_many(
        self, moves: Iterable[Mapping[str, Any]], *, reason: str | None = None
    ) -> Call[list[ItemResult]]:
        """Move up to 200 messages, each independently of the others.

        A move has ``id`` and one or more of ``deliver_at``, ``deliver_in``, ``priority`` and
        ``version``, with the same meaning as in `move`.
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
        """Cancel up to 200 messages, each independently of the others."""
        return _many("cancel", [{"id": id} for id in ids], reason)

    # -- Channels and consumers ------------------------------------------------------------------

    def create_channel(self, /, channel: str, **fields: Any) -> Call[Resource]:
        """Create a channel or replace its settings. Idempotent."""
        return _write("PUT", _path("channels", channel), fields)

    def channel(self, channel: str) -> Call[Resource]:
        """Return a channel."""
        return _get("channels", channel)

    def channels(self) -> Pages[Resource]:
        """List the channels that the key may use."""
        return Pages(_path("channels"), dict)

    def create_event_type(self, /, channel: str, name: str, **fields: Any) -> Call[Resource]:
        """Register or replace an event type with ``schema``, ``example`` and ``description``."""
        return _write("PUT", _path("channels", channel, "event-types", name), fields)

    def event_types(self, channel: str) -> Pages[Resource]:
        """List the event types that are registered on a channel."""
        return Pages(_path("channels", channel, "event-types"), dict)

    def delete_event_type(self, channel: str, name: str) -> Call[None]:
        """Delete an event type. The broker then accepts messages of that type unchecked."""
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
        """Register a consumer or replace its settings. Idempotent: call it when a service starts.

        ``events`` are event types and patterns such as ``order.*``; none means all events. A
        consumer without ``url`` is a pull consumer (``mode="pull"``). ``fields`` are those of the
        API, such as ``max_attempts``, ``retry`` and ``retry_overrides``. Only the result that
        creates the consumer contains the signing secret, as ``secret``.
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
        """Return a consumer."""
        return _get("channels", channel, "consumers", consumer)

    def consumers(self, channel: str, *, state: str | None = None) -> Pages[Resource]:
        """List the consumers of a channel; without ``state`` all except retired ones."""
        return Pages(_path("channels", channel, "consumers"), dict, given(state=state))

    def retire_consumer(self, channel: str, consumer: str) -> Call[None]:
        """Retire a consumer: cancel its queued deliveries and keep its history."""
        return _delete("channels", channel, "consumers", consumer)

    def pause_consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """Stop deliveries to a consumer. After it returns, no new request begins."""
        return _write("POST", _path("channels", channel, "consumers", consumer, "pause"))

    def resume_consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """Resume deliveries after a pause, or after the broker disabled the consumer."""
        return _write("POST", _path("channels", channel, "consumers", consumer, "resume"))

    def rotate_secret(
        self, channel: str, consumer: str, *, overlap: int = 86_400
    ) -> Call[Resource]:
        """Create a signing secret (``secret``). Old ones keep signing for ``overlap`` seconds."""
        place = _path("channels", channel, "consumers", consumer, "secrets")
        return _post(place, {"overlap_s": overlap}, is_repeatable=False)

    def test_consumer(self, channel: str, consumer: str) -> Call[Resource]:
        """Send one signed sample now, and return the consumer's response."""
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
        """The call that `receive_batch` sends."""
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
            # With `auto_ack` the messages of a lost response count as delivered. A repeat gets
            # other messages, like any further call, so it is safe.
            wait_s=wait,
        )

    def ack(self, leases: Lease | Iterable[Lease]) -> Call[Settled]:
        """Acknowledge up to 100 messages by their leases, as delivered."""
        return _settle("ack", leases)

    def nack(
        self,
        leases: Lease | Iterable[Lease],
        *,
        delay: int | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> Call[Settled]:
        """Report a failed attempt. The broker retries after ``delay`` seconds.

        Without ``delay``, the consumer's retry policy sets the time. With ``final`` the delivery is
        dead at once. The console shows ``error`` to people; up to 300 characters are sent.
        """
        said = error[:300] if error else None
        return _settle("nack", leases, delay_s=delay, error=said, final=final or None)

    def extend(self, leases: Lease | Iterable[Lease], lease: int) -> Call[Settled]:
        """Make leases end ``lease`` seconds from now."""
        return _settle("extend", leases, lease_s=lease)

    def release(
        self, leases: Lease | Iterable[Lease], *, delay: int | None = None
    ) -> Call[Settled]:
        """Return messages without counting a failure, due at once or after ``delay`` seconds."""
        return _settle("release", leases, delay_s=delay)

    # -- Deliveries, replays ---------------------------------------------------------------------

    def delivery(self, id: str) -> Call[Resource]:
        """Return a delivery with its attempts."""
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
        """List the deliveries of a consumer, newest first."""
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
        """List the dead letters of a consumer, newest first."""
        place = _path("channels", channel, "consumers", consumer, "dead-letters")
        params = given(outcome=outcome, event_type=event_type, from_=from_, to=to)
        return Pages(place, dict, params)

    def replay_delivery(self, id: str, *, reason: str | None = None) -> Call[Resource]:
        """Send a finished delivery again now, with a new budget of attempts."""
        said = given(reason=reason)
        return _post(_path("deliveries", id, "replay"), said, is_repeatable=False)

    def cancel_delivery(self, id: str, *, reason: str | None = None) -> Call[Resource]:
        """Cancel a queued delivery."""
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
        """Replay the deliveries that match all conditions, each at most once.

        ``states`` defaults to ``["dead"]``; ``ids`` are ids of deliveries. With ``dry_run`` the
        broker sends nothing, and the result has the number of matches.
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
        """Return a replay with its progress."""
        return _get("replays", id)

    def replays(self, *, state: str | None = None) -> Pages[Resource]:
        """List the replays, newest first."""
        return Pages(_path("replays"), dict, given(state=state))

    def cancel_replay(self, id: str) -> Call[Resource]:
        """Stop a replay. Deliveries that it has already queued are still sent."""
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
        """Create deliveries of stored messages that match a consumer's filter and it never got."""
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
        """List the messages sent to a consumer, oldest first, after the message ``after``."""
        place = _path("channels", channel, "consumers", consumer, "messages")
        return Pages(place, dict, given(after=after, limit=200))


class ScheduleOperations:
    """The operations on the schedules of one channel."""

    channel: str

    def put(self, /, name: str, body: Any = None, **fields: Any) -> Call[Resource]:
        """Create or replace a schedule. Idempotent.

        ``cron="0 9 * * 1-5"`` or ``every=seconds`` sets the times, ``body`` the message. See
        docs/api.md, "Schedules", for the other fields.
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
        """Return a schedule, with its next occurrences and the results of the last ones."""
        return Call("GET", _schedules(self.channel, name), _json)

    def list(self, *, state: str | None = None) -> Pages[Resource]:
        """List the schedules of the channel, newest first, without their bodies."""
        return Pages(_schedules(self.channel), dict, given(state=state))

    def delete(self, name: str) -> Call[None]:
        """Delete a schedule. Its messages are kept."""
        return Call("DELETE", _schedules(self.channel, name), _nothing)

    def pause(self, name: str) -> Call[Resource]:
        """Pause a schedule: publish nothing until `resume`."""
        return _write("POST", _schedules(self.channel, name, "pause"))

    def resume(self, name: str) -> Call[Resource]:
        """Resume a schedule. Occurrences during the pause are not published."""
        return _write("POST", _schedules(self.channel, name, "resume"))

    def run(self, name: str) -> Call[Message]:
        """Publish the schedule's message now, in addition to its occurrences."""
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
    """Return a write that is idempotent, unless it has a ``version``."""
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
        # If the write took effect, a repeat would conflict with the new version.
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
        raise ValueError(f"{len(names)} leases in one call; the limit is {MAX_LEASES}.")
    return Call(
        "POST",
        _path("leases", what),
        lambda response: Settled.from_json(response.json()),
        headers={"Content-Type": "application/json"},
        content=as_json({"leases": names, **given(**fields)}),
    )
