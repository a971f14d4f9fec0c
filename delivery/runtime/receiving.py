"""Receiving: what a pull consumer takes, and the waiting for it while there is nothing.

Who waits is an entry in a queue (long_polling.py), whose request holds no thread where the server
lets it be answered later.
"""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from django.db import DEFAULT_DB_ALIAS, connections

from channels_app import clock, failpoints, keystore
from channels_app.api.places import Places
from channels_app.directory import ConsumerView, directory
from delivery import metrics
from delivery.rules import leases
from delivery.rules.claimed import Claimed
from delivery.rules.leases import Lease
from delivery.rules.lifecycle import Reason
from delivery.rules.outcome import Outcome
from delivery.rules.taker import Leave, Taker
from delivery.runtime import handout, leasing, slots
from delivery.runtime.circles import circles
from delivery.runtime.handout import Share
from delivery.runtime.line import GUARD_EVERY
from delivery.runtime.long_polling import Told, WaitingReceiver, long_polls
from delivery.runtime.wake import bell, hurry
from delivery.steps import dispatch, parcels, release, sharing
from delivery.steps import leases as steps
from delivery.steps.claim import Want
from delivery.steps.parcels import Parcel

logger = logging.getLogger(__name__)

MOST_BYTES = 8 * 1024 * 1024
"""Of all bodies in one answer, unless it has a single message; the others come by their address."""
NOTED_EVERY_S = 10.0
MOST_NOTED = 10_000
"""Workers of whom this process remembers that it wrote them down."""
EMPTY_TRIES = 5
"""Claims in a row of which nothing is left, because all that was due had expired."""
NOTHING = Share([], {}, has_expired=False)
THREADS = 4
"""In which those that were woken look: what they take at the same time is one claim (handout)."""

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


Deliver: TypeAlias = Callable[[Sequence[Handed], Callable[[], object]], bool]
"""Answers a request that was postponed. Calls its second argument when the answer is about to go
out, and returns False, without having called it, where nobody is there any more."""


def receive(view: ConsumerView, wish: Wish) -> list[Handed]:
    """What is due now, best first, leased to the worker; nothing while the consumer is halted.

    Raises rules.encryption.KeyMissing, before anything is taken, where no lease can be signed.
    """
    return _receive(view, wish)[0]


def receive_patiently(
    view: ConsumerView,
    wish: Wish,
    wait_s: float,
    *,
    owner: Hashable,
    postpone: Callable[[], Deliver] | None = None,
) -> list[Handed] | None:
    """As `receive`, waiting up to ``wait_s`` seconds for something; None without a place to wait.

    ``owner`` never has all places. With ``postpone`` a request that waits is answered later and by
    another thread: it is called first, and nothing is returned. Without it, the calling thread
    waits.
    """
    if wait_s <= 0:
        return receive(view, wish)
    deadline = time.monotonic() + wait_s
    long_polls.enter(view.id)
    is_waiting, is_more = False, False
    try:
        handed, is_more = _receive(view, wish)
        is_waiting = not handed and polls.take(owner, waits=False)
    finally:
        if not is_waiting:
            long_polls.leave(view.id, is_more=is_more)
    if handed:
        return handed
    if not is_waiting:
        metrics.POLLS_REFUSED.inc()
        return None
    wish = wish._replace(resume=False)
    channel_id = view.channel_id if _takes_new(view, wish) else None
    if postpone is None:
        return _wait(view.id, deadline, channel_id, wish, owner)
    _Postponed(view.id, deadline, channel_id, wish, owner, postpone()).wait()
    return []


class _Postponed:
    """A request that waits without a thread."""

    __slots__ = ("_deliver", "_owner", "_receiver", "_wish")

    def __init__(
        self,
        consumer_id: int,
        deadline: float,
        channel_id: int | None,
        wish: Wish,
        owner: Hashable,
        deliver: Deliver,
    ) -> None:
        self._receiver = WaitingReceiver(consumer_id, deadline, self._resume, channel_id)
        self._wish, self._owner, self._deliver = wish, owner, deliver

    def wait(self) -> None:
        """Until it is resumed; answers at once if something came meanwhile."""
        if not long_polls.wait(self._receiver):
            self._look()

    def _resume(self) -> None:
        _threads.submit(self._look)

    def _look(self) -> None:
        handed: list[Handed] = []
        try:
            # What is closed before it is handed out is closed when somebody is there to take it.
            found = _look(self._receiver, self._wish._replace(settled=False))
            if found is None:
                return
            handed = found
        except Exception:
            # It is told nothing, and told why when it asks again.
            logger.exception("a receiver that waited cannot be given anything")
        finally:
            _keep_connection_usable()
        try:
            if not self._deliver(handed, lambda: self._settle(handed)):
                self._take_back(handed)
        except Exception:
            logger.exception("what a receiver waited for cannot be given to it")
        finally:
            polls.give_back(self._owner)

    def _settle(self, handed: Sequence[Handed]) -> None:
        if self._wish.settled and handed:
            leasing.end([_lease(one.row, self._wish.worker) for one in handed], Outcome.DELIVERED)

    def _take_back(self, handed: Sequence[Handed]) -> None:
        """The client is gone: undo the claim, and let the next receiver look."""
        if not handed:
            return
        consumer_id, now = self._receiver.consumer_id, clock.now()
        release.give_back(
            [one.row for one in handed],
            owner=leases.owner_of(consumer_id, self._wish.worker),
            due_at=now,
            now=now,
            slot=os.getpid(),
            reason=Reason.INTERRUPTED,
        )
        long_polls.wake([consumer_id])
        hurry([consumer_id])


