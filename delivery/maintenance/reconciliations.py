"""Reconcile the last hours often, everything once a day, and what a command asks for."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from channels_app.conf import MAX_TIMEOUT_MS
from channels_app.core import ids
from channels_app.database import clock, transactions
from channels_app.models import Channel, Consumer
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.conf import conf
from delivery.core.lifecycle import DeliveryState
from delivery.core.reconciliation import Check, Mismatch, MismatchPlace, Reconciliation
from delivery.maintenance import checks, counters, overdue, reconciliation_scope
from delivery.maintenance.reconciliation_scope import ConfigSnapshot, Scope, next_key_range
from delivery.models import Counter, ReconciliationReport, RetentionMark
from delivery.processes import registration
from delivery.queue import due_times

Span = ReconciliationReport.Span
MAX_IDS = 20
MAX_FINDINGS = 200
"""Findings stored in one report; the total number of rows is always stored."""
MAX_COUNTED = 1_000_000
"""Most deliveries of a consumer whose counters are compared: that takes about a second, during
which the maintenance process does nothing else. The command compares all counters."""
RETENTION = {Span.RECENT: timedelta(days=7), Span.EVERYTHING: timedelta(days=400)}
CHECK_INTERVAL_S = 2.0
"""Seconds between two checks of consumers that seem to make no progress."""
BATCH_PAUSE_S = 0.05
MAX_ID = (1 << 63) - 2
Stalled = Mapping[int, tuple[datetime, dict[str, int]]]
"""Consumers that seem to make no progress, with the earliest due time and the counters."""


def recent() -> Iterator[int]:
    """Reconcile the last hours when that is due; yields zeros, because it repairs nothing."""
    now = clock.now()
    if _is_due(Span.RECENT, conf().reconcile_interval_s, now):
        wanted = Wanted(since=now - timedelta(seconds=conf().reconcile_recent_s), counters=False)
        yield from _run(wanted, Span.RECENT, now)


def everything() -> Iterator[int]:
    """Reconcile everything when that is due."""
    now = clock.now()
    if _is_due(Span.EVERYTHING, conf().reconcile_full_interval_s, now):
        yield from _run(Wanted(most_counted=MAX_COUNTED), Span.EVERYTHING, now)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to reconcile."""

    since: datetime | None = None
    """Messages accepted from this time on; None: from the first."""
    until: datetime | None = None
    channel: Channel | None = None
    consumers: tuple[Consumer, ...] | None = None
    """None: all consumers of the channel, or of all channels."""
    grace: timedelta | None = None
    """How long something may wait before it is late; None: the installation's setting."""
    counters: bool = True
    """Whether to compare counters, which counts all rows, however short the time range is."""
    most_counted: int | None = None
    """Skip the counters of consumers with more deliveries: each count is one long query."""

    @property
    def is_narrow(self) -> bool:
        """Whether some channels or consumers are excluded."""
        return self.channel is not None or self.consumers is not None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is excluded."""
        return not (self.is_narrow or self.since or self.until)


class Reconciler:
    """One run. ``steps`` does the work; then ``result`` and ``findings`` have the results."""

    def __init__(self, wanted: Wanted, *, now: datetime, most_ids: int) -> None:
        self.wanted = wanted
        self._now = now
        usual = timedelta(seconds=conf().reconcile_grace_s)
        self._grace = usual if wanted.grace is None else wanted.grace
        self.config = ConfigSnapshot(self._grace)
        """Names of channels and consumers at the last step."""
        self.result = Reconciliation(most_ids)
        newest = reconciliation_scope.newest()
        self.scope = Scope(
            first=ids.id_at(wanted.since) if wanted.since else 0,
            last=min(newest, ids.id_at(wanted.until) - 1) if wanted.until else newest,
            channel_ids=_channel_ids(wanted),
            consumer_ids=_consumer_ids(wanted),
            before=now - self._grace,
        )

    def steps(self) -> Iterator[float]:
        """Run all checks step by step; yield the share that is done, from 0 to 1."""
        with transactions.snapshot():
            self.config.refresh()
        recheck_at = time.monotonic() + CHECK_INTERVAL_S
        stalled = self._stalled() if self._is_served() else {}
        yield 0.0
        yield from self._messages()
        if not self.wanted.is_narrow:  # these rows have no channel or consumer
            yield from self._orphans()
            yield from self._lost()
        if self.wanted.counters:
            yield from self._counters()
        if self._is_served():
            overdue.messages(self.result, self.scope)
            # Leases of pull consumers have any length, and stay expired until a worker receives.
            pushed = [key for key in self._meant() if self.config.consumers[key].is_pushed]
            overdue.leases(self.result, pushed, before=self.scope.before, latest=self._latest())
            yield 1.0
            while stalled and time.monotonic() < recheck_at:
                time.sleep(BATCH_PAUSE_S)
                yield 1.0
            self._late(stalled)
        yield 1.0

    def findings(self) -> list[Mismatch]:
        """Return the discrepancies in the order of the checks, with names for ids."""
        findings = [
            Mismatch(check, place, *self._names(place), off.count, tuple(off.ids))
            for (check, place), off in self.result.off.items()
        ]
        order = list(Check)
        return sorted(
            findings,
            key=lambda finding: (order.index(finding.check), finding.channel, finding.consumer),
        )

    def _messages(self) -> Iterator[float]:
        first, last = self.scope.first, self.scope.last
        begins = first
        while first <= last:
            with transactions.snapshot():
                self.config.refresh()
                key_range = next_key_range(self.scope, first)
                checks.check(self.result, self.scope, key_range, self.config)
            first = key_range.last + 1
            begins = begins or key_range.first
            yield (first - begins) / (last - begins + 1)

    def _orphans(self) -> Iterator[float]:
        last = self._last
        for table in checks.TABLES:
            first = self.scope.first
            while first <= last:
                with transactions.snapshot():
                    first = checks.find_orphans(self.result, table, first, last)
                yield 1.0

    def _lost(self) -> Iterator[float]:
        wanted, keys = self.wanted, (self.scope.first, self._last)
        until = wanted.until or self._now
        for after, last in checks.lost_spans(self.config, wanted.since, until, self._grace):
            while after < last:
                with transactions.snapshot():
                    after = checks.find_lost(self.result, after, last, keys)
                yield 1.0

    @property
    def _last(self) -> int:
        """Return the last key for tables read on their own: no newer message may own such rows."""
        return ids.id_at(self.wanted.until) - 1 if self.wanted.until else MAX_ID

    def _counters(self) -> Iterator[float]:
        for consumer_id in self._meant():
            consumer = self.config.consumers[consumer_id]
            # The counters of a channel that is being deleted are deleted last.
            if RetentionMark.is_all(consumer.channel_id) or self._is_too_large(consumer_id):
                continue
            wrong = counters.difference(consumer_id)
            names = [f"{state} {number:+,}" for (_, state), number in sorted(wrong.items())]
            self.result.note(Check.COUNTERS, consumer.place, names)
            yield 1.0

    def _is_too_large(self, consumer_id: int) -> bool:
        most = self.wanted.most_counted
        return most is not None and Counter.read([consumer_id])[consumer_id]["made"] > most

    def _is_served(self) -> bool:
        """Whether lateness can be judged: not if all workers have only just started."""
        pumps = registration.living()
        return not pumps or any(pump.started_at < self.scope.before for pump in pumps)

    def _stalled(self) -> Stalled:
        """Return active consumers with deliveries due too long ago and none in flight."""
        consumers = config_cache.consumers()
        calm = [
            consumer_id
            for consumer_id in self._meant()
            if consumer_id in consumers and self._may_be_called(consumers[consumer_id])
        ]
        late = {
            consumer_id: at
            for consumer_id, at in due_times.next_due(overdue.unblocked(calm, self._now)).items()
            if at < self.scope.before
        }
        counts = Counter.read(late)
        held = DeliveryState.IN_FLIGHT.value
        return {key: (at, counts[key]) for key, at in late.items() if not counts[key][held]}

    def _may_be_called(self, live: ConsumerConfig) -> bool:
        if live.mode != Consumer.Mode.PUSH or live.halted or live.rate is not None:
            return False
        consumer, channel = (
            self.config.consumers[live.id],
            self.config.channels.get(live.channel_id),
        )
        # Deliveries of a consumer that was just resumed have waited until now.
        return channel is not None and max(consumer.since, channel.since) < ids.id_at(self._now)

    def _late(self, first: Stalled) -> None:
        """Record consumers that are found twice without any change; served ones have changed."""
        for consumer_id, stalled in self._stalled().items() if first else ():
            if first.get(consumer_id) == stalled:
                place = self.config.consumers[consumer_id].place
                overdue.deliveries(self.result, place, self.scope.before)

    def _latest(self) -> datetime:
        """Return the latest possible end of any lease given so far."""
        longest = timedelta(milliseconds=MAX_TIMEOUT_MS + conf().lease_grace_ms)
        return clock.now() + longest + self._grace

    def _meant(self) -> list[int]:
        channels = self.scope.channel_ids
        return [
            consumer.id
            for consumer in self.config.consumers.values()
            if self.scope.has(consumer.id) and (channels is None or consumer.channel_id in channels)
        ]

    def _names(self, place: MismatchPlace) -> tuple[str, str]:
        consumer = self.config.consumers.get(place.consumer_id)
        return self.config.slug(place.channel_id), consumer.client_id if consumer else ""


def keep(reconciler: Reconciler, span: Span, began: datetime) -> ReconciliationReport:
    """Store the result of a reconciliation."""
    result = reconciler.result
    states: dict[str, int] = {}
    for account in result.accounts.values():
        for state, number in account.states.items():
            states[state] = states.get(state, 0) + number
    return ReconciliationReport.objects.create(
        span=span,
        since=reconciler.wanted.since,
        until=began,
        started_at=began,
        finished_at=clock.now(),
        message_count=result.looked["messages"],
        delivery_count=result.looked["deliveries"],
        states=states,
        gap=result.gap,
        checks={check.value: number for check, number in result.by_check().items() if number},
        findings=[
            asdict(finding) | {"sentence": finding.sentence}
            for finding in reconciler.findings()[:MAX_FINDINGS]
        ],
    )


def newest() -> dict[str, ReconciliationReport]:
    """Return the last report of each span; a span without any is absent."""
    reports = {span: _newest(span) for span in Span}
    return {span.value: report for span, report in reports.items() if report is not None}


def forget(now: datetime) -> int:
    """Delete reports past their retention; return how many."""
    return sum(
        ReconciliationReport.objects.filter(span=span, finished_at__lt=now - kept).delete()[0]
        for span, kept in RETENTION.items()
    )


def _is_due(span: Span, every_s: int, now: datetime) -> bool:
    if not every_s or not _is_settled(now):
        return False
    last = _newest(span)
    # A last run in the future means that the clock was set back.
    return last is None or not now - timedelta(seconds=every_s) < last.started_at <= now


def _is_settled(now: datetime) -> bool:
    """Whether a pump has run long enough: just after a start many deliveries are late."""
    since = now - timedelta(seconds=conf().reconcile_grace_s)
    return any(pump.started_at < since for pump in registration.living())


def _newest(span: Span) -> ReconciliationReport | None:
    return ReconciliationReport.objects.filter(span=span).order_by("-finished_at").first()


def _run(wanted: Wanted, span: Span, now: datetime) -> Iterator[int]:
    reconciler = Reconciler(wanted, now=now, most_ids=MAX_IDS)
    for _ in reconciler.steps():
        yield 0
    keep(reconciler, span, now)


def _channel_ids(wanted: Wanted) -> frozenset[int] | None:
    if wanted.channel is not None:
        return frozenset({wanted.channel.id})
    if wanted.consumers is not None:
        return frozenset(consumer.channel_id for consumer in wanted.consumers)
    return None


def _consumer_ids(wanted: Wanted) -> frozenset[int] | None:
    if wanted.consumers is None:
        return None
    return frozenset(consumer.id for consumer in wanted.consumers)
