"""Create rows for tests: each factory makes a valid one, traits make special ones.

Call ``XFactory.create(trait=True)``, which is the typed form.
"""

# factory-boy is typed in part.
# mypy: disable-error-code="no-untyped-call, untyped-decorator, no-any-return"

from datetime import timedelta
from typing import Any

from django.utils import timezone
from factory.declarations import (
    LazyAttribute,
    LazyFunction,
    SelfAttribute,
    Sequence,
    SubFactory,
    Trait,
)
from factory.django import DjangoModelFactory
from factory.helpers import post_generation

from channels_app.core import encryption, keys
from channels_app.models import (
    ApiKey,
    Channel,
    Consumer,
    ConsumerSecret,
    EventType,
    Message,
    MessageBody,
    Producer,
    Schedule,
    ScheduleBody,
    Team,
    new_id,
)
from channels_app.registry import data_encryption
from delivery.models import Attempt, Counter, Delivery
from delivery.models.counter import MADE

_texts: dict[str, str] = {}


def text_of(key: ApiKey) -> str:
    """Return ``hsk_...`` of a key made by a factory."""
    return _texts[key.key_id]


def bearer(key: ApiKey) -> str:
    """Return the Authorization header of a key made by a factory."""
    return f"Bearer {text_of(key)}"


def secret_of(consumer: Consumer) -> str:
    """Return ``whsec_...`` of a consumer made by a factory."""
    return _texts[f"{consumer.pk}"]


class TeamFactory(DjangoModelFactory[Team]):
    class Meta:
        model = Team

    slug = Sequence(lambda n: f"team-{n}")
    name = LazyAttribute(lambda team: team.slug.title())


class ChannelFactory(DjangoModelFactory[Channel]):
    class Meta:
        model = Channel

    class Params:
        external = Trait(exposure="external")

    slug = Sequence(lambda n: f"channel-{n}")


class EventTypeFactory(DjangoModelFactory[EventType]):
    class Meta:
        model = EventType

    channel = SubFactory(ChannelFactory)
    name = Sequence(lambda n: f"order.kind_{n}")


class ProducerFactory(DjangoModelFactory[Producer]):
    class Meta:
        model = Producer

    slug = Sequence(lambda n: f"producer-{n}")


class ApiKeyFactory(DjangoModelFactory[ApiKey]):
    """A key; ``text_of`` and ``bearer`` return its text, which no row contains."""

    class Meta:
        model = ApiKey

    class Params:
        admin = Trait(scopes=["admin"], producer=None)
        expired = Trait(expires_at=LazyFunction(lambda: _ago(1)))
        revoked = Trait(revoked_at=LazyFunction(lambda: _ago(1)))

    producer = SubFactory(ProducerFactory)
    scopes = LazyFunction(lambda: ["publish"])

    @classmethod
    def _create(cls, model_class: type[ApiKey], *args: Any, **values: Any) -> ApiKey:
        minted = keys.generate()
        if values.get("team") is not None:
            values["producer"] = None
        key = super()._create(
            model_class, *args, **values, key_id=minted.key_id, digest=minted.digest
        )
        _texts[minted.key_id] = minted.text
        return key


class ConsumerFactory(DjangoModelFactory[Consumer]):
    """A push consumer with one secret, which ``secret_of`` returns."""

    class Meta:
        model = Consumer
        skip_postgeneration_save = True

    class Params:
        paused = Trait(state="paused")
        disabled = Trait(state="disabled")
        retired = Trait(state="retired")
        pull = Trait(mode="pull", url="")

    channel = SubFactory(ChannelFactory)
    client_id = Sequence(lambda n: f"consumer-{n}")
    url = "http://127.0.0.1:9/hook"

    @post_generation
    def secret(consumer: Consumer, create: bool, text: str | None, **_: Any) -> str:
        text = text or encryption.new_secret()
        sealed, key_id = data_encryption.encrypt_for_consumer(
            consumer.channel_id, consumer.client_id, encryption.decode_secret(text)
        )
        ConsumerSecret.objects.create(consumer=consumer, sealed=sealed, key_id=key_id)
        _texts[f"{consumer.pk}"] = text
        return text


