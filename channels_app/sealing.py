"""What is sealed at rest, and what each seal is tied to: copied to another row it does not open."""

from dataclasses import dataclass, field

from channels_app.conf import keyring
from channels_app.rules import secrets


@dataclass(frozen=True, slots=True)
class Minted:
    """A fresh signing secret of a consumer."""

    text: str = field(repr=False)
    """``whsec_...``, for its owner's eyes, once; '' for a pair, whose signer nobody else needs."""
    sealed: bytes = field(repr=False)
    key_id: str
    public_key: str = ""
    """``whpk_...`` of a pair."""


def seal_body(message_id: int, body: bytes, *, encrypt: bool) -> tuple[bytes, str]:
    """A message's body as stored, and the id of the key that sealed it ('' when plain)."""
    keys = keyring()
    if not encrypt:
        return keys.plain(body), ""
    return keys.seal(body, _body(message_id)), keys.primary_id


def open_body(message_id: int, data: bytes) -> bytes:
    """The exact bytes the producer sent. Raises rules.encryption.Unreadable."""
    return keyring().open(data, _body(message_id))


def seal_for_consumer(channel_id: int, client_id: str, plain: bytes) -> tuple[bytes, str]:
    """A secret or the static headers of a consumer as stored, and the id of the key used."""
    keys = keyring()
    return keys.seal(plain, _consumer(channel_id, client_id)), keys.primary_id


def open_for_consumer(channel_id: int, client_id: str, data: bytes) -> bytes:
    """What seal_for_consumer sealed. Raises rules.encryption.Unreadable."""
    return keyring().open(data, _consumer(channel_id, client_id))


def mint_secret(channel_id: int, client_id: str) -> Minted:
    """A new shared secret (v1), sealed for this consumer."""
    text = secrets.new_secret()
    return Minted(text, *seal_for_consumer(channel_id, client_id, secrets.decode_secret(text)))


def mint_key_pair(channel_id: int, client_id: str) -> Minted:
    """A new Ed25519 pair (v1a), its signer sealed for this consumer."""
    signer, public_key = secrets.new_signing_key()
    raw = secrets.decode_signing_key(signer)
    return Minted("", *seal_for_consumer(channel_id, client_id, raw), public_key)


def _body(message_id: int) -> bytes:
    return f"message:{message_id}".encode()


def _consumer(channel_id: int, client_id: str) -> bytes:
    return f"consumer:{channel_id}:{client_id}".encode()
