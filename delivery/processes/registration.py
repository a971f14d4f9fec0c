"""Register pumps and other processes in rows with a heartbeat."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import Error as DatabaseFailure
from django.db import IntegrityError, close_old_connections, transaction

from channels_app.conf import keyring
from channels_app.database import clock, raw
from channels_app.models import new_id
from channels_app.registry import data_encryption
from delivery.conf import HOST, conf
from delivery.core.recipients import KeyHolder
from delivery.models import PumpSlot, SweepRun
from delivery.processes.control import runs

logger = logging.getLogger(__name__)
MISSING = "the encryption key %s is missing here: other processes send the deliveries that need it"
BEAT_S, MAINTENANCE_BEAT_S, WEB_BEAT_S = 0.5, 1.0, 2.0
"""Heartbeat intervals of pumps, maintenance processes and web processes. Only pumps hold deliveries
that another process would have to take over."""
STALLED_AFTER_S = 20.0
"""Seconds a cluster may lack a pump before it is killed and restarted."""
TASKLESS_S = 300.0
"""django-q2 runs a task each minute. Without one for this long its queue is stuck, which happens
when a worker is killed while it holds the queue's lock: the cluster is then restarted too."""
TASK = "fallback run"
MAX_LOOKS = 100
"""Times a process looks for a free slot before it gives up, if others are faster each time."""
STALE_AFTER_S = 5.0
"""A slot without a heartbeat for this long has lost its owner, on whichever host."""
QUIET_S = 1.5
"""Three heartbeats."""
ELSEWHERE_S, NOWHERE_S = 1.0, 60.0
"""Seconds a delivery waits whose key the claiming process lacked: until another process may have
taken over its consumer or, if no process has the key, until a person may have added it."""
# Both run twice a second in each pump: the ORM would take most of the time.
BEAT = (
    f"UPDATE {PumpSlot._meta.db_table} SET heartbeat_at = %s, in_flight = %s, followed = %s,"  # noqa: S608 (ours)
    " clock_offset_ms = %s WHERE id = %s AND generation = %s"
)
CLAIMERS = (
    f"SELECT generation, key_ids, missing_key_ids FROM {PumpSlot._meta.db_table}"  # noqa: S608 (a name of ours)
    f" WHERE kind = '{PumpSlot.Kind.PUMP.value}' AND wake_address <> '' AND heartbeat_at >= %s"
)


class Replaced(Exception):
    """Another process has taken this slot, and with it everything that this process held."""


@dataclass(frozen=True, slots=True)
class PumpRegistration:
    """A slot that this process owns."""

    id: int
    generation: int
    ordinal: int
    kind: str
    predecessor: int | None = None
    """Generation of the dead owner it was taken from, whose deliveries must be released."""

    @property
    def worker(self) -> str:
        """The name of this process in attempts."""
        return f"{HOST}/{os.getpid()}/{self.kind}-{self.ordinal}"


def acquire(
    cluster: str, kind: str, places: int, wake_address: str = ""
) -> PumpRegistration | None:
    """Take a free slot of ``kind`` in this cluster; None when live processes hold all."""
    for _ in range(MAX_LOOKS):
        now = clock.now()
        taken = {slot.ordinal: slot for slot in PumpSlot.objects.filter(cluster=cluster, kind=kind)}
        free = [
            (ordinal, slot)
            for ordinal in range(places)
            if (slot := taken.get(ordinal)) is None or is_dead(slot, now)
        ]
        if not free:
            return None
        for ordinal, slot in free:
            if held := _take(cluster, kind, ordinal, slot, wake_address, now):
                return held
        # Other processes took these slots, or the maintenance process deleted them: look again. A
        # worker that gave up here would never become a pump.
    raise RuntimeError(f"no slot for a {kind} process could be taken, though some were free")


def beat(held: PumpRegistration, in_flight: int, followed: int = 0) -> bool:
    """Send a heartbeat, with the configuration version that is applied.

    Returns False if another process has taken the slot: stop at once.
    """
    values = raw.text(clock.now()), in_flight, followed, int(clock.drift_s() * 1000)
    return bool(raw.execute(BEAT, [*values, held.id, held.generation]))


def stop_claiming(held: PumpRegistration) -> None:
    """Stop claiming: from now on other pumps serve its consumers."""
    start_claiming(held, "")


