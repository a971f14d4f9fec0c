"""Register consumers, and pause, resume or retire them."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from channels_app.access.principal import Principal
from channels_app.core import http, names
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import (
    BrokerError,
    Conflict,
    FieldError,
    Invalid,
    NotFound,
)
from channels_app.core.http import ALWAYS, Precondition
from channels_app.core.values import MASK
from channels_app.database import clock, transactions
from channels_app.models import AuditEntry, Channel, Consumer, ConsumerSecret, Team
from channels_app.models.base import BATCH_SIZE
from channels_app.registry import configuration, data_encryption, inbound_addresses
from channels_app.registry.resource import WriteResult, assign
from channels_app.serializers.consumers import ConsumerSerializer

State = Consumer.State
MAX_REASON_LENGTH = 200
"""Maximum length of the reason that the consumer's row stores and its page shows."""
_ACTIONS = {
    State.PAUSED: "consumer.pause",
    State.ACTIVE: "consumer.resume",
    State.RETIRED: "consumer.retire",
}
MAX_CHAIN_LENGTH = 5
"""Maximum number of dead-letter channels in a row (delivery/core/dead_letters.MAX_HOPS)."""


@dataclass(frozen=True, slots=True)
class _Order:
    """One registration as requested."""

    channel: str
    client_id: str
    values: dict[str, Any]
    principal: Principal
    condition: Precondition
    create: bool
    secret: bytes | None = field(default=None, repr=False)
    """See ``Registration``."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One consumer for ``put_all``."""

    channel: str
    client_id: str
    values: Mapping[str, Any]
    secret: bytes | None = field(default=None, repr=False)
    """Signing secret for a consumer that this creates; None: the broker generates one."""


def write(
    channel: str,
    client_id: str,
    values: Mapping[str, Any],
    *,
    partial: bool,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Consumer]:
    """Create or replace the consumer; with ``partial`` change settings of an existing one.

    Writing the same values again changes nothing. A retired consumer is revived with a new secret;
    its history stays. ``secrets`` holds the ``whsec_...`` of a created one, which is never shown
    again. Its dead-letter channel must be one on which the principal may publish. Raises Invalid,
    NotFound (unknown channel, or another tenant's consumer) and PreconditionFailed.
    """
    wanted = _clean(ConsumerSerializer(partial=partial), client_id, values)
    order = _Order(channel, client_id, wanted, principal, condition, create=not partial)
    (done,) = _run_all([order])
    if isinstance(done, BrokerError):
        raise done
    return done


put, patch = functools.partial(write, partial=False), functools.partial(write, partial=True)


def put_all(
    wanted: Iterable[Registration], *, principal: Principal
) -> list[WriteResult[Consumer] | BrokerError]:
    """``put`` many consumers in a few statements; each one succeeds or fails alone.

    Each consumer may appear only once.
    """
    done: dict[int, WriteResult[Consumer] | BrokerError] = {}
    orders: dict[int, _Order] = {}
    serializer = ConsumerSerializer()
    for place, registration in enumerate(wanted):
        try:
            clean = _clean(serializer, registration.client_id, registration.values)
        except Invalid as refused:
            done[place] = refused
        else:
            orders[place] = _Order(
                *(registration.channel, registration.client_id, clean, principal, ALWAYS),
                create=True,
                secret=registration.secret,
            )
    done |= zip(orders, _run_all(list(orders.values())), strict=True)
    return [done[place] for place in sorted(done)]


def pause(
    channel: str,
    client_id: str,
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Consumer]:
    """Stop deliveries until the consumer is resumed; new messages wait.

    Raises NotFound, PreconditionFailed, and Conflict for a disabled consumer, which stays disabled.
    """
    return transactions.run(lambda: _switch(channel, client_id, State.PAUSED, principal, condition))


def resume(
    channel: str,
    client_id: str,
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Consumer]:
    """Deliver again what waits, after a pause or after the broker disabled the consumer.

    Raises NotFound and PreconditionFailed.
    """
    return transactions.run(lambda: _switch(channel, client_id, State.ACTIVE, principal, condition))


def retire(
    channel: str,
    client_id: str,
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Consumer]:
    """Unregister the consumer: it gets nothing more, and its history stays.

    Raises NotFound and PreconditionFailed.
    """
    return transactions.run(
        lambda: _switch(channel, client_id, State.RETIRED, principal, condition)
    )


