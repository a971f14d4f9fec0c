"""Advise what to do about dead letters with a given outcome."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Who has to act first. Stored and shown."""

    REPLAY = "replay"
    """No action needed: safe to replay once the consumer has recovered."""
    FIX = "fix"
    """The consumer must be fixed: it rejects its messages."""
    CONFIGURE = "configure"
    """The person who registered the consumer, or who runs its network, must act."""
    BROKER = "broker"
    """The broker's operator must act."""
    NEVER = "never"
    """Must not be replayed."""


@dataclass(frozen=True, slots=True)
class Advice:
    """An action to take."""

    kind: Kind
    text: str


_AWAY = Advice(
    Kind.REPLAY, "The host could not be reached. Replay once a test reaches it again; it is safe."
)
_LOST = Advice(
    Kind.BROKER,
    "Workers vanished with these open, again and again. Find out why (memory? the body itself?), "
    "then replay a few.",
)
_BY_OUTCOME = {
    "timeout": Advice(
        Kind.REPLAY,
        "It took too long. Replay once it is quicker, at a rate; the consumer may have taken some "
        "of them all the same. If it needs the time, raise its timeout first.",
    ),
    "connect_timeout": _AWAY,
    "connection_refused": _AWAY,
    "connection_reset": _AWAY,
    "connection_error": _AWAY,
    "unavailable": Advice(
        Kind.REPLAY, "The host was overloaded or down. Replay once it is healthy; it is safe."
    ),
    "throttled": Advice(
        Kind.REPLAY, "It asked for a slower pace. Replay at a rate below its limit, and set one."
    ),
    "server_error": Advice(
        Kind.REPLAY,
        "It failed inside. Replay a few once it is healthy: if these fail again, the fault is in "
        "what it does with these messages.",
    ),
    "redirect": Advice(
        Kind.CONFIGURE,
        "It has moved, and redirects are not followed. Change the consumer's address to where the "
        "answer points, then replay.",
    ),
    "not_found": Advice(
        Kind.CONFIGURE, "Nothing is at this path. Correct the consumer's address, then replay."
    ),
    "gone": Advice(Kind.NEVER, "The consumer wants no more messages. Do not replay: retire it."),
    "client_error": Advice(
        Kind.FIX,
        "It refuses these messages as they are, and would refuse them again. Replay after the "
        "consumer was mended.",
    ),
    "dns_error": Advice(
        Kind.CONFIGURE,
        "Its name has no address. Correct the consumer's address or the name's records, then "
        "replay.",
    ),
    "tls_error": Advice(
        Kind.CONFIGURE,
        "The certificate is not valid for the name, or the handshake failed. Renew the certificate "
        "or correct the consumer's address, then replay.",
    ),
    "protocol_error": Advice(
        Kind.CONFIGURE,
        "What answers there does not speak HTTP. Look at scheme and port of the consumer's "
        "address, then replay.",
    ),
    "blocked_address": Advice(
        Kind.CONFIGURE,
        "The name leads to an address that may not be called. Correct the consumer's address, or "
        "allow its network in HOOKSTATION_ALLOWED_TARGETS; then replay.",
    ),
    "rejected": Advice(
        Kind.FIX,
        "The workers that receive them said that they cannot handle them; the attempts hold why. "
        "Replay after the workers were mended.",
    ),
    "body_unreadable": Advice(
        Kind.BROKER,
        "The stored bodies cannot be opened. Put the key that sealed them back into "
        "HOOKSTATION_ENCRYPTION_KEYS (`manage.py doctor` names it), then replay.",
    ),
    "integrity_error": Advice(
        Kind.NEVER,
        "The stored bodies are not what was accepted: somebody changed them, or the disk did. Find "
        "out who can write to the database. Restore the bodies from a backup before you replay.",
    ),
    "interrupted": _LOST,
    "lease_expired": _LOST,
    "expired": Advice(
        Kind.NEVER, "Their last instant has passed. They would be cancelled, not sent."
    ),
    "delivered": Advice(
        Kind.FIX,
        "It answered 2xx and never acknowledged. It may have taken them: ask before you replay.",
    ),
}
_BY_STATUS = {
    401: Advice(
        Kind.CONFIGURE,
        "It does not accept the credentials. Correct the consumer's headers or secret, then "
        "replay.",
    ),
    403: Advice(
        Kind.CONFIGURE,
        "It does not let the broker in. Correct the consumer's headers or its list of allowed "
        "addresses, then replay.",
    ),
    408: _BY_OUTCOME["timeout"],
    413: Advice(
        Kind.FIX,
        "The bodies are too large for it. Replay after it takes larger ones; smaller ones come "
        "through now.",
    ),
}
_UNKNOWN = Advice(Kind.FIX, "Look at the sample before anything is sent again.")


def advice(outcome: str, status_code: int | None) -> Advice:
    """Return the advice for this outcome."""
    found = _BY_STATUS.get(status_code or 0) if outcome == "client_error" else None
    return found or _BY_OUTCOME.get(outcome.removesuffix("_oversized"), _UNKNOWN)
