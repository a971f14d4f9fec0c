"""``manage.py generate_key`` and ``reencrypt``: a key rotation leaves nothing behind."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from channels_app import conf, sealing
from channels_app.models import Channel, Consumer, ConsumerSecret, Message, MessageBody, new_id
from channels_app.rules.encryption import Keyring, generate_key
from channels_app.steps import reseal
from tests.support.factories import ScheduleFactory

pytestmark = pytest.mark.django_db

OLD, NEW = generate_key(), generate_key()
Install = Callable[..., Keyring]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install encryption keys, the first of them writing."""

    def install_keys(*keys: str) -> Keyring:
        keyring = Keyring.from_texts(keys)
        monkeypatch.setattr(sealing, "keyring", lambda: keyring)
        monkeypatch.setattr(reseal, "keyring", lambda: keyring)
        monkeypatch.setattr(conf, "keyring", lambda: keyring)
        return keyring

    return install_keys


def make_rows(channel: Channel, bodies: int = 3) -> Consumer:
    sealed, key_id = sealing.seal_for_consumer(channel.id, "shop", b"secret")
    headers, _ = sealing.seal_for_consumer(channel.id, "shop", b'{"X-Token":"t"}')
    inbound, _ = sealing.seal_for_consumer(channel.id, "shop", b"address")
    consumer = Consumer.objects.create(
        channel=channel, client_id="shop", headers_sealed=headers, inbound_sealed=inbound
    )
    ConsumerSecret.objects.create(consumer=consumer, sealed=sealed, key_id=key_id)
    for number in range(bodies):
        message = make_message(channel)
        data, key_id = sealing.seal_body(message.id, b"body %d" % number, encrypt=True)
        MessageBody.objects.create(message=message, data=data, key_id=key_id)
    return consumer


def make_message(channel: Channel) -> Message:
    now = timezone.now()
    return Message.objects.create(id=new_id(), channel=channel, accepted_at=now, due_at=now)


def reencrypt(**options: Any) -> str:
    out = StringIO()
    call_command("reencrypt", stdout=out, **options)
    return out.getvalue()


def test_a_new_key_stands_alone_on_stdout_and_seals() -> None:
    out = StringIO()
    call_command("generate_key", stdout=out)

    (key,) = out.getvalue().splitlines()
    ring = Keyring.from_texts([key])
    assert ring.open(ring.seal(b"plain", b"row"), b"row") == b"plain"


def test_after_a_rotation_the_new_key_alone_opens_everything(install: Install) -> None:
    install(OLD)
    channel = Channel.objects.create(slug="orders")
    make_rows(channel)
    ScheduleFactory.create(channel=channel, body=b"tick")
    version = Consumer.objects.get().version
    install(NEW, OLD)

    said = reencrypt()

    assert "1 signing secret: 1 sealed again" in said
    assert "1 header set: 1 sealed again" in said
    assert "1 inbound secret: 1 sealed again" in said
    assert "1 schedule body: 1 sealed again" in said
    assert "3 message bodies: 3 sealed again" in said
    new = install(NEW)
    secret, consumer = ConsumerSecret.objects.get(), Consumer.objects.get()
    owner = (channel.id, "shop")
    assert secret.key_id == new.primary_id
    assert sealing.open_for_consumer(*owner, bytes(secret.sealed)) == b"secret"
    assert sealing.open_for_consumer(*owner, bytes(consumer.headers_sealed)) == b'{"X-Token":"t"}'
    assert sealing.open_for_consumer(*owner, bytes(consumer.inbound_sealed)) == b"address"
    assert consumer.version == version
    bodies = MessageBody.objects.order_by("message_id")
    assert [row.key_id for row in bodies] == [new.primary_id] * 3
    assert [sealing.open_body(row.message_id, bytes(row.data)) for row in bodies] == [
        b"body 0",
        b"body 1",
        b"body 2",
    ]


def test_a_second_run_changes_nothing(install: Install) -> None:
    install(OLD)
    make_rows(Channel.objects.create(slug="orders"))
    install(NEW, OLD)
    reencrypt()
    before = list(MessageBody.objects.values_list("data", flat=True))

    said = reencrypt()

    assert "3 message bodies: 0 sealed again" in said
    assert list(MessageBody.objects.values_list("data", flat=True)) == before


def test_more_rows_than_one_batch_and_one_read_are_all_done(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reseal, "BATCH", 4)
    monkeypatch.setattr(reseal, "BODIES_AT_ONCE", 3)
    install(OLD)
    make_rows(Channel.objects.create(slug="orders"), bodies=9)
    install(NEW, OLD)

    assert "9 message bodies: 9 sealed again" in reencrypt()


def test_plain_bodies_stay_plain(install: Install) -> None:
    install(NEW)
    message = make_message(Channel.objects.create(slug="orders"))
    data, key_id = sealing.seal_body(message.id, b"open", encrypt=False)
    MessageBody.objects.create(message=message, data=data, key_id=key_id)

    assert "1 message body: 0 sealed again" in reencrypt()
    assert MessageBody.objects.get().key_id == ""


def test_a_missing_old_key_is_named_and_the_rest_is_done(install: Install) -> None:
    lost = install(generate_key())
    channel = Channel.objects.create(slug="orders")
    make_rows(channel, bodies=1)
    install(OLD)
    message = make_message(channel)
    data, key_id = sealing.seal_body(message.id, b"body", encrypt=True)
    MessageBody.objects.create(message=message, data=data, key_id=key_id)
    new = install(NEW, OLD)

    with pytest.raises(CommandError) as caught:
        reencrypt()

    assert "4 rows could not be opened" in str(caught.value)
    assert f"The encryption key {lost.primary_id} is not installed" in str(caught.value)
    assert MessageBody.objects.get(message=message).key_id == new.primary_id
