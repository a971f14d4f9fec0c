"""A message move task of the SQS API (S0-77) whose worker is killed moves each message once."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests.crash.place import Place
from tests.crash.test_kills import victim
from tests.support.broker import Broker, lives
from tests.support.door import Door, client

pytestmark = pytest.mark.e2e
NUMBER = 30
BODIES = [f"order {number}" for number in range(NUMBER)]
RATE = 10
"""Messages per second, so slow that the kill hits the middle of the task."""
_numbers = count(1)


@pytest.fixture(scope="module")
def sqs(started: Broker) -> Iterator[Any]:
    """A boto3 client of the broker."""
    with closing(client(Door.of(started).environment, attempts=5)) as made:
        yield made


class Queues(NamedTuple):
    """A queue whose messages died, and its dead-letter queue."""

    sqs: Any
    url: str
    dead_url: str
    dead_arn: str

    def task(self) -> dict[str, Any]:
        """The newest move task."""
        (found,) = self.sqs.list_message_move_tasks(SourceArn=self.dead_arn)["Results"]
        task: dict[str, Any] = found
        return task

    def move(self, **options: int) -> None:
        """Start a task that moves the messages back to their queue."""
        self.sqs.start_message_move_task(SourceArn=self.dead_arn, **options)

    def waiting(self, url: str) -> int:
        """How many messages of a queue can be received."""
        name = "ApproximateNumberOfMessages"
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        return int(found["Attributes"][name])

    def received(self, url: str) -> list[str]:
        """Receive and delete all messages of a queue; return their bodies."""
        bodies: list[str] = []
        options = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        while got := self.sqs.receive_message(QueueUrl=url, **options).get("Messages"):
            for message in got:
                bodies.append(message["Body"])
                assert message["MessageAttributes"]["kind"]["StringValue"] == "tea"
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return bodies


@contextmanager
def _dead_messages(sqs: Any, place: Place) -> Iterator[Queues]:
    """A queue with maxReceiveCount 1, each of whose messages was received once and died.

    After the block the task must end, and each message be back in its queue once.
    """
    name = f"moves-{next(_numbers)}"
    dead_url = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])
    dead_arn = found["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    url = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
    kind = {"kind": {"DataType": "String", "StringValue": "tea"}}
    for start in range(0, NUMBER, 10):
        entries = [
            {"Id": f"{index}", "MessageBody": body, "MessageAttributes": kind}
            for index, body in enumerate(BODIES[start : start + 10])
        ]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    queues = Queues(sqs, url, dead_url, dead_arn)
    died = 0
    while died < NUMBER:
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        handles = [message["ReceiptHandle"] for message in got.get("Messages", [])]
        for handle in handles:
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
        died += len(handles)
    place.wait_until(lambda: queues.waiting(dead_url) == NUMBER, "they have not died")
    yield queues
    place.wait_until(lambda: queues.task()["Status"] == "COMPLETED", "the task does not end")
    place.wait_until(lambda: queues.waiting(url) >= NUMBER, "some are missing")
    assert queues.task()["ApproximateNumberOfMessagesMoved"] == NUMBER
    assert sorted(queues.received(url)) == sorted(BODIES)
    assert queues.received(dead_url) == []


@pytest.mark.parametrize(
    "step", [pytest.param("in_message_move", marks=pytest.mark.mysql), "after_message_move"]
)
def test_a_message_move_task_moves_each_message_once_after_a_crash_at_commit(
    sqs: Any, place: Place, step: str
) -> None:
    place.step = step
    with _dead_messages(sqs, place) as queues, place.dying():
        queues.move()


def test_a_message_move_task_continues_after_its_cluster_is_killed(sqs: Any, place: Place) -> None:
    with _dead_messages(sqs, place) as queues:
        queues.move(MaxNumberOfMessagesPerSecond=RATE)
        moved = "ApproximateNumberOfMessagesMoved"
        place.wait_until(lambda: queues.task()[moved] > 0, "nothing is moved")
        dead = victim(place.broker, "worker")
        os.kill(dead, signal.SIGKILL)
        place.wait_until(lambda: not lives(dead), "it lives on")
        assert queues.task()[moved] < NUMBER
