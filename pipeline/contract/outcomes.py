"""Classify outcomes of attempts by what they say about the consumer."""

ARRIVED = frozenset({"delivered", "delivered_oversized"})
BROKERS_OWN = frozenset(
    {"interrupted", "lease_expired", "expired", "body_unreadable", "integrity_error"}
)
"""The broker sent no request, or broke it off: no information about the consumer."""
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
"""No server responded."""
