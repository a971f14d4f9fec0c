"""``manage.py generate_encryption_key`` and ``rotate_keys``: a key encrypts once all know it."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from channels_app.core.encryption import Keyring, decode_secret, generate_key
from channels_app.database import clock
from channels_app.models import ApiKey, Consumer, ConsumerSecret, Message, MessageBody, new_id
from channels_app.registry import api_keys, data_encryption, reencryption
from delivery.cluster.supervisor import Supervisor
from delivery.management.commands import worker
from delivery.models import PumpSlot
from delivery.processes import registration
from tests.support.factories import (
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
    ScheduleFactory,
    secret_of,
)
from tests.support.keys import host
from tests.support.principals import acting

pytestmark = pytest.mark.django_db
OLD, NEW = generate_key(), generate_key()
Install = Callable[..., Keyring]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install encryption keys, of which the first one encrypts after a rotation."""
    monkeypatch.setattr(data_encryption, "FRESH_S", 0.0)
    with ExitStack() as hosts:
        yield lambda *keys: hosts.enter_context(host(*keys))


def a_process(*keys: str, **values: Any) -> PumpSlot:
    """Register another live process of the installation that has read these keys."""
    with host(*keys):
        held = registration.acquire(str(new_id()), PumpSlot.Kind.PUMP, 1, "127.0.0.1 1")
    assert held is not None
    PumpSlot.objects.filter(id=held.id).update(**values)
    return PumpSlot.objects.get(id=held.id)


def make_rows(bodies: int = 3) -> Consumer:
    """Create a consumer with all that is encrypted for it, and messages of its channel."""
    channel = ChannelFactory.create()

    def sealed(plain: bytes) -> bytes:
        return data_encryption.encrypt_for_consumer(channel.id, "shop", plain)[0]

    for number in range(bodies):
        MessageFactory.create(channel=channel, body=b"body %d" % number)
    consumer: Consumer = ConsumerFactory.create(
        **{"channel": channel, "client_id": "shop"},
        headers_sealed=sealed(b'{"X-Token":"t"}'),
        inbound_sealed=sealed(b"address"),
    )
    return consumer


def rotate(**options: Any) -> str:
    out = StringIO()
    call_command("rotate_keys", stdout=out, **options)
    return out.getvalue()


def test_only_the_new_key_is_on_stdout_and_it_encrypts() -> None:
    out = StringIO()
    call_command("generate_encryption_key", stdout=out)

    (key,) = out.getvalue().splitlines()
    ring = Keyring.from_texts([key])
    assert ring.open(ring.encrypt(b"plain", b"row"), b"row") == b"plain"


def test_after_a_rotation_the_new_key_decrypts_everything(install: Install) -> None:
    install(OLD)
    former = make_rows()
    ScheduleFactory.create(channel=former.channel, body=b"tick")
    install(NEW, OLD)

    said = rotate()

    assert "1 signing secret: 1 re-encrypted" in said
    assert "1 header set: 1 re-encrypted" in said
    assert "1 inbound secret: 1 re-encrypted" in said
    assert "1 schedule body: 1 re-encrypted" in said
    assert "3 message bodies: 3 re-encrypted" in said
    new = install(NEW)
    secret, consumer = ConsumerSecret.objects.get(), Consumer.objects.get()
    assert secret.key_id == new.primary_id
    assert [
        data_encryption.decrypt_for_consumer(consumer.channel_id, "shop", bytes(sealed))
        for sealed in (secret.sealed, consumer.headers_sealed, consumer.inbound_sealed)
    ] == [decode_secret(secret_of(consumer)), b'{"X-Token":"t"}', b"address"]
    assert consumer.version == former.version
    bodies = MessageBody.objects.order_by("message_id")
    assert [row.key_id for row in bodies] == [new.primary_id] * 3
    assert [data_encryption.decrypt_body(row.message_id, bytes(row.data)) for row in bodies] == [
        b"body 0",
        b"body 1",
        b"body 2",
    ]


def test_after_a_rotation_responses_and_headers_need_only_the_new_key(
    install: Install,
) -> None:
    install(OLD)
    delivery = DeliveryFactory.create(message__body=b"x")
    said = data_encryption.StoredResponse("its words", "HTTP/1.1 500 No", b"no")
    sealed = AttemptFactory.create(
        delivery=delivery,
        number=1,
        answer_excerpt=data_encryption.encrypt_response(delivery.id, 1, said),
    )
    AttemptFactory.create(delivery=delivery, number=2, answer_excerpt=b"plain", error="reset")
    AttemptFactory.create(delivery=delivery, number=3, answer_excerpt=b"", error="refused")
    headers = json.loads(
        data_encryption.store_headers(delivery.message_id, {"X-Trace": "1"}, encrypt=True)
    )
    Message.objects.filter(id=delivery.message_id).update(headers=headers)
    install(NEW, OLD)

    assert "3 responses: 1 re-encrypted" in rotate()
    assert "3 responses: 0 re-encrypted" in rotate()

    install(NEW)
    sealed.refresh_from_db()
    assert sealed.answer == said
    message = Message.objects.get()
    assert data_encryption.decrypt_headers(message.id, message.headers) == {"X-Trace": "1"}


