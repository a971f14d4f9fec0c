"""Producers in threads that retry every message until it is acknowledged."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.crash.failpoint import retry_until_done
from tests.support.broker import Broker


@dataclass(slots=True)
class Traffic:
    """The ids acknowledged so far, and the producers' errors."""

    channel: str
    acknowledged: set[str] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)

    def produce(self, brokers: list[Broker], name: int, pause_s: float) -> None:
        """Publish until stopped, to each broker in turn."""
        turn = 0
        try:
            while not self.stopped.wait(pause_s):
                turn += 1
                answer, _ = retry_until_done(
                    brokers[turn % len(brokers)],
                    "POST",
                    f"/channels/{self.channel}/messages",
                    data=f"{name}/{turn}",
                    headers={"Idempotency-Key": f"{name}/{turn}"},
                )
                self.acknowledged.add(str(answer["id"]))
        except BaseException as error:
            self.failures.append(error)

    def wait_for_more(self, number: int) -> None:
        """Wait until ``number`` more messages are acknowledged."""
        wanted = len(self.acknowledged) + number
        end = time.monotonic() + 300.0
        while len(self.acknowledged) < wanted and not self.failures:
            assert time.monotonic() < end, "nothing is acknowledged any more"
            time.sleep(0.05)


@contextmanager
def flowing(
    channel: str, *brokers: Broker, producers: int = 4, pause_s: float = 0.05
) -> Iterator[Traffic]:
    """Run producers inside the block; at the end wait for their last responses."""
    traffic = Traffic(channel)
    threads = [
        threading.Thread(target=traffic.produce, args=[list(brokers), number, pause_s])
        for number in range(producers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        traffic.stopped.set()
        for thread in threads:
            thread.join()
    assert not traffic.failures, traffic.failures[0]