def describe(consumer: Consumer) -> dict[str, Any]:
    """The consumer's settings in the form in which they are written; header values are masked.

    ``headers`` is None if their encryption key is missing.
    """
    return _described(consumer, static_headers(consumer))


def decrypted() -> dict[str, Callable[[Consumer], Any]]:
    """The context of a ConsumerSerializer that shows consumers."""
    return {"headers": static_headers, "inbound_url": inbound_addresses.url}


def static_headers(consumer: Consumer) -> dict[str, str] | None:
    """The consumer's static headers, decrypted; None if their encryption key is missing."""
    try:
        return _opened_headers(consumer)
    except Unreadable:
        return None


def _clean(
    serializer: ConsumerSerializer, client_id: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    if fault := names.slug(client_id):
        raise Invalid.of([FieldError("client_id", fault)])
    return serializer.read(values)


def _run_all(orders: Sequence[_Order]) -> list[WriteResult[Consumer] | BrokerError]:
    # A concurrent insert of the same name makes ours collide; the retry then replaces that row.
    return transactions.run(lambda: _write(orders), on_collision=lambda: None)


def _write(orders: Sequence[_Order]) -> list[WriteResult[Consumer] | BrokerError]:
    """Write all valid orders in a few statements; each consumer appears only once."""
    rows = _NamedRows(orders)
    done: list[WriteResult[Consumer] | BrokerError] = []
    written: list[_Written] = []
    for order in orders:
        try:
            change = _change(order, rows)
        except BrokerError as refused:
            done.append(refused)
            continue
        if isinstance(change, _Written):
            written.append(change)
            done.append(change.registered)
        else:
            done.append(WriteResult(change))
    Consumer.save_all([change.registered.row for change in written])
    _drop_secrets(written)
    ConsumerSecret.objects.bulk_create([secret for change in written for secret in change.secrets])
    entries = [entry for change in written for entry in change.entries]
    AuditEntry.objects.bulk_create(entries, batch_size=BATCH_SIZE)
    return done


class _NamedRows:
    """Rows that the registrations refer to, read once for all; the consumers are locked."""

    def __init__(self, orders: Sequence[_Order]) -> None:
        slugs = {order.channel for order in orders}
        self.channels = {row.slug: row for row in Channel.objects.filter(slug__in=slugs)}
        locked = Consumer.objects.select_for_update().filter(
            channel__in=self.channels.values(),
            client_id__in=[order.client_id for order in orders],
        )
        ordered = locked.order_by("id").prefetch_related("team", "dead_letter_channel")
        consumers = ordered if self.channels else ()
        self.consumers = {(row.channel_id, row.client_id): row for row in consumers}
        teams = {order.values.get("team") for order in orders} - {None}
        rows = Team.objects.filter(slug__in=teams) if teams else ()
        self.teams: dict[str | None, Team] = {row.slug: row for row in rows}
        wanted = {order.values.get("dead_letter_channel") for order in orders} - {None}
        targets = Channel.objects.filter(slug__in=wanted) if wanted else ()
        self.dead_letter_channels: dict[str | None, Channel] = {row.slug: row for row in targets}
        signing = [row.id for row in self.consumers.values() if _signs_v1a(row)]
        pairs = ConsumerSecret.objects.filter(consumer_id__in=signing, expires_at=None)
        self.with_pair = (
            {row.consumer_id for row in pairs.filter(scheme=ConsumerSecret.Scheme.V1A)}
            if signing
            else set()
        )
        """Ids of the consumers that have a current key pair."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A consumer to write, with its new secrets and audit entries."""

    registered: WriteResult[Consumer]
    secrets: list[ConsumerSecret]
    entries: list[AuditEntry]


def _change(order: _Order, rows: _NamedRows) -> Consumer | _Written:
    """Apply an order; returns only the consumer if nothing changes."""
    consumer, live = _find(order, rows)
    before = describe(consumer) if live else None
    former_team_id = consumer.team_id
    stored = given = static_headers(consumer) if live else {}
    address = inbound_addresses.load(consumer) if live and "ack" in order.values else None
    if stored is None and MASK in order.values.get("headers", {}).values():
        _opened_headers(consumer)  # raises with the missing key: masked values cannot be kept
    _set(consumer, order, rows)
    moved = "ack" in order.values and inbound_addresses.store(consumer, address)
    if "headers" in order.values:
        given = _unmask(order.values["headers"], stored or {})
    after = _described(consumer, given)
    if before == after and given == stored and not moved:
        return consumer
    if given is not None and (given != stored or not live):
        _encrypt_headers(consumer, given)
    if not live:
        consumer.state, consumer.state_reason = Consumer.State.ACTIVE, ""
        consumer.state_changed_at = clock.now()
    text, secrets = _generated(
        consumer, order.secret, renew=not live, has_pair=consumer.id in rows.with_pair
    )
    target = f"consumer:{order.channel}/{order.client_id}"
    entries = AuditEntry.entries(
        order.principal.actor,
        "consumer.update" if live else "consumer.create",
        target,
        team_id=consumer.team_id,
        former_team_id=former_team_id,
        reason=order.principal.reason,
        before=before,
        after=after,
    )
    if order.secret and not live:
        entries += AuditEntry.entries(
            order.principal.actor,
            "consumer.adopt_secret",
            target,
            team_id=consumer.team_id,
            after={"overlap_s": 0},
        )
    done = WriteResult(consumer, created=not live, changed=True, secrets=text)
    return _Written(done, secrets, entries)


def _find(order: _Order, rows: _NamedRows) -> tuple[Consumer, bool]:
    """The consumer, new if necessary, and whether it is registered already."""
    channel = rows.channels.get(order.channel)
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {order.channel}.")
    consumer = rows.consumers.get((channel.id, order.client_id))
    live = consumer is not None and consumer.state != Consumer.State.RETIRED
    if (consumer and not order.principal.owns(consumer.team_id)) or not (live or order.create):
        raise NotFound("unknown_consumer", f"The channel has no consumer {order.client_id}.")
    order.condition.require(consumer.version if consumer and live else None, "consumer")
    if consumer is None:
        consumer = Consumer(channel=channel, client_id=order.client_id)
        consumer.team_id = order.principal.team_id
    return consumer, live


def _set(consumer: Consumer, order: _Order, rows: _NamedRows) -> None:
    values = dict(order.values)
    values.pop("headers", None)
    if "team" in values:
        _set_team(consumer, values.pop("team"), order.principal, rows)
    if "dead_letter_channel" in values:
        _set_dead_letter_channel(consumer, values.pop("dead_letter_channel"), order, rows)
    assign(consumer, values)
    _check_url(consumer, order.values)


def _set_team(consumer: Consumer, slug: str | None, principal: Principal, rows: _NamedRows) -> None:
    team = rows.teams.get(slug)
    missing = slug is not None and team is None
    if missing or not principal.owns(team.id if team else None):
        fault = FieldError("team", f"There is no team {slug} that this key may register for.")
        raise Invalid.of([fault])
    consumer.team = team


def _set_dead_letter_channel(
    consumer: Consumer, slug: str | None, order: _Order, rows: _NamedRows
) -> None:
    """Reject a channel on which the caller may not publish, or that leads back to the consumer."""
    target, former = rows.dead_letter_channels.get(slug), consumer.dead_letter_channel
    if slug is not None and (former is None or former.slug != slug):
        may = target is not None and order.principal.may_publish(target)
        fault = "" if may else f"There is no channel {slug} that you may publish on."
        if target and not fault:
            fault = _chain_fault(consumer.channel_id, target)
        if fault:
            raise Invalid.of([FieldError("dead_letter_channel", fault)])
    consumer.dead_letter_channel = target


def _chain_fault(channel_id: int, target: Channel) -> str:
    """Why ``target`` cannot be the dead-letter channel of that channel; '' if it can."""
    ends = {target.id}
    for _ in range(MAX_CHAIN_LENGTH):
        if channel_id in ends:
            return f"Dead letters from {target.slug} would lead back to this channel."
        behind = Consumer.objects.filter(channel_id__in=ends, dead_letter_channel__isnull=False)
        behind = behind.exclude(state=Consumer.State.RETIRED)
        ends = {row.dead_letter_channel_id or 0 for row in behind.only("dead_letter_channel_id")}
        if not ends:
            return ""
    return f"At most {MAX_CHAIN_LENGTH} dead-letter channels can follow one another."


def _check_url(consumer: Consumer, values: Mapping[str, Any]) -> None:
    if consumer.mode == Consumer.Mode.PULL:
        if values.get("url"):
            raise Invalid.of([FieldError("url", "A pull consumer has no address.")])
        consumer.url = ""
    elif not consumer.url:
        raise Invalid.of([FieldError("url", "A push consumer needs an address.")])


def _unmask(given: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    by_name = {http.canonical(name): value for name, value in stored.items()}
    masked = [name for name, value in given.items() if value == MASK]
    if missing := [name for name in masked if http.canonical(name) not in by_name]:
        fault = FieldError("headers", f"{MASK} keeps a stored value, but {missing[0]} has none.")
        raise Invalid.of([fault])
    return {**given, **{name: by_name[http.canonical(name)] for name in masked}}


def _encrypt_headers(consumer: Consumer, given: Mapping[str, str]) -> None:
    sealed = b""
    if given:
        plain = json.dumps(given).encode()
        sealed, _ = data_encryption.encrypt_for_consumer(
            consumer.channel_id, consumer.client_id, plain
        )
    consumer.headers_sealed = sealed


def _generated(
    consumer: Consumer, chosen: bytes | None, *, renew: bool, has_pair: bool
) -> tuple[tuple[str, ...], list[ConsumerSecret]]:
    """Texts of new secrets to show to the owner, and the rows of the missing secrets."""
    secrets: list[ConsumerSecret] = []
    shown: tuple[str, ...] = ()
    if renew and chosen:
        secrets = [data_encryption.chosen_secret(consumer, chosen)]
    elif renew:
        text, secret = data_encryption.new_secret(consumer)
        shown, secrets = (text,), [secret]
    if _signs_v1a(consumer) and (renew or not has_pair):
        secrets.append(data_encryption.new_key_pair(consumer))
    return shown, secrets


def _signs_v1a(consumer: Consumer) -> bool:
    return ConsumerSecret.Scheme.V1A in consumer.signing


def _drop_secrets(written: Sequence[_Written]) -> None:
    """Delete the secrets of revived consumers, and key pairs that are not wanted any more."""
    old = [change.registered for change in written if change.registered.row.version > 1]
    revived = [done.row.id for done in old if done.created]
    if revived:
        ConsumerSecret.objects.filter(consumer_id__in=revived).delete()
    without_v1a = [done.row.id for done in old if not (done.created or _signs_v1a(done.row))]
    if without_v1a:
        pairs = ConsumerSecret.objects.filter(consumer_id__in=without_v1a)
        pairs.filter(scheme=ConsumerSecret.Scheme.V1A).delete()


def _switch(
    channel: str,
    client_id: str,
    state: State,
    principal: Principal,
    condition: Precondition,
) -> WriteResult[Consumer]:
    consumer = configuration.consumer(channel, client_id, principal, condition)
    if state == consumer.state:
        return WriteResult(consumer)
    if state == State.PAUSED and consumer.state == State.DISABLED:
        raise Conflict("consumer_disabled", "The consumer is disabled already; resume it first.")
    before = {"state": consumer.state, "state_reason": consumer.state_reason}
    consumer.state = state
    consumer.state_reason = "" if state == State.ACTIVE else principal.reason[:MAX_REASON_LENGTH]
    consumer.state_changed_at = clock.now()
    consumer.save()
    AuditEntry.record(
        principal.actor,
        _ACTIONS[state],
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=principal.reason,
        before=before,
        after={"state": consumer.state, "state_reason": consumer.state_reason},
    )
    return WriteResult(consumer, changed=True)


def _opened_headers(consumer: Consumer) -> dict[str, str]:
    sealed = bytes(consumer.headers_sealed)
    if not sealed:
        return {}
    text = data_encryption.decrypt_for_consumer(consumer.channel_id, consumer.client_id, sealed)
    return dict(json.loads(text))


def _described(consumer: Consumer, headers: Mapping[str, str] | None) -> dict[str, Any]:
    masked = None if headers is None else dict.fromkeys(headers, MASK)
    return ConsumerSerializer.describe(consumer) | {"headers": masked}
