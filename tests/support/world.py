"""Create one object of each kind, so that URLs with real names refer to something."""

from dataclasses import dataclass

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import ApiKey, Consumer, Producer, Team
from channels_app.serializers.acks import CorrelationSerializer
from delivery import replay
from delivery.core.leases import Lease
from delivery.core.ordering import key_number
from delivery.models import Delivery, OrderingKey, Replay
from delivery.pull import leasing
from tests.support import factories


@dataclass(frozen=True, slots=True)
class World:
    """Objects of one team, and the URL parameters that name them."""

    consumer: Consumer
    producer: Producer
    key: ApiKey
    """Key of the producer."""
    dead: Delivery
    queued: Delivery
    """A queued delivery of the same message."""
    replay: Replay
    pull: Consumer
    """A pull consumer that holds a lease on one message."""
    lease: str
    parameters: dict[str, str]
    """By the parameter names of the URLs."""


def make(team: Team | None = None, *, exposure: str = "external") -> World:
    """Create a channel with an event type, consumers, a schedule, a producer, and traffic."""
    channel = factories.ChannelFactory.create(exposure=exposure)
    producer = factories.ProducerFactory.create(team=team)
    key = factories.ApiKeyFactory.create(producer=producer, scopes=["publish"])
    schema = {"type": "object", "required": ["id"]}
    kind = factories.EventTypeFactory.create(channel=channel, schema=schema, example={"id": 1})
    ack = {"mode": "callback", "timeout_ms": 60_000, "on_timeout": "retry"}
    called = CorrelationSerializer().read({"preset": "whatsapp-cloud"})
    consumer = factories.ConsumerFactory.create(
        channel=channel, team=team, ack=ack | {"correlation": called}
    )
    other = factories.ConsumerFactory.create(channel=channel, team=team)
    message = factories.MessageFactory.create(
        channel=channel, producer=producer, event_type=kind.name, dispatched=True, consumer_count=2
    )
    dead = factories.DeliveryFactory.create(consumer=consumer, message=message, dead=True)
    queued = factories.DeliveryFactory.create(consumer=other, message=message)
    factories.AttemptFactory.create(delivery=dead, answer_excerpt=b"private answer")
    pull = factories.ConsumerFactory.create(channel=channel, team=team, pull=True)
    held = factories.DeliveryFactory.create(consumer=pull, in_flight=True, lease_owner=-1)
    lease = Lease(held.id, pull.id, 1, 0, 0, held.accepted_at, held.accepted_at, "worker")
    schedule = factories.ScheduleFactory.create(channel=channel, producer=producer)
    wanted = replay.parse({"channel": channel.slug, "consumer": consumer.client_id})
    principal = Principal(
        f"key:{key.key_id}", "test", team_id=team.id if team else None, producer=producer
    )
    asked = replay.create(wanted, [consumer], principal, now=clock.now())
    key_row = OrderingKey.objects.create(
        id=key_number(consumer.id, "room-7"),
        consumer=consumer,
        ordering_key="room-7",
        head_id=dead.id,
        head_at=clock.now(),
        blocked_at=clock.now(),
    )
    parameters = {
        "channel": channel.slug,
        "client_id": consumer.client_id,
        "name": kind.name,
        "schedule": schedule.name,
        "team": (team or factories.TeamFactory.create()).slug,
        "producer": producer.slug,
        "key_id": key.key_id,
        "message_id": ids.to_public(ids.MESSAGE, message.id),
        "delivery_id": ids.to_public(ids.DELIVERY, dead.id),
        "replay_id": ids.to_public(ids.REPLAY, asked.id),
        "ordering_key_id": ids.to_public(ids.ORDERING_KEY, key_row.id),
    }
    return World(
        *(consumer, producer, key, dead, queued, asked, pull, leasing.token(lease), parameters)
    )
