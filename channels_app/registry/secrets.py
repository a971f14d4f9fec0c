"""Rotate a consumer's signing secrets, or adopt those of another system.

The old secrets keep signing beside the new ones for a while.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from channels_app.access.principal import Principal
from channels_app.core import encryption
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import BrokerError, FieldError, Invalid, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import clock, transactions
from channels_app.models import (
    AuditEntry,
    Consumer,
    ConsumerSecret,
)
from channels_app.registry import configuration, data_encryption
from channels_app.registry.resource import WriteResult
from channels_app.serializers.api_keys import OverlapSerializer

MAX_LIVE = 10
"""Maximum number of secrets that sign at a time; each adds a signature to the header."""
OVERLAP_S = 86_400
"""Seconds for which the replaced secret keeps signing."""


def rotate(
    channel: str,
    client_id: str,
    values: dict[str, object],
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Consumer]:
    """Generate a new secret; current ones stop signing after ``overlap_s`` seconds (0: at once).

    A consumer with Ed25519 signatures gets a new key pair as well. ``secrets`` holds the new
    ``whsec_...``, which is never shown again. Raises Invalid, NotFound and PreconditionFailed.
    """
    overlap_s = OverlapSerializer().read(values)["overlap_s"]
    return transactions.run(lambda: _rotate(channel, client_id, overlap_s, principal, condition))


@dataclass(frozen=True, slots=True)
class Adoption:
    """A consumer, and the secret to sign its requests with from now on."""

    channel: str
    client_id: str
    secret: bytes = field(repr=False)


def adopt(
    channel: str, client_id: str, text: str, *, principal: Principal, overlap_s: int = OVERLAP_S
) -> WriteResult[Consumer]:
    """Sign with ``text`` (``whsec_...``) from now on; no change if the consumer uses it already.

    The replaced secret stops signing after ``overlap_s`` seconds (0: at once). Raises Invalid and
    NotFound.
    """
    adoption = Adoption(channel, client_id, read(text))
    (done,) = adopt_all([adoption], principal=principal, overlap_s=overlap_s)
    if isinstance(done, BrokerError):
        raise done
    return done


def read(text: str) -> bytes:
    """Decode a ``whsec_...``. Raises Invalid."""
    try:
        return encryption.decode_secret(text)
    except ValueError as error:
        raise Invalid.of([FieldError("secret", str(error))]) from None


def adopt_all(
    adoptions: Sequence[Adoption], *, principal: Principal, overlap_s: int = OVERLAP_S
) -> list[WriteResult[Consumer] | BrokerError]:
    """``adopt`` for many consumers in a few statements; each one succeeds or fails alone.

    Each consumer may appear only once.
    """
    return transactions.run(lambda: _adopt(adoptions, principal, overlap_s)) if adoptions else []


def _rotate(
    channel: str,
    client_id: str,
    overlap_s: int,
    principal: Principal,
    condition: Precondition,
) -> WriteResult[Consumer]:
    consumer = configuration.consumer(channel, client_id, principal, condition)
    _expire(consumer, overlap_s)
    secret = data_encryption.generate_secret(consumer)
    if "v1a" in consumer.signing:
        data_encryption.generate_key_pair(consumer)
    # Saving increments the version, which makes every process reload the secrets.
    consumer.save()
    AuditEntry.record(
        principal.actor,
        "consumer.rotate_secret",
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=principal.reason,
        after={"overlap_s": overlap_s},
    )
    return WriteResult(consumer, changed=True, secrets=(secret,))


def _expire(consumer: Consumer, overlap_s: int) -> None:
    now = clock.now()
    until = now + timedelta(seconds=overlap_s)
    consumer.secrets.filter(expires_at__lte=now).delete()
    consumer.secrets.filter(expires_at=None).update(expires_at=until)
    consumer.secrets.filter(expires_at__gt=until).update(expires_at=until)
    for scheme in ConsumerSecret.Scheme.values:
        ids = consumer.secrets.filter(scheme=scheme).order_by("-id").values_list("id", flat=True)
        ConsumerSecret.objects.filter(id__in=list(ids[MAX_LIVE - 1 :])).delete()


def _adopt(
    adoptions: Sequence[Adoption], principal: Principal, overlap_s: int
) -> list[WriteResult[Consumer] | BrokerError]:
    consumers = configuration.consumers(
        [(adoption.channel, adoption.client_id) for adoption in adoptions]
    )
    current: dict[int, list[ConsumerSecret]] = {row.id: [] for row in consumers.values()}
    for row in ConsumerSecret.objects.filter(
        consumer__in=current, scheme=ConsumerSecret.Scheme.V1, expires_at=None
    ):
        current[row.consumer_id].append(row)
    done: list[WriteResult[Consumer] | BrokerError] = []
    changed: list[Consumer] = []
    new_secrets: list[ConsumerSecret] = []
    entries: list[AuditEntry] = []
    replaced: list[int] = []
    for adoption in adoptions:
        name = adoption.channel, adoption.client_id
        try:
            consumer, secret = _sealed(adoption, consumers.get(name), current)
        except BrokerError as refused:
            done.append(refused)
            continue
        done.append(WriteResult(consumer, changed=secret is not None))
        if secret is None:
            continue
        replaced += [row.id for row in current[consumer.id]]
        new_secrets.append(secret)
        changed.append(consumer)
        entries += AuditEntry.entries(
            principal.actor,
            "consumer.adopt_secret",
            f"consumer:{'/'.join(name)}",
            team_id=consumer.team_id,
            after={"overlap_s": overlap_s},
        )
    _expire_others(replaced, overlap_s)
    ConsumerSecret.objects.bulk_create(new_secrets)
    # Saving increments the version, which makes every process reload the secrets.
    Consumer.save_all(changed)
    AuditEntry.objects.bulk_create(entries)
    return done


def _sealed(
    adoption: Adoption, consumer: Consumer | None, current: Mapping[int, Sequence[ConsumerSecret]]
) -> tuple[Consumer, ConsumerSecret | None]:
    """The secret's row to write; None if the consumer uses the secret already.

    Raises NotFound and KeyUnavailable.
    """
    if consumer is None:
        detail = f"The channel has no consumer {adoption.client_id}."
        raise NotFound("unknown_consumer", detail)
    if any(_opened(consumer, row) == adoption.secret for row in current[consumer.id]):
        return consumer, None
    return consumer, data_encryption.chosen_secret(consumer, adoption.secret)


def _opened(consumer: Consumer, row: ConsumerSecret) -> bytes | None:
    try:
        return data_encryption.decrypt_for_consumer(
            consumer.channel_id, consumer.client_id, bytes(row.sealed)
        )
    except Unreadable:
        return None


def _expire_others(ids: Sequence[int], overlap_s: int) -> None:
    rows = ConsumerSecret.objects.filter(id__in=ids)
    if overlap_s:
        rows.update(expires_at=clock.now() + timedelta(seconds=overlap_s))
    else:
        rows.delete()
