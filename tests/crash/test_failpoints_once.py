"""A message that comes twice has its effect once, if the consumer deduplicates.

docs/reliability.md asks consumers to store the message id in the transaction of the effect, and to
answer a repeat like the first request.
"""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, retry_until_done
from tests.crash.test_failpoints import Place, place, pulled, started
from tests.support.broker import heard_ids, wait_until

__all__ = ["place", "started"]
pytestmark = [pytest.mark.e2e, pytest.mark.mysql]


class Till:
    """An example consumer that books each message once, however often it comes."""

    def __init__(self, folder: Path) -> None:
        self._tables = sqlite3.connect(folder / "till.sqlite3")
        self._tables.execute("CREATE TABLE done (message_id TEXT PRIMARY KEY)")
        self._tables.execute("CREATE TABLE booked (message_id TEXT)")

    def book(self, message_id: str) -> None:
        """Insert both rows or none; a repeat violates the primary key."""
        try:
            with self._tables:
                self._tables.execute("INSERT INTO done VALUES (?)", [message_id])
                self._tables.execute("INSERT INTO booked VALUES (?)", [message_id])
        except sqlite3.IntegrityError:
            return

    def booked(self) -> Counter[str]:
        """How often each message is booked."""
        return Counter(key for (key,) in self._tables.execute("SELECT message_id FROM booked"))


@pytest.mark.seed("S2-59", "S4-20")
@pytest.mark.parametrize("name", ["before_settle", "in_settle"])
def test_a_repeated_attempt_is_counted_once(place: Place, name: str, tmp_path: Path) -> None:
    place.register()
    till, ids = Till(tmp_path), place.publish_batch(3)
    place.settle()
    with place.point.armed(place.broker, name):
        ids.append(place.publish("once"))
    place.settle()
    heard = heard_ids(place.receiver, "/ok")
    assert max(Counter(heard).values()) == 2, "nothing came twice: this proves nothing"
    for message_id in heard:
        till.book(message_id)
    assert till.booked() == Counter(ids)


@pytest.mark.seed("S2-59", "S4-20")
def test_a_result_recorded_before_a_crash_is_counted_once(place: Place, tmp_path: Path) -> None:
    ids, till = pulled(place), Till(tmp_path)
    came: Counter[str] = Counter()

    def work(*, dies: bool) -> None:
        asked = {"max": 2, "wait_s": 1, "lease_s": 2}
        received, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=asked)
        for one in received["messages"]:
            came[one["id"]] += 1
            till.book(one["id"])
            if not dies:
                retry_until_done(
                    place.broker, "POST", "/leases/ack", json={"leases": [one["lease"]]}
                )

    work(dies=True)

    def is_done() -> bool:
        work(dies=False)
        open_count = Counts(place.broker).open_count()
        return len(came) == len(ids) and max(came.values()) >= 2 and not open_count

    wait_until(is_done, TIMEOUT_S, "what the dead one held does not come back")
    place.settle()
    assert till.booked() == Counter(ids)
