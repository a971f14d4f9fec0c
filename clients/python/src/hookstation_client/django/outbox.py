"""Write messages into the outbox, and relay them to the broker.

Order: a relay reads the outbox in the order of its rows and publishes a row only when all rows
before it of the same channel are stored. So two relays at the same time keep the order of an
ordering key, too: each publishes the earlier row itself, or saw that it was gone, and a message
that both publish is stored once. (``select_for_update(skip_locked=True)`` would break it: the
second relay skips the row that the first one holds, and publishes the next one of the same key.)
Rows of one key must be written in the order in which they are to be published: transactions that
write the same key serialise on a row of their own, which is what they have the key for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections, router, transaction
from django.db.models import Q
from django.utils import timezone as clock

from hookstation_client.client import Hookstation
from hookstation_client.errors import BadRequest, Conflict, HookstationError
from hookstation_client.models import BatchResult, Outgoing

if TYPE_CHECKING:
    from hookstation_client.django.models import OutboxMessage

logger = logging.getLogger("hookstation_client.django")

BATCH_MESSAGES = 200
BATCH_BYTES = 4 * 1024 * 1024
LEASE = timedelta(seconds=10)
"""Renewed with each batch. So long the outbox waits after a relay was killed."""
PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
_INSTANTS = ("deliver_at", "expires_at")
_FINAL = (BadRequest, Conflict)
"""Refusals that another try does not change."""


def publish_on_commit(
    channel: str,
    body: Any,
    *,
    id: str | None = None,
    event_type: str | None = None,
    ordering_key: str | None = None,
    priority: int | None = None,
    deliver_at: datetime | None = None,
    deliver_in: float | None = None,
    expires_at: datetime | None = None,
    headers: Mapping[str, str] | None = None,
    content_type: str | None = None,
    using: str | None = None,
) -> OutboxMessage:
    """Publish a message if the current transaction commits (S1-02).

    It is a row of that transaction: rolled back, nothing is published; committed, it is published
    at least once, whoever is killed, and stored by the broker once, because its idempotency key
    ``id`` is fixed now. The other options are those of `Hookstation.publish`. ``using`` names the
    database, by default that of the outbox's model.
    """
    from hookstation_client.django.models import OutboxMessage  # noqa: PLC0415 - apps must be ready

    content, kind = Outgoing(body, content_type=content_type, id="-").content()
    if deliver_in is not None:
        deliver_at = datetime.now(timezone.utc) + timedelta(seconds=deliver_in)
    said = {
        "event_type": event_type,
        "ordering_key": ordering_key,
        "priority": priority,
        "deliver_at": _text(deliver_at),
        "expires_at": _text(expires_at),
        "headers": dict(headers) if headers else None,
    }
    using = using or router.db_for_write(OutboxMessage)
    row: OutboxMessage = OutboxMessage.objects.using(using).create(
        channel=channel,
        idempotency_key=id or str(uuid.uuid4()),
        body=content,
        content_type=kind,
        options={name: value for name, value in said.items() if value is not None},
    )
    if getattr(settings, "HOOKSTATION_RELAY_ON_COMMIT", True):
        transaction.on_commit(lambda: wake(using), using=using)
    return row


class Relay:
    """Publishes what is in the outbox of one database."""

    def __init__(self, using: str = "default", client: Hookstation | None = None) -> None:
        self.using = using
        self.client = client or Hookstation(
            getattr(settings, "HOOKSTATION_URL", None),
            key=getattr(settings, "HOOKSTATION_KEY", None),
        )
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"

    def drain(self, is_ending: Callable[[], bool] = lambda: False) -> int:
        """Publish all that can be published now; returns how many messages the broker stored.

        A channel whose messages cannot be published now is left for the next time, the others go
        on. Raises the client's error when that was so of any, at the end; returns early while
        another relay is at work.
        """
        published = 0
        failed: dict[str, HookstationError] = {}
        try:
            while not is_ending() and self._hold():
                rows = self._next(list(failed))
                if not rows:
                    break
                try:
                    published += self._publish(rows)
                except HookstationError as error:
                    logger.warning("channel %s: %s", rows[0].channel, error)
                    failed[rows[0].channel] = error
        finally:
            self._let_go()
        for first in failed.values():
            raise first
        return published

    def drain_all(self) -> int:
        """As `drain`, and wait while another relay is at work, until nothing is left."""
        published = self.drain()
        while self.has_waiting():
            time.sleep(PAUSE_S)
            published += self.drain()
        return published

    def has_waiting(self) -> bool:
        """Whether there is anything to publish."""
        from hookstation_client.django.models import waiting  # noqa: PLC0415 - as above

        return bool(waiting(self.using).exists())

    def _hold(self) -> bool:
        """Be the one relay for a while; False while another one is.

        It only saves work: if the lease ends too early, two relay, and no harm is done.
        """
        from hookstation_client.django.models import OutboxRelay  # noqa: PLC0415 - as above

        rows = OutboxRelay.objects.using(self.using)
        now = clock.now()
        rows.get_or_create(id=1, defaults={"held_until": now})
        free = Q(holder=self._name) | Q(held_until__lte=now)
        return bool(rows.filter(free, id=1).update(holder=self._name, held_until=now + LEASE))

    def _let_go(self) -> None:
        from hookstation_client.django.models import OutboxRelay  # noqa: PLC0415 - as above

        mine = OutboxRelay.objects.using(self.using).filter(id=1, holder=self._name)
        mine.update(held_until=clock.now())

    def _next(self, without: list[str]) -> list[OutboxMessage]:
        """The oldest messages of a channel, as many as make a batch."""
        from hookstation_client.django.models import waiting  # noqa: PLC0415 - as above

        rows: list[OutboxMessage] = []
        size = 0
        found = waiting(self.using).exclude(channel__in=without)
        for row in found[:BATCH_MESSAGES].iterator(chunk_size=20):
            size += len(row.body)
            if rows and (row.channel != rows[0].channel or size > BATCH_BYTES):
                break
            rows.append(row)
        return rows

    def _publish(self, rows: list[OutboxMessage]) -> int:
        """Publish a batch in one transaction of the broker, and delete what it has stored."""
        from hookstation_client.django.models import OutboxMessage  # noqa: PLC0415 - as above

        stored, later = [], None
        for row, result in zip(rows, self._results(rows)):
            if result.error is None:
                stored.append(row.pk)
            elif isinstance(result.error, _FINAL):
                logger.error("the broker refused %s for good: %s", row, result.error)
                row.refused_at, row.error = clock.now(), str(result.error)
                row.save(using=self.using, update_fields=["refused_at", "error"])
            else:
                later = result.error
        OutboxMessage.objects.using(self.using).filter(pk__in=stored).delete()
        if later is not None:
            raise later
        return len(stored)

    def _results(self, rows: list[OutboxMessage]) -> list[BatchResult]:
        messages = [_outgoing(row) for row in rows]
        try:
            return self.client.publish_batch(rows[0].channel, messages)
        except BadRequest as error:
            if len(rows) == 1:
                return [BatchResult(None, error)]
        # One of them makes the request unusable: each by itself.
        return [self._results([row])[0] for row in rows]


class _Background:
    """The thread of this process that relays what its transactions have committed."""

    def __init__(self, using: str) -> None:
        self.pid = os.getpid()
        self._using = using
        self._has_work = threading.Event()
        threading.Thread(target=self._run, name=f"outbox {using}", daemon=True).start()

    def wake(self) -> None:
        """There is something to relay."""
        self._has_work.set()

    def _run(self) -> None:
        relay, pause = None, PAUSE_S
        while True:
            self._has_work.wait()
            self._has_work.clear()
            try:
                close_old_connections()
                relay = relay or Relay(self._using)
                relay.drain()
                # Another relay may have ended just before it saw what we were woken for.
                is_done = not relay.has_waiting()
            except (HookstationError, DatabaseError, ValueError) as error:
                logger.warning("the outbox waits, again in %.1f s: %s", pause, error)
                is_done = False
            finally:
                close_old_connections()
            if is_done:
                pause = PAUSE_S
            else:
                time.sleep(pause)
                pause = min(MAX_PAUSE_S, pause * 2)
                self._has_work.set()


_threads: dict[str, _Background] = {}
_lock = threading.Lock()


def wake(using: str = "default") -> None:
    """Relay what is in the outbox, in the background of this process."""
    with _lock:
        thread = _threads.get(using)
        if thread is None or thread.pid != os.getpid():  # threads do not survive a fork
            thread = _threads[using] = _Background(using)
    thread.wake()


def _outgoing(row: OutboxMessage) -> Outgoing:
    said = dict(row.options)
    for name in _INSTANTS:
        if name in said:
            said[name] = datetime.fromisoformat(said[name])
    body = bytes(row.body)
    return Outgoing(body, id=row.idempotency_key, content_type=row.content_type, **said)


def _text(instant: datetime | None) -> str | None:
    if instant is not None and instant.tzinfo is None:
        raise ValueError("The datetime needs a time zone.")
    return instant.isoformat() if instant else None
