"""Auditor: the steps of an audit in order, each short, so that one may pause between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from channels_app.models import Channel, Consumer
from channels_app.rules import ids
from delivery.models import Pruned
from delivery.rules.accounting import Books, Check, Finding, Place
from delivery.steps import audit, recount

GRACE = timedelta(minutes=5)
MOST_WAITING = 1000
"""Messages that are told to wait for their fan-out; where nobody fans out there may be millions."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asked to have audited."""

    since: datetime | None = None
    """Messages accepted from here on; None: from the first."""
    until: datetime | None = None
    channel: Channel | None = None
    consumers: tuple[Consumer, ...] | None = None
    """None: all of the channel, or of all channels."""
    grace: timedelta = GRACE
    """How long something may be under way before it is called late."""


class Auditor:
    """One run. ``steps`` does the work; then ``books`` and ``findings`` hold what came out."""

    def __init__(self, wanted: Wanted, *, now: datetime, most_ids: int) -> None:
        self._wanted = wanted
        self._parties = audit.Parties(wanted.grace)
        self.books = Books(most_ids)
        newest = audit.newest()
        self.scope = audit.Scope(
            first=_id_at(wanted.since) if wanted.since else 0,
            last=min(newest, _id_at(wanted.until) - 1) if wanted.until else newest,
            channel_ids=_channel_ids(wanted),
            consumer_ids=_consumer_ids(wanted),
            before=now - wanted.grace,
        )

    def steps(self) -> Iterator[float]:
        """Look at everything, step by step; yields how much of it is done, from 0 to 1."""
        with audit.snapshot():
            self._parties.refresh()
            audit.waiting(self.books, self.scope, MOST_WAITING)
        yield 0.0
        yield from self._messages()
        yield from self._counters()

    def findings(self) -> list[Finding]:
        """What is off, in the order of the checks, with names for ids."""
        found = [
            Finding(check, *self._names(place), off.count, tuple(off.ids))
            for (check, place), off in self.books.off.items()
        ]
        order = list(Check)
        return sorted(found, key=lambda it: (order.index(it.check), it.channel, it.consumer))

    @property
    def parties(self) -> audit.Parties:
        """Names of channels and consumers, as the last step knew them."""
        return self._parties

    def _messages(self) -> Iterator[float]:
        first, last = self.scope.first, self.scope.last
        begins = first
        while first <= last:
            with audit.snapshot():
                self._parties.refresh()
                stretch = audit.next_stretch(self.scope, first)
                audit.look(self.books, self.scope, stretch, self._parties)
            first = stretch.last + 1
            begins = begins or stretch.first
            yield (first - begins) / (last - begins + 1)

    def _counters(self) -> Iterator[float]:
        for party in list(self._parties.by_id.values()):
            # While a channel is being deleted, its counters stay to the end.
            if not self._is_meant(party) or Pruned.is_all(party.channel_id):
                continue
            wrong = recount.difference(party.id)
            names = [f"{state} {number:+,}" for (_, state), number in sorted(wrong.items())]
            self.books.note(Check.COUNTERS, party.place, names)
            yield 1.0

    def _is_meant(self, party: audit.Party) -> bool:
        channels = self.scope.channel_ids
        return self.scope.has(party.id) and (channels is None or party.channel_id in channels)

    def _names(self, place: Place) -> tuple[str, str]:
        party = self._parties.by_id.get(place.consumer_id)
        return (
            self._parties.slugs.get(place.channel_id, ""),
            party.client_id if party else "",
        )


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


def _id_at(instant: datetime) -> int:
    return ids.first_id_at(int(instant.timestamp() * 1000))
