"""Turn responses into results, and write them to the database in batches."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from django.db import DataError, IntegrityError, close_old_connections
from django.db import Error as DatabaseFailure

from channels_app import failpoints, randomness
from channels_app.database import clock
from delivery import metrics
from delivery.acks.decisions import Waits
from delivery.conf import conf
from delivery.core import acks, lifecycle
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.processes.registration import PumpRegistration
from delivery.processes.wakeups import wakeup_sender
from delivery.pump.assignment import Assignment
from delivery.pump.consumer_queue import ConsumerQueue
from delivery.pump.outage import Outages
from delivery.queue import settle
from delivery.queue.settle import Result
from delivery.transport import Response

logger = logging.getLogger(__name__)

LINGER_S = 0.01
"""Seconds a result waits to be written in a batch."""
BATCH = 100
"""Results in a batch that is written at once."""
WARN_S = 60.0
"""Seconds between two warnings that attempts fail on this side."""


class Recorder:
    """Finished attempts of one pump that are not in the database yet."""

    def __init__(self, held: PumpRegistration, assignment: Assignment) -> None:
        self._slot, self._worker = held.ordinal, held.worker
        self._assignment = assignment
        self._waits = Waits()
        self._outages = Outages()
        self._warned_at = float("-inf")
        self.results: list[Result] = []
        self.due_at = 0.0
        """When (`time.monotonic`) to write them at the latest, if requests are still open."""

    def note(
        self, row: ClaimedDelivery, queue: ConsumerQueue, started_at: datetime, answer: Response
    ) -> None:
        """Decide the transition after a response, and keep it for the next flush."""
        answer = self._outages.judge(queue, answer)
        if answer.is_local:
            self._report(answer.error)
        if not self.results:
            self.due_at = time.monotonic() + LINGER_S
        elif len(self.results) >= BATCH:
            self.due_at = 0.0
        mode = None
        if answer.outcome.is_success and queue.consumer.ack:
            mode = acks.mode_of(queue.consumer.ack, self._waits.of(queue.consumer))
        rule = queue.consumer.retry_for(row.event_type)
        transition = (
            mode.answered
            if mode
            else lifecycle.after_attempt(
                answer.outcome,
                failure_count=row.failure_count,
                attempt_count=row.tries,
                max_attempts=rule.max_attempts,
                policy=rule.policy,
                retry_after=answer.retry_after,
                jitter=randomness.jitter(),
                is_final=answer.is_final,
                is_local=answer.is_local,
            )
        )
        if transition.due_in is not None:
            left_s = (row.due_at - clock.now()).total_seconds()
            if transition.due_in < left_s:  # given back before it is due
                transition = replace(transition, due_in=left_s)
        self.results.append(
            Result(
                claimed=row,
                transition=transition,
                outcome=answer.outcome,
                started_at=started_at,
                worker=self._worker,
                status=answer.status,
                error=answer.error,
                answer_headers=answer.headers,
                excerpt=answer.excerpt,
                connect_ms=answer.connect_ms,
                first_byte_ms=answer.first_byte_ms,
                total_ms=answer.total_ms,
                remote_address=answer.remote_address,
                provider_id=acks.named(queue.consumer.ack, answer.excerpt) if mode else "",
                seals=queue.consumer.encrypt_bodies,
            )
        )
        self._assignment.learn(queue, answer, transition.due_in, row)

    def _report(self, error: str) -> None:
        """Tell operators that this host cannot call consumers."""
        metrics.LOCAL_FAILURES.inc()
        if time.monotonic() - self._warned_at >= WARN_S:
            self._warned_at = time.monotonic()
            logger.warning("an attempt failed on this side and is not charged: %s", error)

    def flush(self) -> None:
        """Write all results; on a database error, which is raised, they are kept."""
        if self.results:
            failpoints.reach("before_settle")
            self._settle()
            failpoints.reach("after_settle")
            self._waits.learn()
        self._assignment.save()

    def _settle(self) -> None:
        """Write results so that one rejected by the database does not hold up the others."""
        try:
            self._write(self.results)
        except (DataError, IntegrityError):
            for result in self.results:
                try:
                    self._write([result])
                except (DataError, IntegrityError) as error:
                    logger.error("a response excerpt cannot be stored and is omitted: %s", error)
                    self._write([settle.bare(result)])
        self.results = []
        self.due_at = 0.0

    def _write(self, results: list[Result]) -> None:
        settle.settle(
            results,
            now=clock.now(),
            slot=self._slot,
            expect=self._expect,
        )

    def _expect(self, consumer_id: int, due_at: datetime) -> None:
        if not self._assignment.expect(consumer_id, due_at) and conf().wake:
            wakeup_sender.due([consumer_id])


def ignoring_outage(work: Callable[[], object]) -> None:
    """Run a step of stopping; if the database is unavailable, the leases simply expire."""
    try:
        work()
    except DatabaseFailure as error:
        logger.warning("database unavailable, a stopping pump waits to record results: %s", error)
        close_old_connections()


def unsent(key: int, outcome: Outcome, error: str) -> Response:
    """Return the response of an attempt that never reached the consumer."""
    return Response(
        key=key,
        outcome=outcome,
        status=None,
        headers="",
        excerpt=b"",
        error=error,
        retry_after=None,
        connect_ms=None,
        first_byte_ms=None,
        total_ms=0,
        remote_address="",
    )
