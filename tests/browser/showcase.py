"""The portal's rows: people, channels and webhooks in every state."""

import random
from datetime import datetime, timedelta

from django.contrib.auth.models import Permission, User

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Membership, Team, new_id
from delivery.models import ConsumerHealth, Delivery, Notification
from tests.browser.person import GUEST, OWNER, PASSWORD, STRANGER
from tests.support.factories import (
    ApiKeyFactory,
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    ProducerFactory,
    TeamFactory,
)

TEAM, EMPTY, FOREIGN = "harbour", "pier", "quay"
"""The owner's teams: one with everything, one empty, one that she may only view."""
CHANNEL = "shipments"
STEADY, FAILING, PAUSED, DISABLED, FRESH = (
    "invoices",
    "warehouse",
    "old-ledger",
    "customs-and-excise-declarations-gateway",
    "homepage",
)
PULLED = "label-printers-of-the-second-floor"
"""A pull consumer."""
PILE = 60
EXAMPLE = {
    "shipment": "shp_8f2c1d",
    "carrier": "North Sea Lines",
    "items": [{"sku": "BOX-40", "count": 12}, {"sku": "PALLET", "count": 3}],
    "arrives": "2026-11-24T06:30:00Z",
}
SCHEMA = {
    "type": "object",
    "required": ["shipment", "carrier"],
    "properties": {
        "shipment": {"type": "string", "pattern": "^shp_[0-9a-f]+$"},
        "carrier": {"type": "string"},
        "items": {"type": "array", "items": {"type": "object"}},
        "arrives": {"type": "string", "format": "date-time"},
    },
}
BODIES = (
    (b'{"shipment": "shp_8f2c1d", "carrier": "North Sea Lines", "arrives": "2026-11-24T06:30:00Z"}',
     "application/json"),
    (b"shipment=shp_8f2c1d&carrier=North+Sea+Lines&note=Ring+twice%2C+please",
     "application/x-www-form-urlencoded"),
    ("Shipment 8f2c1d has left Ærøskøbing.\nExpected on Tuesday.\n".encode(), "text/plain"),
    (bytes(range(160, 256)), "application/octet-stream"),
)  # fmt: skip
"""One body of each kind that the page shows in its own way."""
ANSWER = "HTTP/1.1 503 Service Unavailable\r\nServer: nginx\r\nRetry-After: 30\r\n"


def fill(receiver: str) -> None:
    """Make all rows; webhooks that can be reached have URLs at ``receiver``."""
    channel = channels()
    team = people()
    keys(team)
    rng = random.Random(17)
    for name, path in ((STEADY, "/hooks/shipments?tenant=4711&token=0af3c9&region=eu-north"),
                       (FAILING, "/warehouse")):  # fmt: skip
        webhook = _webhook(channel, team, name, f"{receiver}{path}")
        day(webhook, rng, is_steady=name == STEADY)
    several_attempts(Consumer.objects.get(channel=channel, client_id=STEADY))
    _webhook(channel, team, PAUSED, "https://archive.harbour.example/in", state="paused",
             state_reason="moving to a new host, back on Monday")  # fmt: skip
    _webhook(channel, team, DISABLED, f"https://customs.example/{'declarations/' * 6}incoming",
             state="disabled", state_reason="it answered 410 Gone")  # fmt: skip
    _webhook(channel, team, FRESH, f"{receiver}/homepage")
    pulled = _webhook(channel, team, PULLED, "", mode="pull")
    DeliveryFactory.create(consumer=pulled, message__event_type="shipment.arrived")
    DeliveryFactory.create(consumer=pulled, retrying=True, message__event_type="shipment.moved")


def channels() -> Channel:
    """Make the channels and event types of the catalogue."""
    shipments = ChannelFactory.create(
        slug=CHANNEL,
        external=True,
        description="Where a shipment is, from the order to the door. One message for each step.",
    )
    for name, words in (
        ("shipment.arrived", "It stands at the door."),
        ("shipment.departed", "It left our warehouse."),
        ("shipment.delayed", "It comes later than we said; the body has the new time."),
    ):
        EventTypeFactory.create(
            channel=shipments, name=name, description=words, schema=SCHEMA, example=EXAMPLE
        )
    EventTypeFactory.create(
        channel=shipments, name="shipment.moved", description="Use departed.", deprecated=True
    )
    ChannelFactory.create(slug="tides", external=True, paused=True)
    return shipments


def people() -> Team:
    """Make an owner of several teams, her colleagues, and two people without a team."""
    owner = User.objects.create_user(OWNER, email="rosa@harbour.example", password=PASSWORD)
    owner.user_permissions.add(Permission.objects.get(codename="add_team"))
    for name in (GUEST, STRANGER):
        User.objects.create_user(name, email=f"{name}@harbour.example", password=PASSWORD)
    harbour = TeamFactory.create(slug=TEAM, name="Harbour Supplies")
    for team, role in (
        (harbour, "owner"),
        (TeamFactory.create(slug=EMPTY, name="Pier 9"), "owner"),
        (TeamFactory.create(slug=FOREIGN, name="Quay Authority of the Northern Ports"), "viewer"),
    ):
        Membership.objects.create(team=team, user=owner, role=role)
    for name, role in (("edgar", "editor"), ("wilhelmina-van-den-berg", "viewer")):
        user = User.objects.create_user(name, email=f"{name}@logistics.harbour.example")
        Membership.objects.create(team=harbour, user=user, role=role)
    return harbour


