"""Tell an outage of this side from failures of single consumers.

Behind a broken firewall, cable or proxy of this side no error says so: calls time out or break, as
if every receiver were down. That nearly all hosts stop answering at once is what tells it apart.
"""

import functools
import time
from urllib.parse import urlsplit

from delivery.core.outcome import Outcome
from delivery.pump.consumer_queue import ConsumerQueue
from delivery.transport import Response

MIN_HOSTS = 5
"""Hosts that must have stopped answering. The failures of the first four are charged."""
MAX_ANSWERING = 0.1
"""Share of the tried hosts that may still answer."""
FAILED_S = 600.0
"""Seconds for which a failure counts: longer than the waits between attempts in an outage."""
ANSWERED_S = 60.0
"""Seconds for which an answer counts."""
MAX_S = 3600.0
"""Seconds after which an outage is charged to the consumers after all: perhaps it is theirs."""

_UNANSWERED = frozenset(
    {
        Outcome.TIMEOUT,
        Outcome.CONNECT_TIMEOUT,
        Outcome.CONNECTION_REFUSED,
        Outcome.CONNECTION_RESET,
        Outcome.CONNECTION_ERROR,
        Outcome.DNS_ERROR,
        Outcome.TLS_ERROR,
    }
)


class Outages:
    """The latest attempts of one pump by host, as far as they matter for an outage."""

    def __init__(self) -> None:
        self._failed: dict[str, float] = {}
        """When (`time.monotonic`) hosts failed that answered before, oldest first."""
        self._answered: dict[str, float] = {}
        """When other hosts answered while one of those was remembered, oldest first."""
        self._since: float | None = None

    def judge(self, queue: ConsumerQueue, answer: Response) -> Response:
        """Return the response, with the outcome `INTERRUPTED` if this side's outage is its cause.

        Only consumers that have answered this pump can stop answering.
        """
        if answer.status is not None:
            queue.has_answered = True
            if self._failed:
                host = _host(queue.consumer.url)
                self._failed.pop(host, None)
                _put_last(self._answered, host, time.monotonic())
            return answer
        if answer.outcome not in _UNANSWERED or not queue.has_answered:
            return answer
        now, host = time.monotonic(), _host(queue.consumer.url)
        self._answered.pop(host, None)
        _put_last(self._failed, host, now)
        if not self._is_outage(now):
            return answer
        error = f"Nearly all hosts stopped answering, so this is not charged. {answer.error}"
        return answer._replace(outcome=Outcome.INTERRUPTED, error=error)

    def _is_outage(self, now: float) -> bool:
        _forget_before(self._failed, now - FAILED_S)
        _forget_before(self._answered, now - ANSWERED_S)
        failed, answered = len(self._failed), len(self._answered)
        if failed < MIN_HOSTS:
            self._since = None
            return False
        # This does not end the hour: a host that answers now and then would begin it anew.
        if answered > MAX_ANSWERING * (failed + answered):
            return False
        if self._since is None:
            self._since = now
        return now - self._since < MAX_S


def _put_last(times: dict[str, float], host: str, now: float) -> None:
    times.pop(host, None)
    times[host] = now


def _forget_before(times: dict[str, float], then: float) -> None:
    while times and times[host := next(iter(times))] < then:
        del times[host]


@functools.lru_cache(maxsize=4096)
def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