def _takes_new(view: ConsumerView, wish: Wish) -> bool:
    """Whether a receiver can fan a new message out by itself, as nobody else gets it."""
    if wish.sticky or view.ordering or view.halted:
        return False
    channel = directory.channel(view.channel_slug, look=False)
    return channel is not None and len(channel.consumers) == 1


def _wait(
    consumer_id: int, deadline: float, channel_id: int | None, wish: Wish, owner: Hashable
) -> list[Handed]:
    """In this thread."""
    resumed = threading.Event()
    receiver = WaitingReceiver(consumer_id, deadline, resumed.set, channel_id)
    try:
        handed = None if long_polls.wait(receiver) else _look(receiver, wish)
        while handed is None:
            resumed.wait()
            resumed.clear()
            handed = _look(receiver, wish)
    finally:
        polls.give_back(owner)
    return handed


def _look(receiver: WaitingReceiver, wish: Wish) -> list[Handed] | None:
    """What it gets in the end, which may be nothing; None if it waits again."""
    is_waiting, is_more = False, False
    handed: list[Handed] = []
    try:
        while not long_polls.is_over_for(receiver):
            view = directory.consumers().get(receiver.consumer_id)
            if view is None or view.mode != "pull":
                break
            told, receiver.told = receiver.told, None
            handed, is_more = _receive(view, wish, told)
            if handed:
                if receiver.cause is not None:
                    metrics.RESUMED.labels(receiver.cause.value).inc()
                break
            if wish.sticky:
                long_polls.pass_on(receiver)  # what is due may be of another one's keys
            if not is_more and long_polls.wait(receiver):
                is_waiting = True
                return None
    finally:
        if not is_waiting:
            long_polls.leave(receiver.consumer_id, is_more=is_more)
            if receiver.told is not None:
                bell.accepted(*receiver.told)
    return handed


def _receive(view: ConsumerView, wish: Wish, told: Told | None = None) -> tuple[list[Handed], bool]:
    """As `receive`, and whether more may be due; first of new messages that it was ``told`` of."""
    if view.halted or view.mode != "pull":
        return [], False
    keystore.signing_key(leasing.PURPOSE)
    owner = leases.owner_of(view.id, wish.worker)
    share = _new(view, wish, owner, told) if told else NOTHING
    if not share.rows:
        share = (_resumed if wish.resume else _claimed)(view, wish, owner)
    _note(owner, view.id, wish.worker)
    rows = share.rows
    if not rows:
        return [], False
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
    handed = [Handed(row, contents[row.message_id], leasing.token(held[row.id])) for row in whole]
    return handed, share.is_more


_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="receive")
_turns = itertools.count(1)
_noted: dict[int, float] = {}


def _new(view: ConsumerView, wish: Wish, owner: int, told: Told) -> Share:
    """New messages, fanned out and claimed in one transaction; what is left is told to others."""
    taker = Taker(
        owner,
        clock.now(),
        lambda counts: {key: Leave(wish.most, wish.lease_ms) for key in counts if key == view.id},
    )
    made = dispatch.dispatch_for_receiver(told.message_ids, os.getpid(), taker, parcels.asking)
    if made.message_count < len(told.message_ids):
        bell.accepted(*told)
    if others := made.due.keys() - {view.id}:
        hurry(others)
    due = made.due.get(view.id, {}).values()
    return handout.share(made.claimed, made.along, is_more=any(at <= taker.now for at in due))


def _claimed(view: ConsumerView, wish: Wish, owner: int) -> Share:
    """What is due, and where that is too little what is accepted and not fanned out yet.

    So who receives after the answer to a publish finds the message.
    """
    share = _due(view, wish, owner)
    if len(share.rows) == wish.most:
        return share
    for made in dispatch.dispatch_channel(view.channel_id, os.getpid()):
        if made.due:
            hurry(made.due)
    # Also where nothing was found waiting: a pump may have fanned it out since the first look.
    more = _due(view, wish._replace(most=wish.most - len(share.rows)), owner)
    return more._replace(rows=share.rows + more.rows, parcels=share.parcels | more.parcels)


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
    return more._replace(rows=held.rows + more.rows, parcels=held.parcels | more.parcels)


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


def _keep_connection_usable() -> None:
    """What Django does at the end of a request: drop a connection that broke or is old."""
    connections[DEFAULT_DB_ALIAS].close_if_unusable_or_obsolete()
