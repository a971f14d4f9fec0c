"""The cluster's queue of tasks: what is queued is handed out, and a stop is heard at once."""

import threading
import time

import pytest
from django_q.conf import Conf

from delivery.runtime import cluster
from delivery.runtime.cluster import PromptBroker
from delivery.runtime.stop import Stop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """The cluster's, which is not set."""
    made = Stop()
    monkeypatch.setattr(cluster, "_stopping", made)
    monkeypatch.setattr(Conf, "POLL", 60)
    return made


def test_dequeue_with_a_task_in_the_queue_returns_it_once(stop: Stop) -> None:
    queue = PromptBroker(list_key="hookstation")
    queue.enqueue("a task")
    time.sleep(0.01)  # a task is due after the instant at which it was queued

    found = queue.dequeue()
    stop.set()

    assert [payload for _, payload in found] == ["a task"]
    assert queue.dequeue() is None


def test_dequeue_that_waits_returns_when_the_cluster_stops(stop: Stop) -> None:
    waiting = threading.Thread(target=PromptBroker(list_key="hookstation").dequeue, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()

    stop.set()
    waiting.join(20)

    assert not waiting.is_alive()
