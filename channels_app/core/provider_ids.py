"""Match a provider's own callbacks with the deliveries sent to it (S3-39).

A provider does not know our tokens. Its response contains an id of its own; its callback contains
that id and a status. Configuration says where both are found, for well-known providers by a preset.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from channels_app.core import fields, json_paths
from channels_app.core.fields import Described, Field

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
_MAX_STATUSES = 20


def _filled(text: str) -> str | None:
    return None if text else "It must not be empty."


_PATH = fields.text(json_paths.MAX_LENGTH, check=json_paths.check, pattern=json_paths.PATTERN)
_WORD = fields.text(100, check=_filled, minLength=1)
_STATUSES = fields.listed(_WORD, _MAX_STATUSES)
_FIELDS: dict[str, Field] = {
    "preset": Field(
        fields.nullable(fields.choice(*PRESETS)),
        help="Provider that supplies omitted fields.",
    ),
    "response_id": Field(fields.nullable(_PATH), help="Path of the provider's id in a response."),
    "callback": Field(
        fields.nullable(_PATH),
        help="Path of the reports in a callback's body; null: the whole body is one report.",
    ),
    "callback_id": Field(fields.nullable(_PATH), help="Path of the provider's id in a report."),
    "callback_status": Field(fields.nullable(_PATH), help="Path of the status in a report."),
    "accept": Field(fields.nullable(_STATUSES), help="Statuses that mean success."),
    "fail": Field(
        fields.nullable(_STATUSES), help="Statuses that mean failure; others are ignored."
    ),
    "signature": Field(
        fields.nullable(
            fields.nested(
                {
                    "preset": Field(fields.choice(META), required=True),
                    "secret": Field(
                        fields.text(500, check=_filled, minLength=1),
                        required=True,
                        help=f"Stored encrypted, shown as {fields.MASK}; sending that keeps it.",
                    ),
                },
                "CallbackSignature",
            )
        ),
        help="How callbacks are signed; null: the inbound address is the only credential.",
    ),
    "verify_token": Field(
        fields.nullable(fields.text(200)),
        help="Token that a provider's verification request must send (hub.verify_token); "
        "null: none.",
    ),
}
_read = fields.nested(_FIELDS, "Correlation")


def _correlation(value: object) -> dict[str, Any]:
    given: dict[str, Any] = _read(value)
    preset = PRESETS.get(given["preset"] or "", {})
    full: dict[str, Any] = {
        name: preset.get(name) if it is None else it for name, it in given.items()
    }
    full["fail"] = full["fail"] or []
    for name in _NEEDED:
        if not full[name]:
            raise ValueError(f"{name} is needed where no preset gives it.")
    if set(full["accept"]) & set(full["fail"]):
        raise ValueError("A status must not be in both accept and fail.")
    return full


correlation = fields.nullable(Described(_correlation, _read.schema))
"""The setting, stored with the preset's values filled in."""


def of(ack: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The correlation setting of a consumer's ``ack``; None if there is none."""
    return ack.get("correlation") if ack else None


def is_signed(header: str, body: bytes, secret: str) -> bool:
    """Whether ``X-Hub-Signature-256`` matches the exact bytes; compares in constant time.

    Source: Meta, Webhooks from Meta, "Validate payloads".
    """
    wanted = "sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(wanted.encode(), header.strip().lower().encode("utf-8", "replace"))
