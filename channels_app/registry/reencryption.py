"""Re-encrypt what an installation stores encrypted, after a rotation of its keys."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Manager, QuerySet

from channels_app.conf import keyring
from channels_app.core import ids
from channels_app.core.encryption import Keyring, Unreadable
from channels_app.models import (
    ApiKey,
    Consumer,
    ConsumerSecret,
    Message,
    MessageBody,
    ScheduleBody,
)
from channels_app.registry import data_encryption

BATCH = 500
_SECRETS = {"secret", "seed"}
"""Fields of a second factor: the secret of an authenticator app, and the seed of recovery codes."""
_ENCRYPTED = {"headers_sealed": "header set", "inbound_sealed": "inbound secret"}
"""Columns of a consumer, and their contents as messages name them."""
BODIES_AT_ONCE = 20
"""Maximum number of bodies in memory; each may have MAX_BODY_BYTES."""


@dataclass(frozen=True, slots=True)
class ReencryptedBatch:
    """The result of one batch."""

    looked: int
    reencrypted: int
    unreadable: tuple[str, ...] = ()
    """A sentence per row that no installed key decrypts; such rows are left unchanged."""


Slice = tuple[int | None, ReencryptedBatch]
"""The last key of a batch, None at the end, and its result."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """One kind of encrypted rows."""

    noun: str
    total: Callable[[], int]
    reencrypt: Callable[[], Iterator[ReencryptedBatch]]
    """Runs batch by batch, each in its own transaction; may be interrupted and run again."""


def kinds() -> tuple[RowKind, ...]:
    """Every kind of encrypted rows, in the order in which to re-encrypt them."""
    return (
        RowKind("signing secret", ConsumerSecret.objects.count, partial(batches, _secrets)),
        *(
            RowKind(noun, Consumer.objects.count, partial(batches, partial(_of_consumers, column)))
            for column, noun in _ENCRYPTED.items()
        ),
        RowKind("secret access key", _with_sigv4().count, partial(batches, _sigv4)),
        RowKind("second factor", _factors().count, partial(batches, _second_factors)),
        RowKind("schedule body", ScheduleBody.objects.count, partial(batches, _schedules)),
        RowKind("message body", MessageBody.objects.count, partial(batches, _bodies)),
    )


def used_keys(most_factors: int) -> set[str]:
    """Ids of the keys that encrypted secrets, headers, schedules, and the oldest second factors.

    Skips rows that are not valid envelopes; ``reencrypt`` reports them.
    """
    envelopes = (
        Consumer.objects.exclude(**{name: b""}).values_list(name, flat=True) for name in _ENCRYPTED
    )
    factors = _factors().order_by("id").values_list("data", flat=True)[:most_factors]
    readers = [
        *(partial(keyring().key_id, bytes(envelope)) for envelope in chain(*envelopes)),
        *(
            partial(keyring().key_id, bytes(envelope))
            for envelope in _with_sigv4().values_list("sigv4_sealed", flat=True)
        ),
        *(
            partial(data_encryption.encrypted_with, data[name])
            for data in factors
            for name in data.keys() & _SECRETS
        ),
    ]
    used = set(ConsumerSecret.objects.values_list("key_id", flat=True).distinct())
    used |= set(ScheduleBody.objects.values_list("key_id", flat=True).distinct()) - {""}
    for read in readers:
        with suppress(Unreadable):
            used.add(read())
    return used


def batches(work: Callable[[int], Slice]) -> Iterator[ReencryptedBatch]:
    """Run ``work`` in slices by primary key, so that memory use does not grow with the tables."""
    cursor: int | None = 0
    while cursor is not None:
        with transaction.atomic():
            cursor, progress = work(cursor)
        if progress.looked:
            yield progress


def _secrets(after: int) -> Slice:
    rows = list(
        ConsumerSecret.objects.select_related("consumer")
        .filter(id__gt=after)
        .order_by("id")[:BATCH]
    )
    reencrypted, unreadable = 0, []
    for row in rows:
        if row.key_id == data_encryption.encrypting_key_id():
            continue
        owner = (row.consumer.channel_id, row.consumer.client_id)
        try:
            plain = data_encryption.decrypt_for_consumer(*owner, bytes(row.sealed))
        except Unreadable as error:
            unreadable.append(f"A secret of consumer {row.consumer.client_id}: {error}")
            continue
        sealed, key_id = data_encryption.encrypt_for_consumer(*owner, plain)
        # Only if the row has not changed since it was read.
        reencrypted += ConsumerSecret.objects.filter(id=row.id, sealed=row.sealed).update(
            sealed=sealed, key_id=key_id
        )
    return _last([row.id for row in rows]), ReencryptedBatch(
        len(rows), reencrypted, tuple(unreadable)
    )


def _last(keys: list[int]) -> int | None:
    return keys[-1] if keys else None


def _of_consumers(column: str, after: int) -> Slice:
    rows = list(
        Consumer.objects.only("channel_id", "client_id", column)
        .filter(id__gt=after)
        .order_by("id")[:BATCH]
    )
    reencrypted, unreadable = 0, []
    for row in rows:
        envelope = bytes(getattr(row, column))
        try:
            if not envelope or keyring().key_id(envelope) == data_encryption.encrypting_key_id():
                continue
            plain = data_encryption.decrypt_for_consumer(row.channel_id, row.client_id, envelope)
        except Unreadable as error:
            unreadable.append(f"The {_ENCRYPTED[column]} of consumer {row.client_id}: {error}")
            continue
        sealed, _ = data_encryption.encrypt_for_consumer(row.channel_id, row.client_id, plain)
        # Without save(): the content does not change, so the version must not change either.
        reencrypted += Consumer.objects.filter(id=row.id, **{column: envelope}).update(
            **{column: sealed}
        )
    return _last([row.id for row in rows]), ReencryptedBatch(
        len(rows), reencrypted, tuple(unreadable)
    )


def _with_sigv4() -> QuerySet[ApiKey]:
    return ApiKey.objects.exclude(sigv4_sealed=b"")


def _sigv4(after: int) -> Slice:
    rows = list(
        _with_sigv4().only("key_id", "sigv4_sealed").filter(id__gt=after).order_by("id")[:BATCH]
    )
    reencrypted, unreadable = 0, []
    for row in rows:
        envelope = bytes(row.sigv4_sealed)
        try:
            if keyring().key_id(envelope) == data_encryption.encrypting_key_id():
                continue
            secret = data_encryption.decrypt_sigv4(row.key_id, envelope)
        except Unreadable as error:
            unreadable.append(f"The secret access key of API key {row.key_id}: {error}")
            continue
        # Without save(): the content does not change, so the version must not change either.
        reencrypted += ApiKey.objects.filter(id=row.id, sigv4_sealed=envelope).update(
            sigv4_sealed=data_encryption.encrypt_sigv4(row.key_id, secret)
        )
    return _last([row.id for row in rows]), ReencryptedBatch(
        len(rows), reencrypted, tuple(unreadable)
    )


def _factors() -> Manager[Any]:
    """By name: only the accounts app imports allauth."""
    objects: Manager[Any] = apps.get_model("mfa", "Authenticator")._default_manager
    return objects


def _second_factors(after: int) -> Slice:
    rows = list(_factors().filter(id__gt=after).order_by("id")[:BATCH])
    reencrypted, unreadable = 0, []
    for row in rows:
        data = dict(row.data)
        try:
            for name in data.keys() & _SECRETS:
                if (
                    data_encryption.encrypted_with(data[name])
                    != data_encryption.encrypting_key_id()
                ):
                    data[name] = data_encryption.encrypt_second_factor(
                        data_encryption.decrypt_second_factor(data[name])
                    )
        except Unreadable as error:
            unreadable.append(f"A second factor of user {row.user_id}: {error}")
            continue
        if data != row.data:
            reencrypted += _factors().filter(id=row.id, data=row.data).update(data=data)
    return _last([row.id for row in rows]), ReencryptedBatch(
        len(rows), reencrypted, tuple(unreadable)
    )


def _schedules(after: int) -> Slice:
    rows = list(
        ScheduleBody.objects.select_related("schedule")
        .filter(schedule_id__gt=after)
        .order_by("schedule_id")[:BODIES_AT_ONCE]
    )
    reencrypted, unreadable = 0, []
    for row in rows:
        if row.key_id in {"", data_encryption.encrypting_key_id()}:
            continue
        try:
            body = data_encryption.decrypt_schedule(row.schedule_id, bytes(row.data), row.key_id)
        except Unreadable as error:
            unreadable.append(f"The body of schedule {row.schedule.name}: {error}")
            continue
        encrypt = Keyring.is_encrypted(bytes(row.data))
        data, key_id = data_encryption.encrypt_schedule(row.schedule_id, body, encrypt=encrypt)
        unchanged = ScheduleBody.objects.filter(schedule_id=row.schedule_id, data=row.data)
        reencrypted += unchanged.update(data=data, key_id=key_id)
    seen = [row.schedule_id for row in rows]
    return _last(seen), ReencryptedBatch(len(rows), reencrypted, tuple(unreadable))


def _bodies(after: int) -> Slice:
    rows = list(
        MessageBody.objects.filter(message_id__gt=after)
        .order_by("message_id")
        .values_list("message_id", "key_id")[:BATCH]
    )
    # Unencrypted bodies stay so, with a digest of the new key. Current ones are not even loaded.
    old = [
        message_id
        for message_id, key_id in rows
        if key_id not in {"", data_encryption.encrypting_key_id()}
    ]
    reencrypted, unreadable = 0, []
    for start in range(0, len(old), BODIES_AT_ONCE):
        for row in MessageBody.objects.select_related("message").filter(
            message_id__in=old[start : start + BODIES_AT_ONCE]
        ):
            try:
                body = data_encryption.decrypt_body(row.message_id, bytes(row.data), row.key_id)
            except Unreadable as error:
                public = ids.to_public("msg", row.message_id)
                unreadable.append(f"The body of message {public}: {error}")
                continue
            encrypt = Keyring.is_encrypted(bytes(row.data))
            data, key_id = data_encryption.encrypt_body(row.message_id, body, encrypt=encrypt)
            unchanged = MessageBody.objects.filter(message_id=row.message_id, key_id=row.key_id)
            reencrypted += unchanged.update(data=data, key_id=key_id)
            _forwarded(row.message)
    seen = [message_id for message_id, _ in rows]
    return _last(seen), ReencryptedBatch(len(rows), reencrypted, tuple(unreadable))


def _forwarded(message: Message) -> None:
    """Re-encrypt the headers of a message whose body had an old key, since theirs is the same."""
    if isinstance(message.headers, str):
        headers = data_encryption.decrypt_headers(message.id, message.headers)
        text = data_encryption.store_headers(message.id, headers, encrypt=True)
        Message.objects.filter(id=message.id).update(headers=json.loads(text))
