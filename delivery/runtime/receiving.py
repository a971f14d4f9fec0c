"""Receiving: what a pull consumer takes, and the waiting for it while there is nothing."""

import itertools
import os
import threading
import time
from collections.abc import Hashable, Iterable
from datetime import timedelta
from typing import NamedTuple

from channels_app import clock, failpoints, keystore
from channels_app.api.places import Places
from channels_app.directory import ConsumerView, directory
from delivery import metrics
from delivery.rules import leases
from delivery.rules.claimed import Claimed
from delivery.rules.leases import Lease
from delivery.rules.outcome import Outcome
from delivery.runtime import handout, leasing, slots
from delivery.runtime.circles import circles
from delivery.runtime.handout import Share
from delivery.runtime.line import GUARD_EVERY
from delivery.runtime.wake import hurry
from delivery.steps import dispatch, horizon, parcels, release, sharing
from delivery.steps import leases as steps
from delivery.steps.claim import Want
from delivery.steps.parcels import Parcel

POLL_S = 0.05
"""How often the tables are asked, by one of all who wait in this process."""
MOST_BYTES = 8 * 1024 * 1024
"""Of all bodies in one answer, unless it has a single message; the others come by their address."""
STICKY_PAUSE_S = 0.2
NOTED_EVERY_S = 10.0
MOST_NOTED = 10_000
"""Workers of whom this process remembers that it wrote them down."""
EMPTY_TRIES = 5
"""Claims in a row of which nothing is left, because all that was due had expired."""

polls = Places()
"""For those who wait; without a limit until the web server says how many."""


class Wish(NamedTuple):
    """What a worker asks for."""

    most: int
    lease_ms: int
    worker: str
    settled: bool = False
    """At most once: closed before it is handed out."""
    sticky: bool = False
    """Keys stay with the worker, as far as the others of its kind let it (S2-66)."""
    resume: bool = False
    """First what the worker holds already: it died, and is back (S4-R4)."""


class Handed(NamedTuple):
    """One delivery in a worker's hands."""

    row: Claimed
    parcel: Parcel
    """Without a body where the answer has no room for it."""
    token: str


def receive(view: ConsumerView, wish: Wish) -> list[Handed]:
    """What is due now, best first, leased to the worker; nothing while the consumer is halted.

    Raises rules.encryption.KeyMissing, before anything is taken, where no lease can be signed.
    """
    if view.halted or view.mode != "pull":
        return []
    keystore.signing_key(leasing.PURPOSE)
    owner = leases.owner_of(view.id, wish.worker)
    share = (_resumed if wish.resume else _claimed)(view, wish, owner)
    _note(owner, view.id, wish.worker)
    rows = share.rows
    if not rows:
        return []
    contents = _contents(share)
    rows = _opened(rows, contents, owner)
    held = {row.id: _lease(row, wish.worker) for row in rows}
    broken = [row for row in rows if contents[row.message_id].error]
    for row in broken:
        parcel = contents[row.message_id]
        leasing.end([held[row.id]], parcel.outcome, error=parcel.error)
    whole = [row for row in rows if row not in broken]
    if wish.settled:
        leasing.end([held[row.id] for row in whole], Outcome.DELIVERED)
    failpoints.reach("before_handout")
    metrics.RECEIVED.inc(len(whole))
    return [Handed(row, contents[row.message_id], leasing.token(held[row.id])) for row in whole]


def receive_patiently(
    view: ConsumerView, wish: Wish, wait_s: float, *, owner: Hashable
) -> list[Handed] | None:
    """As `receive`, waiting up to ``wait_s`` seconds for something; None without a place to wait.

    Who waits holds one of the web server's threads, so there are few places, and ``owner`` never
    has all of them.
    """
    end = time.monotonic() + wait_s
    handed = receive(view, wish)
    if handed or wait_s <= 0:
        return handed
    if not polls.take(owner, waits=False):
        metrics.POLLS_REFUSED.inc()
        return None
    try:
        while not handed and (left := end - time.monotonic()) > 0:
            watch.wait(view.id, left)
            now = directory.consumers().get(view.id)
            if now is None or now.mode != "pull" or watch.is_over:
                break
            handed = receive(now, wish)
            if wish.sticky and not handed:
                # What is due is another one's, and would wake this one again and again.
                time.sleep(min(STICKY_PAUSE_S, max(0.0, end - time.monotonic())))
    finally:
        polls.give_back(owner)
    return handed


