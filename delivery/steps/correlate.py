"""Find the deliveries that a provider's callback reports on, by the provider's ids (S3-39)."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from channels_app import failpoints, transactions
from channels_app.models.hints import by_index
from delivery import metrics
from delivery.models import Correlation
from delivery.rules.acks import AckResult
from delivery.rules.correlation import ProviderStatus, correlation_id

RETENTION = timedelta(days=2)
"""How long a provider's id is stored: twice the longest wait for an acknowledgement."""
BATCH = 1000


class ProviderReport(NamedTuple):
    """A status from a callback, and its delivery."""

    delivery_id: int | None
    """None while the response to the broker's request is not recorded."""
    ok: bool
    result: AckResult | None
    """How the acknowledgement relates, where no delivery is known yet that would decide it."""


def find(
    consumer_id: int, statuses: Sequence[ProviderStatus], now: datetime
) -> list[ProviderReport]:
    """Return the deliveries that these statuses are about, in their order.

    A status with an unknown id is kept until the response that contains the id is recorded
    (acks.correlated), like early acknowledgements. If none does, it concerned another sender's
    message.
    """
    keys = [correlation_id(consumer_id, status.provider_id) for status in statuses]
    known = dict(
        Correlation.objects.filter(id__in=keys, delivery_id__isnull=False).values_list(
            "id", "delivery_id"
        )
    )
    reports = []
    for key, status in zip(keys, statuses, strict=True):
        delivery_id, result = known.get(key), None
        if delivery_id is None:
            delivery_id, result = _kept(key, status, now)
        reports.append(ProviderReport(delivery_id, status.ok, result))
    return reports


def forget(now: datetime) -> Iterator[int]:
    """Delete ids that are too old for a callback; yield the number of each batch."""
    # If almost all are old, MariaDB would sort the whole table for each batch.
    indexed = by_index(Correlation.objects.all(), "correlation_age")
    left = old = indexed.filter(noted_at__lt=now - RETENTION).order_by("noted_at")
    while gone := list(left.values_list("id", "ok", "noted_at")[:BATCH]):
        rows = Correlation.objects.filter(id__in=[key for key, _, _ in gone])
        rows._raw_delete(rows.db)
        # InnoDB keeps deleted rows in the index for a while: do not read them again each time.
        left = old.filter(noted_at__gte=gone[-1][-1])
        metrics.ACKS.labels("foreign").inc(sum(ok is not None for _, ok, _ in gone))
        yield len(gone)


def _kept(key: int, status: ProviderStatus, now: datetime) -> tuple[int | None, AckResult | None]:
    # The response may be recorded at this moment; then this insert collides, and runs again. The
    # metric counts it once its delivery is known: it may concern another sender's message.
    delivery_id, result = transactions.run(
        lambda: _keep(key, status, now), on_collision=lambda: None
    )
    if result is not None:
        failpoints.reach("after_early_word")
    return delivery_id, result


def _keep(key: int, status: ProviderStatus, now: datetime) -> tuple[int | None, AckResult | None]:
    row = Correlation.objects.filter(id=key).first()
    if row is None:
        Correlation.objects.create(id=key, ok=status.ok, noted_at=now)
        failpoints.reach("in_early_word")
        return None, AckResult.EARLY
    if row.delivery_id is None:
        return None, AckResult.DOUBLE
    return row.delivery_id, None
