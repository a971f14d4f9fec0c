"""Find deliveries by the ids that consumers' providers give them (S3-39)."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from channels_app import failpoints
from channels_app.database import raw, transactions
from channels_app.database.raw import by_index, dialect
from delivery import metrics
from delivery.core import acks
from delivery.core.acks import AckResult, ProviderStatus, correlation_id
from delivery.models import Correlation

CORRELATIONS = Correlation._meta.db_table
# A callback stored there keeps its own time.
NOTED = dialect.upsert(
    "id",
    f"noted_at = CASE WHEN {CORRELATIONS}.ok IS NULL THEN {dialect.new('noted_at')} "
    f"ELSE {CORRELATIONS}.noted_at END, delivery_id = {dialect.new('delivery_id')}",
)
PROVIDER_STATUS_RETENTION = timedelta(days=2)
"""How long a provider's id is stored: twice the longest wait for an acknowledgement."""
BATCH = 1000
CLOCKS_DIFFER = timedelta(seconds=1)
"""Greater than the difference between two processes' estimates of the database's time."""


class Named(NamedTuple):
    """A delivery with the id that the consumer's provider gave it."""

    consumer_id: int
    delivery_id: int
    provider_id: str
    accepted_at: datetime


class ProviderReport(NamedTuple):
    """A status from a callback, and its delivery."""

    delivery_id: int | None
    """None while the response to the broker's request is not recorded."""
    ok: bool
    result: AckResult | None
    """How the acknowledgement relates, where no delivery is known yet that would decide it."""


def correlated(named: Iterable[Named], now: datetime) -> dict[int, bool]:
    """Store the provider ids of deliveries, and take the callbacks that came before; True for ok.

    A callback from before the message was accepted is ignored: it concerns another message with the
    same id, or is a guess.
    """
    since = {correlation_id(entry.consumer_id, entry.provider_id): entry for entry in named}
    if not since:
        return {}
    rows = sorted((key, entry.delivery_id) for key, entry in since.items())
    # In key order, so that two writers cannot deadlock.
    texts = ", ".join(f"({key:d}, {delivery_id:d}, %s)" for key, delivery_id in rows)
    raw.execute(
        f"INSERT INTO {CORRELATIONS} (id, delivery_id, noted_at) VALUES {texts} {NOTED}",
        [raw.text(now)] * len(rows),
    )
    ours = raw.listed(key for key, _ in rows)
    # Locked, so that this sees callbacks committed after the transaction began.
    stored = raw.read(
        f"SELECT id, delivery_id, ok, CAST(noted_at AS CHAR) FROM {CORRELATIONS} "
        f"WHERE id IN ({ours}) AND ok IS NOT NULL{dialect.locked}"
    )
    if not stored:
        return {}
    gone = raw.listed(key for key, *_ in stored)
    raw.execute(
        f"UPDATE {CORRELATIONS} SET ok = NULL, noted_at = %s WHERE id IN ({gone})", [raw.text(now)]
    )
    words = {
        delivery_id: bool(ok)
        for key, delivery_id, ok, said_at in stored
        if raw.instant(said_at) >= since[key].accepted_at - CLOCKS_DIFFER
    }
    metrics.ACKS.labels(acks.AckResult.EARLY).inc(len(words))
    metrics.ACKS.labels("foreign").inc(len(stored) - len(words))
    return words


def find(
    consumer_id: int, statuses: Sequence[ProviderStatus], now: datetime
) -> list[ProviderReport]:
    """Return the deliveries that these statuses are about, in their order.

    A status with an unknown id is kept until the response that contains the id is recorded
    (`correlated`), like early acknowledgements. If none does, it concerned another sender's
    message.
    """
    keys = [correlation_id(consumer_id, status.provider_id) for status in statuses]
    delivery_ids = dict(
        Correlation.objects.filter(id__in=keys, delivery_id__isnull=False).values_list(
            "id", "delivery_id"
        )
    )
    reports = []
    for key, status in zip(keys, statuses, strict=True):
        delivery_id, result = delivery_ids.get(key), None
        if delivery_id is None:
            delivery_id, result = _stored_result(key, status, now)
        reports.append(ProviderReport(delivery_id, status.ok, result))
    return reports


def forget_provider_statuses(now: datetime) -> Iterator[int]:
    """Delete ids that are too old for a callback; yield the number of each batch."""
    # If almost all are old, MariaDB would sort the whole table for each batch.
    indexed = by_index(Correlation.objects.all(), "correlation_age")
    rest = old = indexed.filter(noted_at__lt=now - PROVIDER_STATUS_RETENTION).order_by("noted_at")
    while gone := list(rest.values_list("id", "ok", "noted_at")[:BATCH]):
        rows = Correlation.objects.filter(id__in=[key for key, _, _ in gone])
        rows._raw_delete(rows.db)
        # InnoDB keeps deleted rows in the index for a while: do not read them again each time.
        rest = old.filter(noted_at__gte=gone[-1][-1])
        metrics.ACKS.labels("foreign").inc(sum(ok is not None for _, ok, _ in gone))
        yield len(gone)


def _stored_result(
    key: int, status: ProviderStatus, now: datetime
) -> tuple[int | None, AckResult | None]:
    # The response may be recorded at this moment; then this insert collides, and runs again. The
    # metric counts it once its delivery is known: it may concern another sender's message.
    delivery_id, result = transactions.run(
        lambda: _keep(key, status, now), on_collision=lambda: None
    )
    if result is not None:
        failpoints.reach("after_early_callback")
    return delivery_id, result


def _keep(key: int, status: ProviderStatus, now: datetime) -> tuple[int | None, AckResult | None]:
    row = Correlation.objects.filter(id=key).first()
    if row is None:
        Correlation.objects.create(id=key, ok=status.ok, noted_at=now)
        failpoints.reach("in_early_callback")
        return None, AckResult.EARLY
    if row.delivery_id is None:
        return None, AckResult.DOUBLE
    return row.delivery_id, None