class Watch:
    """Those of this process who wait; one at a time asks the tables for all of them."""

    def __init__(self) -> None:
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._waiting: dict[int, list[threading.Event]] = {}
        self._asked_at = float("-inf")
        self.is_over = False
        """This process was told to stop: nobody waits any more."""

    def end(self) -> None:
        """Let go all who wait, and whoever would: they get what there is, which is nothing."""
        self.is_over = True
        with self._lock:
            self._wake(itertools.chain.from_iterable(self._waiting.values()))

    def wait(self, consumer_id: int, seconds: float) -> None:
        """Until the consumer has something due, as far as one can see, or ``seconds`` are over."""
        end, event = time.monotonic() + seconds, threading.Event()
        with self._lock:
            self._waiting.setdefault(consumer_id, []).append(event)
        try:
            while not self.is_over and (left := end - time.monotonic()) > 0:
                self._ask()
                if event.wait(min(left, POLL_S)):
                    return
        finally:
            with self._lock:
                self._waiting[consumer_id].remove(event)
                if not self._waiting[consumer_id]:
                    del self._waiting[consumer_id]

    def _ask(self) -> None:
        if time.monotonic() - self._asked_at < POLL_S or not self._asking.acquire(blocking=False):
            return
        try:
            self._asked_at = time.monotonic()
            with self._lock:
                waiting = {key: list(events) for key, events in self._waiting.items()}
            views = directory.consumers()
            for key in waiting:
                if key not in views or views[key].mode != "pull":
                    self._wake(waiting[key])  # nothing will come any more: its place is free
            # Of a halted one much may be due; it would wake them for nothing again and again.
            able = [key for key in waiting if key in views and not views[key].halted]
            now = clock.now()
            for consumer_id, due_at in horizon.next_due(able).items():
                if due_at <= now:
                    self._wake(waiting[consumer_id])
        finally:
            self._asking.release()

    @staticmethod
    def _wake(events: Iterable[threading.Event]) -> None:
        for event in events:
            event.set()


watch = Watch()
_turns = itertools.count(1)
_noted: dict[int, float] = {}


def _claimed(view: ConsumerView, wish: Wish, owner: int) -> Share:
    """What is due, and where that is too little what is accepted and not fanned out yet.

    So who receives after the answer to a publish finds the message.
    """
    share = _due(view, wish, owner)
    if len(share.rows) == wish.most:
        return share
    if not _fan_out(view.channel_id) and share.rows:
        return share
    # Of an empty one another process may have fanned out a message between the two looks.
    more = _due(view, wish._replace(most=wish.most - len(share.rows)), owner)
    return more._replace(rows=share.rows + more.rows, parcels=share.parcels | more.parcels)


def _fan_out(channel_id: int) -> bool:
    """Whether anything of the channel was waiting for its fan-out."""
    found = False
    for made in dispatch.dispatch_channel(channel_id, os.getpid()):
        found = True
        if made.due:
            hurry(made.due)
    return found


def _due(view: ConsumerView, wish: Wish, owner: int) -> Share:
    for _ in range(EMPTY_TRIES):
        want = Want(
            view.id,
            wish.most,
            wish.lease_ms,
            owner,
            oldest_first=next(_turns) % GUARD_EVERY == 0,
            spare=wish.most,
        )
        share = _own(want, wish, owner) if wish.sticky else handout.take(want)
        if share.rows or not share.has_expired:
            break
    return share


def _resumed(view: ConsumerView, wish: Wish, owner: int) -> Share:
    """First what the worker holds, as attempts of its own: its former self settles none of it."""
    mine = steps.held(view.id, owner, wish.most, clock.now())
    want = Want(view.id, wish.most, wish.lease_ms, owner)
    held = handout.take_chosen(mine, want, anew=True)
    if len(held.rows) == wish.most:
        return held
    more = _claimed(view, wish._replace(most=wish.most - len(held.rows)), owner)
    return Share(held.rows + more.rows, held.parcels | more.parcels, more.has_expired)


def _own(want: Want, wish: Wish, owner: int) -> Share:
    """Of keys that are the worker's, and without one; joins the others by asking."""
    workers = circles.around(owner, want.consumer_id, wish.worker, wish.lease_ms)
    chosen = sharing.choose(
        want.consumer_id, want.limit, owner, workers, clock.now(), oldest_first=want.oldest_first
    )
    return handout.take_chosen(chosen, want)


def _lease(row: Claimed, worker: str) -> Lease:
    return Lease(
        delivery_id=row.id,
        consumer_id=row.consumer_id,
        attempt=row.attempt,
        failure_count=row.failure_count,
        interruption_count=row.interruption_count,
        accepted_at=row.accepted_at,
        taken_at=clock.now(),
        worker=worker,
        ordering_key=row.ordering_key,
    )


def _contents(share: Share) -> dict[int, Parcel]:
    """What each message carries, large bodies as long as there is room."""
    found = {
        row.message_id: share.parcels.get(row.message_id, parcels.MISSING) for row in share.rows
    }
    room = MOST_BYTES - sum(parcel.size for parcel in found.values() if not parcel.is_left)
    for message_id, parcel in found.items():
        if parcel.is_left and (parcel.size <= room or len(found) == 1):
            room -= parcel.size
            found[message_id] = parcels.load([message_id]).get(message_id, parcels.MISSING)
    return found


def _opened(rows: list[Claimed], contents: dict[int, Parcel], owner: int) -> list[Claimed]:
    """Those that are not sealed with a key that this process lacks; the others are given back."""
    lacking: dict[str, list[Claimed]] = {}
    for row in rows:
        lacking.setdefault(contents[row.message_id].missing_key, []).append(row)
    whole, now = lacking.pop("", []), clock.now()
    for key_id, some in lacking.items():
        due_at = now + timedelta(seconds=slots.announcement.miss(key_id))
        metrics.UNOPENED.inc(
            release.give_back(some, owner=owner, due_at=due_at, now=now, slot=os.getpid())
        )
    return whole


def _note(owner: int, consumer_id: int, worker: str) -> None:
    ticks = time.monotonic()
    if ticks - _noted.get(owner, float("-inf")) < NOTED_EVERY_S:
        return
    if len(_noted) > MOST_NOTED:
        _noted.clear()
    _noted[owner] = ticks
    steps.note_worker(owner, consumer_id, worker, clock.now())
