"""Match a provider's own callbacks with the deliveries sent to it (S3-39).

A provider does not know our tokens. Its response contains an id of its own; its callback contains
that id and a status. Configuration says where both are found, for well-known providers by a preset.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

META = "meta-x-hub-256"
"""Meta's signature: ``X-Hub-Signature-256: sha256=``, HMAC-SHA256 of the raw body."""
PRESETS: dict[str, dict[str, Any]] = {
    # A read message was also delivered; the statuses may arrive in any order.
    "whatsapp-cloud": {
        "response_id": "messages[0].id",
        "callback": "entry[*].changes[*].value.statuses[*]",
        "callback_id": "id",
        "callback_status": "status",
        "accept": ["sent", "delivered", "read"],
        "fail": ["failed"],
    }
}
_NEEDED = ("response_id", "callback_id", "callback_status", "accept")


def completed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The setting with the preset's values filled in. Raises ValueError."""
    preset = PRESETS.get(given["preset"] or "", {})
    full: dict[str, Any] = {
        name: preset.get(name) if value is None else value for name, value in given.items()
    }
    full["fail"] = full["fail"] or []
    for name in _NEEDED:
        if not full[name]:
            raise ValueError(f"{name} is needed where no preset gives it.")
    if set(full["accept"]) & set(full["fail"]):
        raise ValueError("A status must not be in both accept and fail.")
    return full


def of(ack: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The correlation setting of a consumer's ``ack``; None if there is none."""
    return ack.get("correlation") if ack else None


def is_signed(header: str, body: bytes, secret: str) -> bool:
    """Whether ``X-Hub-Signature-256`` matches the exact bytes; compares in constant time.

    Source: Meta, Webhooks from Meta, "Validate payloads".
    """
    wanted = "sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(wanted.encode(), header.strip().lower().encode("utf-8", "replace"))
