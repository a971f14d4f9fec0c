"""Define metrics about accepting messages. Labels never carry unbounded values."""

from prometheus_client import Counter

ACCEPTED = Counter("hookstation_messages_accepted_total", "Messages stored and accepted.")
DUPLICATES = Counter(
    "hookstation_publish_duplicates_total", "Requests answered from their idempotency key."
)
NUMBERS = Counter(
    "hookstation_numbered_messages_total",
    "Sequence numbers of producers that came early, came too late, or were skipped.",
    ["outcome"],
)
REFUSED = Counter(
    "hookstation_publish_refused_total",
    "Messages refused because of a limit on waiting messages, or a full disk.",
    ["reason"],
)
THROTTLED = Counter(
    "hookstation_publish_throttled_total", "Publish requests above their producer's rate limit."
)