def test_after_a_rotation_sigv4_secrets_need_only_the_new_key(install: Install) -> None:
    install(OLD)
    done = api_keys.create({"all_channels": True, "sigv4": True}, principal=acting("test"))
    api_keys.create({"all_channels": True}, principal=acting("test"))
    assert reencryption.used_keys(0) == {Keyring.from_texts([OLD]).primary_id}
    install(NEW, OLD)

    assert "1 secret access key: 1 re-encrypted" in rotate()
    assert "1 secret access key: 0 re-encrypted" in rotate()

    install(NEW)
    key = ApiKey.objects.get(pk=done.row.pk)
    assert key.version == done.row.version
    secret = api_keys.Shown(*done.secrets).secret_access_key
    assert data_encryption.decrypt_sigv4(key.key_id, bytes(key.sigv4_sealed)) == secret


def test_a_second_run_changes_nothing(install: Install) -> None:
    install(OLD)
    make_rows()
    install(NEW, OLD)
    rotate()
    before = list(MessageBody.objects.values_list("data", flat=True))

    said = rotate()

    assert "3 message bodies: 0 re-encrypted" in said
    assert list(MessageBody.objects.values_list("data", flat=True)) == before


def test_more_rows_than_one_batch_and_one_read_are_all_done(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reencryption, "BATCH", 4)
    monkeypatch.setattr(reencryption, "BODIES_AT_ONCE", 3)
    install(OLD)
    make_rows(bodies=9)
    install(NEW, OLD)

    assert "9 message bodies: 9 re-encrypted" in rotate()


def test_plain_bodies_stay_plain(install: Install) -> None:
    install(NEW)
    MessageFactory.create(channel__encrypt_bodies=False, body=b"open")

    assert "1 message body: 0 re-encrypted" in rotate()
    newest = install(generate_key(), NEW)
    assert "1 message body: 1 re-encrypted" in rotate()
    row = MessageBody.objects.get()
    assert row.key_id == newest.primary_id
    assert bytes(row.data).endswith(b"open")
    assert data_encryption.decrypt_body(row.message_id, bytes(row.data), row.key_id) == b"open"


def test_plain_bodies_from_before_digests_stay_as_they_are(install: Install) -> None:
    install(NEW)
    MessageFactory.create()
    MessageBody.objects.update(data=b"\0open", key_id="")

    assert "1 message body: 0 re-encrypted" in rotate()
    row = MessageBody.objects.get()
    assert (bytes(row.data), row.key_id) == (b"\0open", "")


def test_a_missing_old_key_is_named_and_the_rest_is_rotated(install: Install) -> None:
    gone = generate_key()
    lost = install(gone)
    channel = make_rows(bodies=1).channel
    data_encryption.activate(install(OLD, gone).primary_id)
    message = MessageFactory.create(channel=channel)
    new = install(NEW, OLD)

    with pytest.raises(CommandError) as caught:
        rotate()

    assert "4 rows could not be decrypted" in str(caught.value)
    assert f"The encryption key {lost.primary_id} is not installed" in str(caught.value)
    assert MessageBody.objects.get(message=message).key_id == new.primary_id


@pytest.mark.trap("an encryption key that only one host has")
def test_a_key_is_not_used_until_every_running_process_has_read_it(install: Install) -> None:
    old = install(OLD)
    make_rows(bodies=1)
    behind = a_process(OLD, host="elsewhere")
    a_process(NEW, OLD)
    new = install(NEW, OLD)

    with pytest.raises(CommandError, match=r"have not read key .*\n  pump 0 on elsewhere"):
        rotate(wait=0)

    assert data_encryption.encrypting_key_id() == old.primary_id
    assert MessageBody.objects.get().key_id == old.primary_id
    behind.delete()
    assert f"Key {new.primary_id} encrypts from now on." in rotate(wait=0)
    assert data_encryption.encrypting_key_id() == new.primary_id


def test_dead_processes_do_not_delay_a_rotation(install: Install) -> None:
    install(OLD)
    make_rows(bodies=1)
    silent = clock.now() - timedelta(seconds=registration.STALE_AFTER_S + 1)
    a_process(OLD, heartbeat_at=silent)
    new = install(NEW, OLD)

    rotate(wait=0)

    assert MessageBody.objects.get().key_id == new.primary_id


@pytest.mark.trap("a start with the wrong key")
@pytest.mark.parametrize("command", ["broker", "worker", "rotate_keys"])
def test_a_start_with_a_wrong_key_is_refused(
    install: Install, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "run", lambda self: pytest.fail("it started"))
    monkeypatch.setattr(worker, "run", lambda name: pytest.fail("it started"))
    old = install(OLD)
    make_rows(bodies=1)
    install(NEW)

    with pytest.raises(CommandError, match=f"encrypts with the key {old.primary_id}"):
        call_command(command)