def keys(team: Team) -> None:
    """Make keys of a team and of a producer, in every state."""
    producer = ProducerFactory.create(slug="web-shop", team=team)
    soon, used = clock.now() + timedelta(days=20), clock.now() - timedelta(minutes=3)
    ApiKeyFactory.create(
        producer=producer,
        label="Shop, production",
        channels=["orders", "shipments", "invoices", "returns", "stock"],
        last_used_at=used,
    )
    for label, state in (("Deploy script", {"expires_at": soon}), ("Old laptop", {"revoked": True}),
                         ("Trial of last spring", {"expired": True})):  # fmt: skip
        ApiKeyFactory.create(team=team, label=label, scopes=["register", "read"], **state)


def day(webhook: Consumer, rng: random.Random, *, is_steady: bool) -> None:
    """Make a webhook's deliveries of the last day; the failing one has many dead letters."""
    now = clock.now()
    for number in range(48):
        at = now - timedelta(minutes=29 * number + 20)
        retried = rng.random() < 0.2
        if is_steady and number not in (5, 17):
            _delivery(webhook, at, rng, attempts=2 if retried else 1)
        elif is_steady or number > 20:
            _delivery(webhook, at, rng, attempts=3, dead=True)
    if is_steady:
        _health(webhook, "delivered", now)
        return
    for number in range(PILE - 27):
        _delivery(webhook, now - timedelta(minutes=4 * number + 3), rng, attempts=3, dead=True)
    _health(webhook, "server_error", now, failures=PILE, failing_since=now - timedelta(hours=9))
    for kind, hours, reason in (
        ("failing", 9, "The last 20 attempts failed: server error."),
        ("dead_letter", 8, "A message is dead after 3 attempts."),
        ("recovered", 30, "It takes messages again."),
    ):
        Notification.objects.create(
            consumer=webhook,
            kind=kind,
            at=now - timedelta(hours=hours),
            reason=reason,
            mailed_to=["rosa@harbour.example", "edgar@logistics.harbour.example"],
        )


def several_attempts(webhook: Consumer) -> None:
    """Make a dead letter with three attempts for each kind of body, and two waiting deliveries."""
    now = clock.now()
    for place, (body, kind) in enumerate(BODIES):
        given_up = DeliveryFactory.create(
            consumer=webhook,
            dead=True,
            status_code=503,
            message__body=body,
            message__content_type=kind,
            message__event_type="shipment.delayed",
            message__ordering_key="harbour-17",
        )
        for number in (1, 2, 3):
            AttemptFactory.create(
                delivery=given_up,
                number=number,
                started_at=now - timedelta(minutes=9 - 3 * number + place),
                status_code=503,
                total_ms=180 + 40 * number,
                connect_ms=2,
                first_byte_ms=170,
                remote_address="203.0.113.17",
                answer_headers=ANSWER,
                answer_excerpt=b"<html><body><h1>503 Service Unavailable</h1></body></html>",
            )
    DeliveryFactory.create(
        consumer=webhook,
        retrying=True,
        message__event_type="shipment.arrived",
        due_at=now + timedelta(hours=2),
    )
    DeliveryFactory.create(consumer=webhook, cancelled=True, message__event_type="shipment.moved")


def _webhook(channel: Channel, team: Team, name: str, url: str, **state: str) -> Consumer:
    return ConsumerFactory.create(
        channel=channel,
        team=team,
        client_id=name,
        url=url,
        event_types=["shipment.*"],
        state_changed_at=clock.now(),
        **state,
    )


def _delivery(
    webhook: Consumer, at: datetime, rng: random.Random, *, attempts: int, dead: bool = False
) -> Delivery:
    key = _key(at)
    made = DeliveryFactory.create(
        consumer=webhook,
        id=key,
        message__id=key,
        message__accepted_at=at,
        message__event_type=f"shipment.{rng.choice(('departed', 'arrived', 'delayed'))}",
        dead=dead,
        delivered=not dead,
        attempt_count=attempts,
        finished_at=at + timedelta(seconds=attempts),
    )
    for number in range(1, attempts + 1):
        arrived = not dead and number == attempts
        AttemptFactory.create(
            id=_key(at + timedelta(seconds=number)),
            delivery=made,
            number=number,
            started_at=at + timedelta(seconds=number),
            total_ms=round(rng.lognormvariate(4, 0.6)),
            **({"outcome": "delivered", "status_code": 200} if arrived else {}),
        )
    return made


def _key(at: datetime) -> int:
    # The low bits keep this process's keys: two rows of one instant do not collide.
    ms = int(at.timestamp() * 1000)
    return ids.first_id_at(ms) | (new_id() & ((1 << ids.TIME_SHIFT) - 1))


def _health(
    webhook: Consumer,
    outcome: str,
    now: datetime,
    failures: int = 0,
    failing_since: datetime | None = None,
) -> None:
    ConsumerHealth.objects.create(
        consumer=webhook,
        circuit="open" if failures else "closed",
        consecutive_failures=failures,
        failing_since=failing_since,
        last_outcome=outcome,
        last_success_at=None if failures else now,
        last_failure_at=now if failures else None,
        next_probe_at=now + timedelta(minutes=30) if failures else None,
    )
