"""A message move task of the SQS API (S0-77) whose worker is killed moves each message once."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config

from tests.crash.failpoint import TIMEOUT_S, at
from tests.crash.test_failpoints import Place, place, started
from tests.crash.test_kills import victim
from tests.support.broker import lives, wait_until
from tests.support.door import Door

__all__ = ["place", "started"]
pytestmark = pytest.mark.e2e
NUMBER = 30
BODIES = [f"order {number}" for number in range(NUMBER)]
RATE = 10
"""Messages per second, so slow that the kill hits the middle of the task."""
_numbers = count(1)


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


@pytest.fixture(scope="module")
def sqs(started: Any) -> Iterator[Any]:
    """A boto3 client of the broker."""
    environment = Door.of(started[0]).environment
    made = boto3.client(
        "sqs",
        endpoint_url=environment["AWS_ENDPOINT_URL_SQS"],
        region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(read_timeout=90),
    )
    with closing(made):
        yield made


@pytest.fixture
def queues(sqs: Any, place: Place) -> Queues:
    """A queue with maxReceiveCount 1, each of whose messages was received once and died."""
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
    made = Queues(sqs, url, dead_url, dead_arn)
    died = 0
    while died < NUMBER:
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        handles = [message["ReceiptHandle"] for message in got.get("Messages", [])]
        for handle in handles:
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
        died += len(handles)
    log = place.broker.log
    wait_until(lambda: made.waiting(dead_url) == NUMBER, TIMEOUT_S, "they have not died", log)
    return made


def check(queues: Queues, place: Place) -> None:
    """Check that the task ends and each message is back in its queue once."""
    log = place.broker.log
    wait_until(
        lambda: queues.task()["Status"] == "COMPLETED", TIMEOUT_S, "the task does not end", log
    )
    wait_until(lambda: queues.waiting(queues.url) >= NUMBER, TIMEOUT_S, "some are missing", log)
    assert queues.task()["ApproximateNumberOfMessagesMoved"] == NUMBER
    assert sorted(queues.received(queues.url)) == sorted(BODIES)
    assert queues.received(queues.dead_url) == []


@pytest.mark.parametrize("name", at("in_message_move", "after_message_move"))
def test_a_message_move_task_moves_each_message_once_after_a_crash_at_commit(
    queues: Queues, place: Place, name: str
) -> None:
    with place.point.armed(place.broker, name):
        queues.move()
    check(queues, place)


def test_a_message_move_task_continues_after_its_cluster_is_killed(
    queues: Queues, place: Place
) -> None:
    queues.move(MaxNumberOfMessagesPerSecond=RATE)
    wait_until(
        lambda: queues.task()["ApproximateNumberOfMessagesMoved"] > 0,
        TIMEOUT_S,
        "nothing is moved",
        place.broker.log,
    )
    dead = victim(place.broker, "worker")
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: not lives(dead), TIMEOUT_S, "it lives on")
    assert queues.task()["ApproximateNumberOfMessagesMoved"] < NUMBER
    check(queues, place)
