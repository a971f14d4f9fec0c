"""Outcomes: what the end of an attempt, as the broker stores it, says about the consumer."""

ARRIVED = frozenset({"delivered", "delivered_oversized"})
BROKERS_OWN = frozenset(
    {"interrupted", "lease_expired", "expired", "body_unreadable", "integrity_error"}
)
"""Nothing was sent, or we broke it off: no word about the consumer."""
UNREACHABLE = frozenset(
    {
        "connect_timeout",
        "connection_refused",
        "connection_reset",
        "connection_error",
        "dns_error",
        "tls_error",
        "blocked_address",
    }
)
"""No answer, since there was nobody to give one."""
