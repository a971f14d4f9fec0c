"""Long polls of SQS clients, which the web server answers without occupying threads."""

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.broker import ANSWER_TIMEOUT_S, receivers_waiting, running, wait_until
from tests.support.door import REGION, Door, client

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One broker for all tests of the file."""
    with running(tmp_path_factory.mktemp("sqs")) as broker:
        yield Door.of(broker)


@pytest.fixture(scope="module")
def boto(door: Door) -> Iterator[Any]:
    """A boto3 client of the broker."""
    made = client(door.environment)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    """A queue name that no other test uses."""
    return f"Test_{uuid.uuid4().hex[:12]}"


def test_a_long_poll_ends_when_a_message_arrives(door: Door, boto: Any, name: str) -> None:
    attributes = {"ReceiveMessageWaitTimeSeconds": "20"}
    url = boto.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    got: list[str] = []

    def receive() -> None:
        # Each poll waits up to 20 s; a busy machine may need several.
        while not got:
            found = boto.receive_message(QueueUrl=url, WaitTimeSeconds=20).get("Messages", [])
            got.extend(one["Body"] for one in found)

    waiting = threading.Thread(target=receive, daemon=True)
    waiting.start()
    wait_until(lambda: receivers_waiting(door.broker) == 1, 60, "it does not wait")
    boto.send_message(QueueUrl=url, MessageBody="here")
    waiting.join(90)
    assert got == ["here"]


def test_more_long_polls_than_threads_wait_and_each_gets_its_message(
    door: Door, boto: Any, name: str
) -> None:
    """The web server has at most 64 threads; a long poll occupies none of them."""
    count = 80
    url = boto.create_queue(QueueName=name)["QueueUrl"]
    body = {"QueueUrl": url, "WaitTimeSeconds": 20}
    keys = Credentials(door.access_key_id, door.secret_access_key)
    target = "AmazonSQS.ReceiveMessage"
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": target}

    def receive(_: int) -> list[str]:
        # Each poll waits up to 20 s; a busy machine may need several.
        for _ in range(10):
            request = AWSRequest("POST", f"{door.url}/", headers=headers, data=json.dumps(body))
            SigV4Auth(keys, "sqs", REGION).add_auth(request)
            signed = {name: str(value) for name, value in request.headers.items()}
            answer = requests.post(
                request.url, headers=signed, data=request.data, timeout=ANSWER_TIMEOUT_S
            ).json()
            if found := answer.get("Messages", []):
                boto.delete_message(QueueUrl=url, ReceiptHandle=found[0]["ReceiptHandle"])
                return [one["Body"] for one in found]
        return []

    with ThreadPoolExecutor(count) as receivers:
        received = receivers.map(receive, range(count))
        wait_until(
            lambda: receivers_waiting(door.broker) == count, 60, "they do not wait", door.broker.log
        )
        for number in range(count):
            boto.send_message(QueueUrl=url, MessageBody=str(number))
        bodies = [body for some in received for body in some]

    assert sorted(bodies, key=int) == [str(number) for number in range(count)]
