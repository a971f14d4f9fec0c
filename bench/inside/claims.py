"""Measure the time and the rows read of the pump's own statements in these tables.

No other process may deliver meanwhile. Claimed deliveries are released at the end.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from django.db import connection

from bench.flow import Tell
from bench.inside.history import CHANNEL
from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import Channel, Consumer
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.queue import claim, due_times, fanout, release
from delivery.queue.claim import ClaimRequest

BATCH = 100
"""Rows of one claim, messages of one fan-out."""
WARM_UP = 3
OWNER = 4711
LEASE_MS = 600_000
SLOT = 12
"""Shard of the counters."""
TARGET = "claims"
"""Channel of the messages that are fanned out; its consumer is paused."""


def main(arguments: Sequence[str], tell: Tell) -> dict[str, float]:
    """``SAMPLES``: return medians in milliseconds, and rows read per requested row or consumer."""
    (samples,) = map(int, arguments)
    consumers = dict(Consumer.objects.filter(channel__slug=CHANNEL).values_list("client_id", "id"))
    target = _target()
    looks = {
        "claim": Cost(lambda: _claim(consumers["steady"])),
        "discover": Cost(lambda: len(due_times.next_due(consumers.values())) or 1),
        "dispatch": Cost(_fan_out_messages, before=lambda: _accept(target)),
    }
    for sample in range(-WARM_UP, samples):
        for look in looks.values():
            look.take(is_counted=sample >= 0)
        tell(max(0, sample + 1), samples)
    release.release_owner(OWNER, now=clock.now(), slot=SLOT)
    found: dict[str, float] = {}
    for name, look in looks.items():
        found[f"{name}_ms"] = median(look.milliseconds)
        found[f"{name}_reads"] = sum(look.reads) / sum(look.rows)
    return found


@dataclass(slots=True)
class Cost:
    """Measures one kind of work repeatedly."""

    work: Callable[[], int]
    """Returns the number of rows that it handled."""
    before: Callable[[], object] = lambda: None
    milliseconds: list[float] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def take(self, *, is_counted: bool) -> None:
        """Do the work once."""
        self.before()
        with _reading() as reads:
            start = time.perf_counter()
            rows = self.work()
            passed = time.perf_counter() - start
        if is_counted:
            self.milliseconds.append(passed * 1000)
            self.reads += reads
            self.rows.append(rows)


def _claim(consumer_id: int) -> int:
    requests = [ClaimRequest(consumer_id, BATCH, LEASE_MS, OWNER)]
    return len(claim.claim(requests, now=clock.now(), slot=SLOT).rows)


def _fan_out_messages() -> int:
    return fanout.fan_out(BATCH, SLOT).message_count


def _accept(channel: ChannelConfig) -> None:
    accept.accept(channel, None, [Publication(body=b"{}")] * BATCH)


def _target() -> ChannelConfig:
    channel, is_new = Channel.objects.get_or_create(slug=TARGET)
    if is_new:
        Consumer.objects.create(
            channel=channel, client_id=TARGET, url="http://127.0.0.1:9/", state="paused"
        )
    config_cache.refresh(now=True)
    view = config_cache.channel(TARGET)
    assert view is not None
    return view


@contextmanager
def _reading() -> Iterator[list[int]]:
    """Yield a list whose only element is the number of rows that this connection read.

    Reading the counter reads a constant number of rows itself. SQLite does not count rows.
    """
    reads: list[int] = []
    if connection.vendor != "mysql":
        yield reads
        reads.append(0)
        return
    looking = _read_so_far()
    before = _read_so_far()
    yield reads
    reads.append(_read_so_far() - before - (before - looking))


def _read_so_far() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _, count in cursor.fetchall())
