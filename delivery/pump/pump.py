"""Claim due deliveries, send them concurrently and record the results, in a loop."""

import itertools
import logging
import selectors
import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import Error as DatabaseFailure
from django.db import close_old_connections

from channels_app import failpoints
from channels_app.core.encryption import KeyMissing, Unreadable
from channels_app.database import clock
from channels_app.registry.cache import ConsumerConfig, Signer, config_cache
from delivery import metrics
from delivery.conf import conf
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.ordering import key_queue
from delivery.processes import registration
from delivery.processes.registration import PumpRegistration
from delivery.processes.wakeups import Listener, WaitingReceivers, pulls, wakeup_sender
from delivery.pump import results
from delivery.pump.assignment import Assignment
from delivery.pump.body_buffer import BodyBuffer, is_late
from delivery.pump.capacity import CapacityPlanner
from delivery.pump.consumer_queue import AHEAD, ConsumerQueue
from delivery.pump.membership import Membership
from delivery.pump.results import Recorder, ignoring_outage
from delivery.queue import claim, fanout, release
from delivery.queue.fanout import FanoutResult
from delivery.transport import Response, payloads
from delivery.transport.payloads import Payload

logger = logging.getLogger(__name__)

MUCH, REST_S = 4, 0.005
"""After a scan that found MUCH messages and deliveries, the next scan waits, at most REST_S."""
SOON = timedelta(seconds=1)
"""Waiting receivers are notified of deliveries due within this time; they poll for later ones."""
AT_ONCE = 8
"""Most messages that one fan-out between two steps of a round handles."""
MAX_EXAMINED = 100
"""How many of the newest messages are examined for some that can pass a backlog."""
FAN_OUT_GUARD = 20
"""Every 20th fan-out takes the oldest messages of a backlog, whatever their priority."""
SPARE_S = 300.0
"""Seconds a pump may outlive its time while it waits until no request is open."""
RETRY_CAP_S = 2.0
"""Longest wait between tries while the database is unavailable."""
STOPPED = "The broker stopped during the attempt."
CHANGED = "The configuration changed before the attempt began. Nothing was sent."