def start_claiming(held: PumpRegistration, wake_address: str) -> None:
    """Claim deliveries again, with wake-ups to this address."""
    slots = PumpSlot.objects.filter(id=held.id, generation=held.generation)
    slots.update(wake_address=wake_address)


def is_adrift(offset_s: float) -> bool:
    """Whether a host whose clock differs this much from the database's may not claim."""
    limit_s = conf().max_clock_offset_s
    return bool(limit_s) and abs(offset_s) > limit_s


def lack(generation: int, key_ids: Collection[str]) -> None:
    """Publish which encryption keys a pump lacks: for the alarm, and for the other pumps."""
    slots = PumpSlot.objects.filter(generation=generation)
    slots.update(missing_key_ids=",".join(sorted(key_ids)))


def wait_s(key_id: str, key_holders: Iterable[KeyHolder]) -> float:
    """Return the seconds to wait for a missing key: few if other processes have it."""
    return ELSEWHERE_S if any(key_id in holder.keys for holder in key_holders) else NOWHERE_S


def holders() -> list[KeyHolder]:
    """Return every live process of the installation with its encryption keys."""
    horizon = clock.now() - timedelta(seconds=STALE_AFTER_S)
    rows = PumpSlot.objects.filter(heartbeat_at__gte=horizon).order_by("host", "pid")
    return [
        KeyHolder.of(row.generation, row.key_ids, row.missing_key_ids, str(row)) for row in rows
    ]


def leave(held: PumpRegistration) -> None:
    """Release the slot on a clean stop."""
    PumpSlot.objects.filter(id=held.id, generation=held.generation).delete()


def living(kind: str = PumpSlot.Kind.PUMP) -> Sequence[PumpSlot]:
    """Return slots whose owners have a current heartbeat."""
    horizon = clock.now() - timedelta(seconds=STALE_AFTER_S)
    return list(PumpSlot.objects.filter(kind=kind, heartbeat_at__gte=horizon).order_by("id"))


def listening() -> Sequence[PumpSlot]:
    """Return live processes that receive wake-ups: pumps and web processes."""
    horizon = clock.now() - timedelta(seconds=STALE_AFTER_S)
    slots = PumpSlot.objects.filter(heartbeat_at__gte=horizon).exclude(wake_address="")
    return list(slots.order_by("id"))


def behind(number: int) -> dict[int, datetime]:
    """Return live pumps that have not applied the configuration up to version ``number``.

    Maps their generations to their last heartbeats.
    """
    horizon = clock.now() - timedelta(seconds=STALE_AFTER_S)
    pumps = PumpSlot.objects.filter(kind=PumpSlot.Kind.PUMP, heartbeat_at__gte=horizon)
    return dict(pumps.filter(followed__lt=number).values_list("generation", "heartbeat_at"))


def claimers() -> raw.Statement:
    """Return the query for live pumps that claim; its rows are arguments of KeyHolder.of."""
    return CLAIMERS, [raw.text(clock.now() - timedelta(seconds=STALE_AFTER_S))]


class ChangeMarker:
    """Sends the heartbeat of a web process, with the encryption keys that it has read."""

    def __init__(self) -> None:
        self._held: PumpRegistration | None = None
        self._wake_address = ""
        self._missing: set[str] = set()
        self._published: tuple[int, frozenset[str]] = (0, frozenset())

    def start(self, wake_address: str) -> None:
        """Run in a thread while the process lives; wake-ups are sent to the address."""
        self._wake_address = wake_address
        threading.Thread(target=self._run, name="change-marker", daemon=True).start()

    def beat(self) -> None:
        """Send one heartbeat. Raises database errors."""
        if self._held is None or not beat(self._held, 0):
            # A process that did not run for a while was reaped like a dead one, and registers
            # again.
            self._held = acquire(uuid.uuid4().hex, PumpSlot.Kind.WEB, 1, self._wake_address)
        if data_encryption.refusal():
            self.miss(data_encryption.encrypting_key_id())
        if self._held is not None and self._missing:
            published = self._held.generation, frozenset(self._missing)
            if published != self._published:
                lack(*published)
                self._published = published

    def miss(self, key_id: str) -> float:
        """Record a missing key; return its `wait_s`."""
        if key_id not in self._missing:
            self._missing.add(key_id)
            logger.error(MISSING, key_id)
        return wait_s(key_id, holders())

    def _run(self) -> None:
        rest = threading.Event()
        while True:
            try:
                self.beat()
            except DatabaseFailure:
                close_old_connections()
            rest.wait(WEB_BEAT_S)