class MessageFactory(DjangoModelFactory[Message]):
    """An accepted message with its body (``body=b"..."``)."""

    class Meta:
        model = Message
        skip_postgeneration_save = True

    class Params:
        dispatched = Trait(state="dispatched")
        cancelled = Trait(state="cancelled")
        scheduled = Trait(due_at=LazyFunction(lambda: _ago(-3600)))

    id = LazyFunction(new_id)
    channel = SubFactory(ChannelFactory)
    content_type = "application/json"
    accepted_at = LazyFunction(timezone.now)
    due_at = SelfAttribute("accepted_at")

    @post_generation
    def body(message: Message, create: bool, data: bytes | None, **_: Any) -> None:
        plain = b'{"id": 1}' if data is None else data
        stored, key_id = data_encryption.encrypt_body(
            message.id, plain, encrypt=message.channel.encrypt_bodies
        )
        MessageBody.objects.create(message_id=message.id, data=stored, key_id=key_id)
        Message.objects.filter(id=message.id).update(body_bytes=len(plain))
        message.body_bytes = len(plain)


class ScheduleFactory(DjangoModelFactory[Schedule]):
    """A schedule, due in a minute, with its body (``body=b"..."``)."""

    class Meta:
        model = Schedule
        skip_postgeneration_save = True

    class Params:
        paused = Trait(state="paused", next_at=None)
        ended = Trait(state="ended", next_at=None)

    channel = SubFactory(ChannelFactory)
    name = Sequence(lambda n: f"schedule-{n}")
    every_ms = 60_000
    content_type = "application/json"
    next_at = LazyFunction(lambda: _ago(-60))

    @post_generation
    def body(schedule: Schedule, create: bool, data: bytes | None, **_: Any) -> None:
        plain = b'{"id": 1}' if data is None else data
        stored, key_id = data_encryption.encrypt_schedule(
            schedule.pk, plain, encrypt=schedule.channel.encrypt_bodies
        )
        schedule.body = ScheduleBody.objects.create(
            schedule_id=schedule.pk, data=stored, key_id=key_id
        )
        Schedule.objects.filter(pk=schedule.pk).update(body_bytes=len(plain))
        schedule.body_bytes = len(plain)


class DeliveryFactory(DjangoModelFactory[Delivery]):
    """A queued delivery, with counters as the steps write them."""

    class Meta:
        model = Delivery

    class Params:
        in_flight = Trait(
            state="in_flight",
            reason="claimed",
            attempt_count=1,
            lease_owner=1,
            due_at=LazyFunction(lambda: _ago(-30)),
        )
        retrying = Trait(
            reason="retry",
            attempt_count=1,
            failure_count=1,
            outcome="server_error",
            status_code=500,
            due_at=LazyFunction(lambda: _ago(-60)),
        )
        delivered = Trait(
            state="delivered",
            reason="delivered",
            attempt_count=1,
            outcome="delivered",
            status_code=200,
            due_at=None,
            finished_at=LazyFunction(timezone.now),
        )
        dead = Trait(
            state="dead",
            reason="exhausted",
            attempt_count=3,
            failure_count=3,
            outcome="server_error",
            status_code=500,
            due_at=None,
            finished_at=LazyFunction(timezone.now),
        )
        cancelled = Trait(
            state="cancelled",
            reason="cancelled",
            due_at=None,
            finished_at=LazyFunction(timezone.now),
        )

    id = LazyFunction(new_id)
    consumer = SubFactory(ConsumerFactory)
    message = SubFactory(
        MessageFactory,
        channel=SelfAttribute("..consumer.channel"),
        dispatched=True,
        consumer_count=1,
    )
    channel = SelfAttribute("consumer.channel")
    event_type = SelfAttribute("message.event_type")
    priority = SelfAttribute("message.priority")
    accepted_at = SelfAttribute("message.accepted_at")
    due_at = SelfAttribute("message.due_at")

    @classmethod
    def _create(cls, model_class: type[Delivery], *args: Any, **values: Any) -> Delivery:
        delivery = super()._create(model_class, *args, **values)
        changes = {(delivery.consumer_id, delivery.state): 1, (delivery.consumer_id, MADE): 1}
        Counter.add(changes, 0)
        return delivery


class AttemptFactory(DjangoModelFactory[Attempt]):
    class Meta:
        model = Attempt

    id = LazyFunction(new_id)
    delivery = SubFactory(DeliveryFactory, retrying=True)
    number = 1
    started_at = LazyFunction(timezone.now)
    outcome = "server_error"
    status_code = 500


def _ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)