class Pump:
    """One pump: owns a share of the consumers and sends their deliveries."""

    def __init__(self, held: PumpRegistration, listener: Listener) -> None:
        self.held = held
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener.socket, selectors.EVENT_READ)
        # One connection per request in flight, plus as many idle.
        self.sender = payloads.sender(max_connections=2 * conf().pump_in_flight)
        self.selector.register(self.sender, selectors.EVENT_READ)
        self.assignment = Assignment(held.generation)
        self.membership = Membership(held, self.assignment)
        self.capacity_planner = CapacityPlanner(self.assignment)
        self.body_buffer = BodyBuffer()
        self.open: dict[
            int, tuple[ClaimedDelivery, ConsumerQueue, ConsumerConfig, datetime, int]
        ] = {}
        """Attempts in flight by ticket: delivery, queue, the consumer's configuration and the time
        at the start, and the bytes sent. Not keyed by delivery: after a step of the clock a
        delivery may be claimed again while its request is still open."""
        self.tickets = itertools.count(1)
        self.claimed: list[tuple[ClaimedDelivery, ConsumerQueue]] = []
        """Leased deliveries that are not sent yet."""
        self.unopened: dict[str, list[ClaimedDelivery]] = {}
        """Claimed deliveries to give back because this process lacks their encryption key, by key
        id."""
        self.recorder = Recorder(held, self.assignment)
        self.is_clock_wrong = False
        """Whether the pump claims nothing because its clock is wrong."""
        self.accepted_hint = True
        self.notified: dict[int, int] = {}
        """Accepted messages from wake-ups, with their priorities."""
        self.waiting = WaitingReceivers()
        self.min_priority = 0
        """The lowest priority among the deliveries that this round has claimed."""
        self.examined: set[int] = set()
        """Notified messages that were examined since the last fan-out."""
        self.is_backlog, self.backlog_priority = False, 0
        """Whether a backlog of messages waits for fan-out, and the priority that it is read at."""
        self.next_poll = self.next_scan = 0.0
        self.fan_outs = 0

    def run(self, stopped: Callable[[], bool], seconds: float) -> None:
        """Pump until ``stopped`` or for ``seconds``, then finish the open requests.

        A database failure ends a round, not the pump. Raises registration.Replaced.
        """
        end = time.monotonic() + seconds
        pause = 0.0
        while not (stopped() or self._may_leave(end)):
            try:
                self.round()
                pause = 0.0
            except DatabaseFailure as error:
                pause = min(RETRY_CAP_S, pause * 2 or 0.05)
                metrics.PUMP_ERRORS.inc()
                logger.warning("database unavailable, retrying in %.2f s: %s", pause, error)
                close_old_connections()
                self._wait(pause)
                self._take_answers()  # a response that is not taken would end each wait at once
        self.drain(conf().grace_s / 2)
        self.close()

    def round(self) -> None:
        """Run one round: heartbeat, scan, send, record, wait."""
        now = clock.now()
        if time.monotonic() >= self.membership.next_beat:
            self._beat()
        if time.monotonic() >= self.next_scan and self.membership.owns():
            self._scan(now)
        self._send_claimed()
        self._send_at_once()
        # Record after sending: consumers work while the database writes.
        self._record()
        self._send_at_once()
        if self.body_buffer.seconds(clock.now()) <= 0:
            self._send_claimed()  # deliveries that became due during the write
        self._wait(self._max_wait_s())
        self._take_answers()

    def _scan(self, now: datetime) -> None:
        """Fan out and claim, then rest after a large result, so that batches stay large."""
        if self._is_adrift():
            self.next_scan = self.next_poll = time.monotonic() + registration.BEAT_S
            return
        began = time.monotonic()
        self.assignment.recount()
        if self.is_backlog:
            self._send_at_once()
        handled = self._fan_out(now)
        self._send_at_once()
        handled += self._claim(now)
        ended = time.monotonic()
        if handled >= MUCH:
            self.next_scan = ended + min(ended - began, REST_S)

    def _is_adrift(self) -> bool:
        """Return whether the host's clock and the database's differ too much to claim.

        While they do, pumps on other hosts serve this pump's consumers.
        """
        offset_s = clock.drift_s()
        adrift = registration.is_adrift(offset_s)
        if adrift and not self.is_clock_wrong:
            logger.error(
                "pump claims nothing: this host's clock differs by %+.1f s from the database's",
                offset_s,
            )
            registration.stop_claiming(self.held)
        elif self.is_clock_wrong and not adrift:
            logger.warning("pump claims deliveries again: the clocks agree")
            registration.start_claiming(self.held, self.listener.address)
            self.membership.join()
            self.is_clock_wrong = False
            return True  # wait until the pumps that serve its consumers now have noticed
        self.is_clock_wrong = adrift
        return adrift

    def _may_leave(self, end: float) -> bool:
        """Return whether to stop: at ``end``, or up to `SPARE_S` later if requests are open."""
        ticks = time.monotonic()
        return ticks >= end + SPARE_S or (ticks >= end and not self.open)

    def drain(self, seconds: float) -> None:
        """Wait for requests in flight, then give claimed deliveries back without charging them."""
        end = time.monotonic() + seconds
        ignoring_outage(lambda: registration.stop_claiming(self.held))
        while self.open and (remaining_s := end - time.monotonic()) > 0:
            if time.monotonic() >= self.membership.next_beat:
                ignoring_outage(self._beat)
            self._wait(min(remaining_s, 0.1))
            ignoring_outage(self._record)
        self._return_claims(self.claimed, STOPPED)
        self.claimed = []
        for ticket in self.sender.abort_all():
            self._finish(ticket, Outcome.INTERRUPTED, STOPPED)
        ignoring_outage(self._record)

    def close(self) -> None:
        """Close the sockets. No request may be open."""
        self.selector.close()
        self.sender.close()
        self.listener.close()

    def _beat(self) -> None:
        """Send a heartbeat and apply configuration changes before anything else is sent."""
        if self.membership.beat(len(self.open)):
            self.next_poll = 0.0
            self._recall()
            self.assignment.save()  # for the pumps that its former consumers moved to
            self.membership.confirm(len(self.open))

    def _recall(self) -> None:
        """Give back unsent deliveries that may no longer be sent, or not as they are."""
        rows = [row for row, _ in self.claimed] + [row for row, *_ in self.open.values()]
        consumers = {
            key: self.assignment.consumer(key) for key in {row.consumer_id for row in rows}
        }
        held = key_queue.paused((row.consumer_id, row.ordering_key) for row in rows)

        def may_go(row: ClaimedDelivery) -> bool:
            consumer = consumers[row.consumer_id]
            is_held = (row.consumer_id, row.ordering_key) in held
            return not (consumer is None or consumer.halted or is_held)

        def has_changed(ticket: int) -> bool:
            row, _, consumer, *_ = self.open[ticket]
            return not may_go(row) or consumers[row.consumer_id] != consumer

        queues = self.assignment.queues
        gone = [
            pair
            for pair in self.claimed
            if pair[0].consumer_id not in queues or not may_go(pair[0])
        ]
        if gone:
            self.claimed = [pair for pair in self.claimed if pair not in gone]
            self._return_claims(gone, CHANGED)
        for ticket in self.sender.recall(has_changed):
            self._finish(ticket, Outcome.INTERRUPTED, CHANGED)

    def _return_claims(
        self, claimed: Sequence[tuple[ClaimedDelivery, ConsumerQueue]], error: str
    ) -> None:
        for row, queue in claimed:
            self._finish(self._begin(row, queue), Outcome.INTERRUPTED, error)

    def _fan_out(self, now: datetime) -> int:
        """Fan out accepted messages, and return how many there were."""
        poll = time.monotonic() >= self.next_poll
        if not (poll or self.accepted_hint) or not (
            limit := self.capacity_planner.fanout_limit(now)
        ):
            return 0
        hinted, self.accepted_hint = self.accepted_hint, False
        notified, self.notified, self.examined = self.notified, {}, set()
        if self.is_backlog:
            # It is read by priority and age. Keep the newest messages: their consumers may become
            # idle before the backlog reaches them.
            self.notified = {key: notified[key] for key in sorted(notified)[-MAX_EXAMINED:]}
            notified = {}
        claimer = self.capacity_planner.claimer(self.held.generation, now, self._free)
        self.fan_outs += 1
        oldest_first = self.fan_outs % FAN_OUT_GUARD == 0
        result = fanout.fan_out(
            limit,
            self.held.ordinal,
            claimer,
            notified,
            payloads.select_payloads,
            oldest_first=oldest_first,
            is_backlog=self.is_backlog,
        )
        self._handle_fanout(result, now)
        self.is_backlog = result.is_backlog
        if not result.is_backlog:
            self.backlog_priority = 0
        elif result.message_count and not oldest_first:
            self.backlog_priority = result.priority
        self.min_priority = min((row.priority for row in result.claimed), default=self.min_priority)
        if result.more:
            self.accepted_hint = True
        if result.oldest_accepted_at is not None and not hinted:
            late = (now - result.oldest_accepted_at).total_seconds() * 1000
            if late > conf().rational_delay_ms:
                metrics.SWEEP_ROWS.labels("message").inc(result.message_count)
        if poll:
            self.next_poll = time.monotonic() + self.assignment.discover(conf().poll_ms / 1000)
        return result.message_count

    def _handle_fanout(self, result: FanoutResult, now: datetime) -> None:
        """Keep what a fan-out claimed, and notify the processes that serve the rest."""
        self._keep_claimed(result.claimed, now)
        self.body_buffer.add(result.payload_rows, result.claimed)
        if not result.due.keys() <= self.assignment.queues.keys() and self.assignment.is_behind():
            self._beat()  # so that a new consumer does not wait for the next heartbeat
        elsewhere = {
            key
            for key, due in result.due.items()
            for priority, due_at in due.items()
            if not self.assignment.expect(key, due_at, priority) or self.assignment.is_shared(key)
        }
        if elsewhere and conf().wake:
            consumers = config_cache.consumers()
            pulling = {key for key in elsewhere if pulls(consumers.get(key))}
            wakeup_sender.due(elsewhere - pulling, but=self.held.generation)
            if pulling:
                self._read_wakeups()  # for receivers that began to wait before the fan-out
                soon = now + SOON
                due = [key for key in pulling if min(result.due[key].values()) <= soon]
                wakeup_sender.receivers(self.waiting.of(due))

    def _send_at_once(self) -> None:
        """Send just accepted messages that need not wait for what this round handles.

        A step of a bulk load takes up to 20 ms, and a round has four. Messages of higher priority
        go between two steps. So do messages for idle consumers, while deliveries of slow consumers
        wait. Without a backlog, more than `AT_ONCE` messages wait for the next fan-out, which also
        goes by priority.
        """
        self._read_wakeups()
        if not self.notified or self.is_clock_wrong or not self.membership.owns():
            return
        present = max(self.min_priority, self.backlog_priority)
        has_slow = self.assignment.ready_consumers.has_slow()
        if not has_slow and max(self.notified.values()) <= present:
            return
        now = clock.now()
        new = {
            key: level
            for key, level in self.notified.items()
            if level >= present and key not in self.examined
        }
        urgent = sorted(key for key, level in new.items() if level > present)
        if urgent and (self.is_backlog or len(urgent) <= AT_ONCE):
            self._fan_out_at_once(urgent[:AT_ONCE], now, present + 1)
        if not has_slow:
            return
        ordinary = sorted(new.keys() - urgent)
        if ordinary and (self.is_backlog or len(ordinary) <= AT_ONCE):
            self._fan_out_at_once(ordinary[-MAX_EXAMINED:], now, present, only_idle=True)

    def _fan_out_at_once(
        self, message_ids: list[int], now: datetime, min_priority: int, *, only_idle: bool = False
    ) -> None:
        claimer = self.capacity_planner.claimer(
            self.held.generation, now, self._free, min_priority, leaves_room=not only_idle
        )
        select, slot = payloads.select_payloads, self.held.ordinal
        # First, so that an error does not repeat it before the next fan-out.
        self.examined.update(message_ids)
        if only_idle or self.is_backlog:

            def choose(consumers: Mapping[int, Collection[int]]) -> list[int]:
                planner = self.capacity_planner
                ready = planner.ready_at_once(consumers, now) if only_idle else list(consumers)
                return ready[:AT_ONCE]

            result = fanout.fan_out_past_backlog(message_ids, slot, claimer, select, choose)
        else:
            for key in message_ids:
                del self.notified[key]
            result = fanout.fan_out(AT_ONCE, slot, claimer, message_ids, select)
        if result.message_count:
            if result.claimed:
                self.capacity_planner.take_small_steps()
            self._handle_fanout(result, now)
            self._send_claimed()

    def _claim(self, now: datetime) -> int:
        """Claim due deliveries, and return how many there were."""
        requests = self.capacity_planner.claim_requests(self.held.generation, now, self._free())
        if not requests:
            return 0
        taken = claim.claim(
            requests, now=now, slot=self.held.ordinal, ahead=AHEAD, most=self.capacity_planner.batch
        )
        metrics.SWEEP_ROWS.labels("lease").inc(taken.rescued_count)
        counts = self._keep_claimed(taken.rows, now)
        self.min_priority = min((row.priority for row in taken.rows), default=self.min_priority)
        self.body_buffer.prepare(taken.rows, now)
        for request in requests:
            queue = self.assignment.queues[request.consumer_id]
            queue.record_claim(
                counts[queue.consumer.id], taken.still_due.get(queue.consumer.id, {}), now
            )
            self.assignment.ready_consumers.note(queue)
        self.assignment.read_next_due(taken.drained, now)
        return len(taken.rows)

    def _keep_claimed(self, rows: Sequence[ClaimedDelivery], now: datetime) -> Tally[int]:
        """Keep deliveries leased to this pump, and return their number by consumer."""
        counts = Tally(row.consumer_id for row in rows)
        if rows:
            self.capacity_planner.record_levels({row.priority for row in rows})
            queues = self.assignment.queues
            self.claimed += [(row, queues[row.consumer_id]) for row in rows]
            for consumer_id, count in counts.items():
                queues[consumer_id].add_claimed(count, now)
        return counts

    def _send_claimed(self) -> None:
        """Send claimed deliveries that are due and whose bodies fit into the buffer."""
        if self.claimed and not self.membership.may_begin:
            self._beat()
        if not self.claimed:
            return
        now = clock.now()
        loaded, waiting = self.body_buffer.load(self.claimed, now)
        queues = {row.consumer_id: queue for row, queue in self.claimed}
        signers = {
            consumer_id: self.capacity_planner.signer(queue)
            for consumer_id, queue in queues.items()
        }
        failpoints.reach("before_send")
        if not self.membership.may_begin:
            return  # the configuration changed meanwhile, or this process slept
        now = clock.now()
        # No database query from here on: either all of them begin, or none has.
        self.claimed = waiting
        loaded.sort(key=lambda entry: -entry[0].priority)
        for row, queue, payload in loaded:
            signer = signers[row.consumer_id]
            if missing := _missing_key(signer, payload):
                self._leave(missing, row, queue)
                continue
            ticket = self._begin(row, queue, payload)
            if is_late(row, queue, now):
                # The lease may end before the attempt does.
                self._finish(ticket, Outcome.INTERRUPTED, STOPPED)
            elif isinstance(signer, Unreadable):
                self._finish(ticket, Outcome.INTERRUPTED, str(signer))
            else:
                self._send(ticket, signer, payload, now)
        self.sender.on_timer()  # write to the sockets before anything else
        failpoints.reach("after_send")

    def _free(self) -> int:
        """Return how many more requests may be open."""
        return conf().pump_in_flight - len(self.open) - len(self.claimed)

    def _begin(
        self, row: ClaimedDelivery, queue: ConsumerQueue, payload: Payload | None = None
    ) -> int:
        ticket, size = next(self.tickets), payload.size if payload else 0
        self.open[ticket] = (row, queue, queue.consumer, datetime.now(UTC), size)
        queue.began[ticket] = time.monotonic()
        self.body_buffer.put(queue, size)
        return ticket

    def _send(self, ticket: int, signer: Signer, payload: Payload | None, now: datetime) -> None:
        if payload is None or payload.body is None:
            payload = payload or payloads.MISSING
            self._finish(ticket, payload.outcome, payload.error)
            return
        row, queue, *_ = self.open[ticket]
        mark = payloads.stamp(row)
        self.sender.start(payloads.call(ticket, queue.consumer, signer, payload, mark, now))

    def _finish(self, ticket: int, outcome: Outcome, error: str) -> None:
        """Close an attempt that never reached the consumer."""
        self._close(results.unsent(ticket, outcome, error))

    def _leave(self, key_id: str, row: ClaimedDelivery, queue: ConsumerQueue) -> None:
        """Leave a delivery, whose attempt has not begun, to the processes that have the key."""
        self.unopened.setdefault(key_id, []).append(row)
        queue.in_flight -= 1
        self.assignment.ready_consumers.note(queue)

    def _leave_to_others(self) -> None:
        for key_id, rows in list(self.unopened.items()):
            wait_s, now = self.assignment.miss(key_id), clock.now()
            due_at = now + timedelta(seconds=wait_s)
            owner, slot = self.held.generation, self.held.ordinal
            count = release.give_back(rows, owner=owner, due_at=due_at, now=now, slot=slot)
            metrics.UNOPENED.inc(count)
            del self.unopened[key_id]
            for consumer_id in {row.consumer_id for row in rows}:
                self.assignment.expect(consumer_id, due_at)
            self.membership.next_beat = 0.0  # tell the other processes at once

    def _close(self, answer: Response) -> None:
        row, queue, _, started_at, size = self.open.pop(answer.key)
        queue.in_flight -= 1
        del queue.began[answer.key]
        self.body_buffer.take(queue, size)
        self.recorder.note(row, queue, started_at, answer)
        self.assignment.ready_consumers.note(queue)

    def _take_answers(self) -> None:
        for answer in self.sender.take():
            self._close(answer)

    def _record(self) -> None:
        self._take_answers()
        if self.unopened:
            self._leave_to_others()
        if not self.open or time.monotonic() >= self.recorder.due_at:
            self.recorder.flush()

    def _max_wait_s(self) -> float:
        """Return the seconds until this pump must act without a notification."""
        ticks = time.monotonic()
        waits = [
            self.next_poll - ticks,
            self.body_buffer.seconds(clock.now()),
            self.membership.rest_s(),
        ]
        if (recount_s := self.assignment.recount_s) is not None:
            waits.append(recount_s)
        if self.recorder.results:
            waits.append(self.recorder.due_at - ticks)
        if self.accepted_hint:
            waits.append(max(self.next_scan, self.capacity_planner.full_until) - ticks)
        elif (at := self.capacity_planner.wake_at(self._free())) is not None:
            waits.append(max(at - clock.now().timestamp(), self.next_scan - ticks))
        return max(0.0, min(waits))

    def _wait(self, seconds: float) -> None:
        timer = self.sender.next_timeout()
        if timer is not None:
            seconds = min(seconds, timer)
        events = self.selector.select(seconds)
        if time.monotonic() >= self.membership.fence_at:
            # This process slept or has lost the database: send nothing that is not on the wire yet.
            for ticket in self.sender.recall(lambda _: True):
                self._finish(ticket, Outcome.INTERRUPTED, CHANGED)
        for key, _ in events:
            if key.fileobj is self.sender:
                self.sender.ready()
            else:
                self._read_wakeups()
        self.sender.on_timer()

    def _read_wakeups(self) -> None:
        hints = self.listener.read()
        self.accepted_hint = self.accepted_hint or hints.accepted
        if hints.waiting:
            self.waiting.note(hints.waiting)
        self.notified |= hints.message_ids
        if hints.changed:
            self.membership.next_beat = 0.0
        now = clock.now()
        for consumer_id in hints.consumer_ids:
            self.assignment.expect(consumer_id, now)


def _missing_key(signer: Signer | Unreadable, payload: Payload | None) -> str:
    """Return the id of a key that this process lacks for the payload, or '' if it lacks none."""
    if isinstance(signer, KeyMissing):
        return signer.key_id
    return payload.missing_key if payload else ""
