"""Write messages into the outbox, and relay them to the broker.

Order: a relay reads the outbox in row order, and publishes a row only when the broker has stored
all earlier rows of the same channel. So the order of an ordering key holds even if two relays run
at the same time: each publishes the earlier row itself or sees that it is deleted, and the broker
stores a message that both publish only once. (``select_for_update(skip_locked=True)`` would break
the order: the second relay would skip the row that the first one has locked, and publish the next
one of the same key.) The application must write the rows of one key in order; usually its
transactions lock a common row, for example the order that the key identifies.
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
"""Renewed with each batch. After a relay is killed, publishing stops for up to this time."""
PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
_INSTANTS = ("deliver_at", "expires_at")
_FINAL = (BadRequest, Conflict)
"""Refusals that a retry does not change."""


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

    The message is a row that this transaction writes. If the transaction rolls back, nothing is
    published. If it commits, the message is published at least once, even if processes are killed,
    and the broker stores it once, because its idempotency key ``id`` is set now. The other options
    are those of `Hookstation.publish`. ``using`` names the database, by default that of the
    outbox's model.
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
    """Publishes the messages in the outbox of one database."""

    def __init__(self, using: str = "default", client: Hookstation | None = None) -> None:
        self.using = using
        self.client = client or Hookstation(
            getattr(settings, "HOOKSTATION_URL", None),
            key=getattr(settings, "HOOKSTATION_KEY", None),
        )
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"

    def drain(self, is_ending: Callable[[], bool] = lambda: False) -> int:
        """Publish all messages that can be published now; return how many the broker stored.

        If publishing to a channel fails, the relay leaves its messages for the next time and
        continues with other channels; at the end it raises the first such error. Returns early
        while another relay is active.
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
        """Like `drain`, but wait for another active relay, until the outbox is empty."""
        published = self.drain()
        while self.has_waiting():
            time.sleep(PAUSE_S)
            published += self.drain()
        return published

    def has_waiting(self) -> bool:
        """Return whether there are messages to publish."""
        from hookstation_client.django.models import waiting  # noqa: PLC0415 - as above

        return bool(waiting(self.using).exists())

    def _hold(self) -> bool:
        """Take or renew the relay's lease; return False while another relay has it.

        The lease only saves work. If it ends too early, two relays run, which is safe.
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
        """Return the oldest messages of one channel, as many as fit into a batch."""
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
        """Publish a batch in one request, and delete the rows that the broker stored."""
        from hookstation_client.django.models import OutboxMessage  # noqa: PLC0415 - as above

        stored, later = [], None
        for row, result in zip(rows, self._results(rows)):
            if result.error is None:
                stored.append(row.pk)
            elif isinstance(result.error, _FINAL):
                logger.error("the broker refused %s finally: %s", row, result.error)
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
        # One of them makes the request invalid: send each alone.
        return [self._results([row])[0] for row in rows]


class _Background:
    """The background thread that relays the messages of this process's transactions."""

    def __init__(self, using: str) -> None:
        self.pid = os.getpid()
        self._using = using
        self._has_work = threading.Event()
        threading.Thread(target=self._run, name=f"outbox {using}", daemon=True).start()

    def wake(self) -> None:
        """Tell the thread that there are messages to relay."""
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
                # Another relay may have ended just before it saw the new messages.
                is_done = not relay.has_waiting()
            except (HookstationError, DatabaseError, ValueError) as error:
                logger.warning("cannot relay the outbox, retrying in %.1f s: %s", pause, error)
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
    """Start relaying the outbox in a background thread of this process."""
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