change_marker = ChangeMarker()


class DeadPumpReaper:
    """Finds slots whose owner is gone, even if the database was unavailable for a while.

    During an outage no process could send a heartbeat, so a silent one must stay silent for three
    more intervals. A missing process also counts only after these: containers with the same host
    name have process ids of their own.
    """

    def __init__(self) -> None:
        self._silent: dict[tuple[int, datetime], float] = {}
        """Since when (`time.monotonic`) this process has seen a generation with that heartbeat."""

    def dead(self) -> Sequence[PumpSlot]:
        """Return slots that certainly have no process or heartbeat."""
        now, ticks = clock.now(), time.monotonic()
        suspects = [slot for slot in PumpSlot.objects.all() if is_dead(slot, now)]
        keys = [(slot.generation, slot.heartbeat_at) for slot in suspects]
        self._silent = {key: self._silent.get(key, ticks) for key in keys}
        return [
            slot
            for slot, key in zip(suspects, keys, strict=True)
            if ticks - self._silent[key] >= QUIET_S
            or (_is_gone(slot) and slot.heartbeat_at < now - timedelta(seconds=QUIET_S))
        ]


dead_pump_reaper = DeadPumpReaper()


def is_dead(slot: PumpSlot, now: datetime) -> bool:
    """Whether the owner is gone: its process does not exist on this host, or no heartbeat."""
    if slot.heartbeat_at < now - timedelta(seconds=STALE_AFTER_S):
        return True
    return _is_gone(slot)


def reap(slot: PumpSlot) -> bool:
    """Delete a dead slot; True for the only caller that did, which then releases its rows."""
    return bool(PumpSlot.objects.filter(id=slot.id, generation=slot.generation).delete()[0])


class Watch:
    """A check for the supervisor whether the cluster's pumps run."""

    def __init__(self, cluster: str, places: int) -> None:
        self._cluster = cluster
        self._places = places
        self._complete_at = self._started_at = 0.0

    def __call__(self) -> bool:
        """Return False once a slot had no heartbeat for ``STALLED_AFTER_S``, or the queue is stuck.

        A gap while one pump replaces another is no reason to kill them all.
        """
        # This thread lives as long as the broker and has no requests whose end would close broken
        # connections: drop one that broke before the next query.
        close_old_connections()
        if not self._started_at:
            self._started_at = self._complete_at = time.monotonic()
        beating = sum(slot.cluster == self._cluster for slot in living())
        if beating >= self._places:
            self._complete_at = time.monotonic()
        if time.monotonic() - self._started_at > STALLED_AFTER_S and not _task_ran_lately():
            return False
        return time.monotonic() - self._complete_at < STALLED_AFTER_S


def note_task() -> None:
    """Record that django-q2's queue works, at the cluster's start and in each scheduled task."""
    now = clock.now()
    SweepRun.objects.update_or_create(name=TASK, defaults={"next_at": now, "last_started_at": now})


def _take(
    cluster: str, kind: str, ordinal: int, slot: PumpSlot | None, wake_address: str, now: datetime
) -> PumpRegistration | None:
    generation = new_id()
    values = {
        "generation": generation,
        "host": HOST,
        "pid": os.getpid(),
        "wake_address": wake_address,
        "started_at": now,
        "heartbeat_at": now,
        "in_flight": 0,
        "key_ids": ",".join(sorted(keyring().ids)),
        "missing_key_ids": "",
        "followed": 0,
    }
    if slot is not None:
        former = PumpSlot.objects.filter(id=slot.id, generation=slot.generation)
        if not former.update(**values):
            return None
        return PumpRegistration(slot.id, generation, ordinal, kind, slot.generation)
    with suppress(IntegrityError), transaction.atomic():
        created = PumpSlot.objects.create(cluster=cluster, kind=kind, ordinal=ordinal, **values)
        return PumpRegistration(created.id, generation, ordinal, kind)
    return None  # another process was faster


def _is_gone(slot: PumpSlot) -> bool:
    return slot.host == HOST and not runs(slot.pid)


def _task_ran_lately() -> bool:
    horizon = clock.now() - timedelta(seconds=TASKLESS_S)
    return SweepRun.objects.filter(name=TASK, last_started_at__gte=horizon).exists()
