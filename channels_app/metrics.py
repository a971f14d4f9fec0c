"""Define metrics about accepting messages. Labels never carry unbounded values."""

from prometheus_client import Counter

ACCEPTED = Counter("hookstation_messages_accepted_total", "Messages stored and acknowledged.")
DUPLICATES = Counter(
    "hookstation_publish_duplicates_total", "Requests answered from their idempotency key."
)
NUMBERS = Counter(
    "hookstation_numbered_messages_total",
    "Numbers of producers' sequences that came early, were passed already, or were skipped.",
    ["outcome"],
)
REFUSED = Counter(
    "hookstation_publish_refused_total",
    "Messages refused because too much waits, or because the disk is full.",
    ["reason"],
)
THROTTLED = Counter(
    "hookstation_publish_throttled_total", "Publish requests refused over their producer's rate."
)
