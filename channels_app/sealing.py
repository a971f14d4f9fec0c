"""What is sealed at rest, and what each seal is tied to: copied to another row it does not open.

Sealing raises rules.encryption.KeyMissing in a process without the installation's current key.
"""

from base64 import b64decode, b64encode

from channels_app import keystore
from channels_app.conf import keyring
from channels_app.models.consumer import Consumer, ConsumerSecret
from channels_app.rules import secrets

_SECOND_FACTOR = b"second factor"
"""For all of them: who seals one is not told whose it is."""


def seal_body(message_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """A message's body as stored, and the id of the key that sealed it ('' when plain)."""
    if not encrypt:
        return keyring().plain(body), ""
    keys = keystore.sealer()
    return keys.seal(body, _body(message_id)), keys.primary_id


def open_body(message_id: int, data: bytes) -> bytes:
    """The exact bytes the producer sent. Raises rules.encryption.Unreadable."""
    return keyring().open(data, _body(message_id))


def seal_schedule(schedule_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """A schedule's body as stored, and the id of the key that sealed it ('' when plain)."""
    if not encrypt:
        return keyring().plain(body), ""
    keys = keystore.sealer()
    return keys.seal(body, _schedule(schedule_id)), keys.primary_id


def open_schedule(schedule_id: int, data: bytes) -> bytes:
    """The exact bytes that it publishes. Raises rules.encryption.Unreadable."""
    return keyring().open(data, _schedule(schedule_id))


def knows_key(key_id: str) -> bool:
    """Whether bodies that were sealed with that key can still be opened."""
    return keyring().knows(key_id)


def seal_for_consumer(channel_id: int, client_id: str, plain: bytes) -> tuple[bytes, str]:
    """A secret or the static headers of a consumer as stored, and the id of the key used."""
    keys = keystore.sealer()
    return keys.seal(plain, _consumer(channel_id, client_id)), keys.primary_id


def open_for_consumer(channel_id: int, client_id: str, data: bytes) -> bytes:
    """What seal_for_consumer sealed. Raises rules.encryption.Unreadable."""
    return keyring().open(data, _consumer(channel_id, client_id))


def seal_second_factor(plain: str) -> str:
    """The secret of a person's second factor as stored: in JSON, so in letters."""
    return b64encode(keystore.sealer().seal(plain.encode(), _SECOND_FACTOR)).decode()


def open_second_factor(stored: str) -> str:
    """What seal_second_factor sealed. Raises rules.encryption.Unreadable."""
    return keyring().open(b64decode(stored), _SECOND_FACTOR).decode()


def sealed_with(stored: str) -> str:
    """Id of the key that sealed a second factor. Raises rules.encryption.Unreadable."""
    return keyring().key_id(b64decode(stored))


def mint_secret(consumer: Consumer) -> str:
    """Give the consumer a new shared secret (v1); its ``whsec_...`` is for its owner, once."""
    text, row = new_secret(consumer)
    row.save()
    return text


def mint_key_pair(consumer: Consumer) -> str:
    """Give the consumer a new Ed25519 pair (v1a); its public ``whpk_...``."""
    row = new_key_pair(consumer)
    row.save()
    return row.public_key


def new_secret(consumer: Consumer) -> tuple[str, ConsumerSecret]:
    """A shared secret as its owner is told it, and the row that is to be written."""
    text = secrets.new_secret()
    return text, _sealed(consumer, ConsumerSecret.Scheme.V1, secrets.decode_secret(text))


def new_key_pair(consumer: Consumer) -> ConsumerSecret:
    """An Ed25519 pair, to be written."""
    signer, public_key = secrets.new_signing_key()
    scheme = ConsumerSecret.Scheme.V1A
    return _sealed(consumer, scheme, secrets.decode_signing_key(signer), public_key)


def _sealed(consumer: Consumer, scheme: str, plain: bytes, public_key: str = "") -> ConsumerSecret:
    sealed, key_id = seal_for_consumer(consumer.channel_id, consumer.client_id, plain)
    return ConsumerSecret(
        consumer=consumer, scheme=scheme, sealed=sealed, key_id=key_id, public_key=public_key
    )


def _body(message_id: int) -> bytes:
    return f"message:{message_id}".encode()


def _schedule(schedule_id: int) -> bytes:
    return f"schedule:{schedule_id}".encode()


def _consumer(channel_id: int, client_id: str) -> bytes:
    return f"consumer:{channel_id}:{client_id}".encode()
