"""Numbers about delivering. Labels never carry unbounded values; depths are read at scrape time."""

from prometheus_client import Counter, Histogram

_LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200, 259200),
)

ATTEMPTS = Counter("hookstation_attempts_total", "Attempts by how they ended.", ["outcome"])
DELIVERIES = Counter(
    "hookstation_deliveries_total", "Deliveries that reached a state, by state.", ["state"]
)
LATENCY = Histogram(
    "hookstation_delivery_latency_seconds", "From accepted to delivered.", buckets=_LATENCY
)
ATTEMPT_SECONDS = Histogram(
    "hookstation_attempt_seconds", "Length of one attempt.", buckets=_LATENCY
)
LATENESS = Histogram(
    "hookstation_timeline_lateness_seconds",
    "From the instant a delivery was due to its claim.",
    buckets=_LATENCY,
)
SWEPT = Counter(
    "hookstation_swept_total", "Rows that a fail-safe sweep had to repair or removed.", ["kind"]
)
LATE_RESULTS = Counter(
    "hookstation_late_results_total", "Results that came after another worker took the delivery."
)
PUMP_ERRORS = Counter(
    "hookstation_pump_errors_total", "Rounds of a pump that failed and were tried again."
)
