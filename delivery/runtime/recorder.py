"""Recorder: turns what came back into results, and gets them into the database."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db import DataError, IntegrityError, close_old_connections
from django.db import Error as DatabaseFailure

from channels_app import chance, clock, failpoints
from delivery.conf import conf
from delivery.models.counter import SLOTS
from delivery.rules import acks, correlation, lifecycle
from delivery.rules.claimed import Claimed
from delivery.rules.outcome import Outcome
from delivery.runtime.aside import Aside
from delivery.runtime.line import Line
from delivery.runtime.roster import Roster
from delivery.runtime.slots import Held
from delivery.runtime.waits import Waits
from delivery.runtime.wake import bell
from delivery.steps import settle
from delivery.steps.send import Answer
from delivery.steps.settle import Result

logger = logging.getLogger(__name__)

COMPANY_S = 0.01
"""How long a result waits for others that are on their way, to be written together."""
BATCH = 100
"""Results that wait no longer."""

Due = list[tuple[int, datetime]]
"""Consumers, and when they have something due."""


class Recorder:
    """Finished attempts of one pump that are not in the database yet.

    They are written beside the pump's loop, one batch after the other: a message that comes
    meanwhile does not wait for a commit that is none of its business.
    """

    def __init__(self, held: Held, roster: Roster) -> None:
        self._held = held
        self._slot = held.ordinal + SLOTS // 2  # not the loop's: its rows are locked meanwhile
        self._roster = roster
        self._waits = Waits()
        self._aside = Aside[Due]()
        self.results: list[Result] = []
        self.writing: list[Result] = []
        self._due_at = self._calm_at = 0.0
        """When (`time.monotonic`) they want to be written: at the latest, and where no other can be
        expected to come."""

    @property
    def backlog(self) -> int:
        """How many attempts have ended and are not in the database."""
        return len(self.results) + len(self.writing)

    def fileno(self) -> int:
        """For selectors: readable when something was written."""
        return self._aside.fileno()

    def note(self, row: Claimed, line: Line, started_at: datetime, answer: Answer) -> None:
        """Decide what follows from an answer and keep it for the next flush."""
        if not self.results:
            self._due_at = time.monotonic() + COMPANY_S
        elif len(self.results) >= BATCH:
            self._due_at = 0.0
        if row.ordering_key and line.view.ordering:
            self._calm_at = 0.0  # the next one of its key waits for it
        mode = None
        if answer.outcome.is_success and line.view.ack:
            mode = acks.mode_of(line.view.ack, self._waits.of(line.view))
        transition = (
            mode.answered
            if mode
            else lifecycle.after_attempt(
                answer.outcome,
                failure_count=row.failure_count,
                attempt_count=row.failure_count + row.interruption_count + 1,
                max_attempts=line.view.max_attempts,
                policy=line.policy,
                retry_after=answer.retry_after,
                jitter=chance.jitter(),
            )
        )
        left_s = (row.due_at - clock.now()).total_seconds()
        if transition.due_in is not None and transition.due_in < left_s:
            transition = replace(transition, due_in=left_s)  # given back before its time
        self.results.append(
            Result(
                claimed=row,
                transition=transition,
                outcome=answer.outcome,
                started_at=started_at,
                worker=self._held.worker,
                status=answer.status,
                error=answer.error,
                answer_headers=answer.headers,
                excerpt=answer.excerpt,
                connect_ms=answer.connect_ms,
                first_byte_ms=answer.first_byte_ms,
                total_ms=answer.total_ms,
                remote_address=answer.remote_address,
                provider_id=correlation.named(line.view.ack, answer.excerpt) if mode else "",
            )
        )
        self._roster.learn(line, answer)

    def due_in(self, *, alone: bool) -> float:
        """Seconds until there is something to flush, where ``alone`` says that no request is open.

        One that nobody joins is written at once, but no more often than others would be.
        """
        if not self.results or self._aside.is_busy:
            return float("inf")
        due_at = min(self._due_at, self._calm_at) if alone else self._due_at
        return due_at - time.monotonic()

    def flush(self) -> None:
        """Have everything written that is not being written already. Raises as `collect` does."""
        if self._aside.is_busy:
            return
        if not self.results:
            self._roster.save()
            return
        failpoints.reach("before_settle")
        self.writing, self.results = self.results, []
        self._calm_at = time.monotonic() + COMPANY_S
        self._aside.start(partial(self._settle, self.writing))
        self.collect()

    def collect(self) -> None:
        """Book what was written; raises what the database raised, and then nothing is lost."""
        if not self._aside.has_ended():
            return
        writing, self.writing = self.writing, []
        try:
            due = self._aside.take()
        except Exception:
            self.results, self._due_at = [*writing, *self.results], 0.0
            raise
        failpoints.reach("after_settle")
        for consumer_id, due_at in due:
            self._expect(consumer_id, due_at)
        self._waits.learn()
        self._roster.save()

    def wait(self) -> None:
        """Collect what is being written, as soon as it is."""
        self._aside.wait()
        self.collect()

    def close(self) -> None:
        """Free what it holds of the system; nothing may be left to be written."""
        self._aside.close()

    def _settle(self, results: list[Result]) -> Due:
        """One result that the database refuses does not keep the others waiting."""
        try:
            return self._write(results)
        except (DataError, IntegrityError):
            due: Due = []
            for result in results:
                try:
                    due += self._write([result])
                except (DataError, IntegrityError) as error:
                    logger.error("an answer cannot be stored and is left out: %s", error)
                    due += self._write([settle.bare(result)])
            return due

    def _write(self, results: list[Result]) -> Due:
        now = clock.now()
        due: Due = [
            (result.claimed.consumer_id, now + timedelta(seconds=result.transition.due_in))
            for result in results
            if result.transition.due_in is not None
        ]
        settle.settle(results, now=now, slot=self._slot, expect=lambda *it: due.append(it))
        return due

    def _expect(self, consumer_id: int, due_at: datetime) -> None:
        if not self._roster.expect(consumer_id, due_at) and conf().wake:
            bell.due([consumer_id])


def patiently(work: Callable[[], object]) -> None:
    """While stopping: a database that is away leaves the rows to their leases."""
    try:
        work()
    except DatabaseFailure as error:
        logger.warning("a stopping pump waits for the database: %s", error)
        close_old_connections()


def unsent(key: int, outcome: Outcome, error: str) -> Answer:
    """The answer to an attempt that never reached the consumer."""
    return Answer(
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
