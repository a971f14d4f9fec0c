"""The django-q2 cluster whose workers host the pumps and the maintenance process.

A fresh worker becomes a pump directly, and not by a task from django-q2's queue: that queue can
stay locked for ever by a worker that was killed while it held the lock, and delivery must not
depend on it.
"""

import ctypes
import logging
import os
import signal
import time
import uuid
from typing import Any

from django.db import Error as DatabaseFailure
from django.db import close_old_connections
from django_q.cluster import Cluster
from django_q.signals import post_spawn
from setproctitle import setproctitle

from channels_app import failpoints
from channels_app.database import clock, transactions
from channels_app.garbage import freeze_loaded_objects
from delivery.conf import conf
from delivery.maintenance import sweeps
from delivery.maintenance.recurring import ScheduleRunner
from delivery.maintenance.sweeps import SOON_S
from delivery.models import PumpSlot
from delivery.processes import registration, task_queue
from delivery.processes.registration import PumpRegistration, Replaced
from delivery.processes.wakeups import Listener
from delivery.pump.pump import Pump
from delivery.queue import release

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
_cluster = ""


class BrokerCluster(Cluster):  # type: ignore[misc]  # it has no types
    """A cluster that tells its pumps to finish before it waits for its workers."""

    def stop(self) -> bool:
        """Stop pumps first: a worker that pumps does not read django-q2's poison pill."""
        task_queue.stopping.set()
        return bool(super().stop())


def run(cluster_name: str | None = None) -> int:
    """Host pumps, maintenance process and scheduled tasks until SIGTERM; return the exit code.

    ``cluster_name`` names this start in PumpSlot.cluster.
    """
    global _cluster
    _cluster = cluster_name or uuid.uuid4().hex
    transactions.limit_answer_time()
    task_queue.ensure_schedules()
    registration.note_task()
    sweeps.orphans()
    post_spawn.connect(_host, dispatch_uid="hookstation")
    os.register_at_fork(after_in_child=_die_with_parent)
    freeze_loaded_objects()
    cluster = BrokerCluster()
    cluster.start()
    sentinel = cluster.sentinel
    while sentinel.is_alive():
        sentinel.join(2.0)  # returns when it ends; the timeout is a precaution
    return 0 if task_queue.stopping.is_set() else 1


def _host(**_: Any) -> None:
    """In a fresh worker, become a pump or the maintenance process if a slot is free."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the cluster stops its workers in order
    listener = Listener()
    held = registration.acquire(_cluster, PumpSlot.Kind.PUMP, conf().pumps, listener.address)
    if held is not None:
        _entitle(held)
        _pump(held, listener)
        return
    listener.close()
    held = registration.acquire(_cluster, PumpSlot.Kind.MAINTENANCE, 1)
    if held is not None:
        _entitle(held)
        _maintenance(held)


def _entitle(held: PumpRegistration) -> None:
    """Set the process title."""
    setproctitle(f"qcluster {_cluster} {held.kind}")


def _pump(held: PumpRegistration, listener: Listener) -> None:
    if held.predecessor is not None:
        failpoints.reach("after_takeover")
        released = release.release_owner(held.predecessor, now=clock.now(), slot=held.ordinal)
        logger.warning("pump %s took over %s deliveries of a dead pump", held.worker, released)
    try:
        Pump(held, listener).run(task_queue.stopping.is_set, conf().pump_lifetime_s)
    except Replaced:
        logger.warning("pump %s was replaced; it stops", held.worker)
        raise SystemExit(0) from None
    _depart(held)


def _depart(held: PumpRegistration) -> None:
    """Release the slot. A worker whose time is up exits, and a fresh one takes its place."""
    try:
        registration.leave(held)
    except DatabaseFailure:
        logger.warning(
            "pump %s could not be unregistered; its registration expires with its heartbeat",
            held.worker,
        )
    if not task_queue.stopping.is_set():
        raise SystemExit(0)


def _maintenance(held: PumpRegistration) -> None:
    """Run the sweeps at their intervals, and the schedule runner in parallel."""
    schedule_runner = ScheduleRunner(task_queue.stopping.wait)
    schedule_runner.start()
    try:
        _sweep(held, time.monotonic() + conf().pump_lifetime_s)
    finally:
        schedule_runner.stop()
    _depart(held)


def _sweep(held: PumpRegistration, end: float) -> None:
    """Run sweeps until told to stop, or until ``end`` (monotonic)."""
    rounds, next_beat = sweeps.rounds(), 0.0
    while not task_queue.stopping.is_set() and time.monotonic() < end:
        rest_s = 0.5
        try:
            # A little early if a sweep woke this process: waking up costs more than a heartbeat.
            if time.monotonic() >= next_beat - SOON_S:
                next_beat = time.monotonic() + registration.MAINTENANCE_BEAT_S
                if not registration.beat(held, 0):
                    raise SystemExit(0)
            rounds.turn()
            rest_s = min(rounds.rest_s(), max(0.0, next_beat - time.monotonic()))
        except DatabaseFailure as error:
            logger.warning("database unavailable, sweeps wait: %s", error)
            close_old_connections()
        task_queue.stopping.wait(rest_s)


def _die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends for any reason."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
