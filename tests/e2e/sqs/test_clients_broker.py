"""Example programs written for Amazon SQS, before and after they are pointed at the broker.

moto stands for Amazon: `AWS_ENDPOINT_URL` sends the programs there, for all services. The one line
of an example's `after.env` sends its SQS calls to the broker.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from tests.e2e.sqs.conftest import client
from tests.support import ports
from tests.support.broker import wait_until
from tests.support.door import Door
from tests.support.examples import ORDERS, Program, sqs_environment

pytestmark = pytest.mark.e2e
DONE_S = 120
LAST = 12
SIGTERM_STATUS = {"aws-sdk-java": 128 + 15}
"""A JVM that ends after SIGTERM says so in its status; the others end with 0."""
NUMBERS = [f"{number}" for number in range(1, LAST + 1)]
Start = Callable[..., Program]


@pytest.fixture(scope="module")
def amazon() -> Iterator[dict[str, str]]:
    """The environment of programs that call moto."""
    port = ports.claim()
    server = ThreadedMotoServer("127.0.0.1", port=port, verbose=False)
    server.start()
    yield {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    server.stop()


@pytest.fixture(params=["before", "after"])
def version(request: pytest.FixtureRequest) -> str:
    """Return which version of the example runs: on moto, or on the broker."""
    return str(request.param)


@pytest.fixture
def program(
    version: str,
    amazon: dict[str, str],
    door: Door,
    boto: Any,
    name: str,
    tmp_path: Path,
) -> Iterator[Start]:
    """Return a factory of an example's programs, which share a queue and files of this test."""
    made: list[Program] = []

    def make(example: str, role: str, *command: str) -> Program:
        environment = {
            **amazon,
            **sqs_environment(example, version, door),
            "QUEUE": name,
            "SHOP_DB": str(tmp_path / "shop.sqlite3"),
            "SHOP_SLIPS": str(tmp_path),
        }
        made.append(Program(example, tmp_path / f"{role}.log", environment, *command))
        return made[-1]

    yield make
    if not made:  # the test is skipped
        return
    found = boto.list_queues(QueueNamePrefix=name).get("QueueUrls", [])
    assert bool(found) is (version == "after"), "it went to the other service"


@pytest.fixture
def count_messages(
    version: str, amazon: dict[str, str], door: Door, name: str
) -> Callable[[], int]:
    """Return a function that counts the messages of the queue, received ones among them."""
    service = door.environment
    if version == "before":
        service = {**service, **amazon, "AWS_ENDPOINT_URL_SQS": amazon["AWS_ENDPOINT_URL"]}
    counts = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")

    def count() -> int:
        with closing(client(service)) as sqs:
            url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
            found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=counts)["Attributes"]
        return sum(int(found[count]) for count in counts)

    return count


@contextmanager
def working(worker: Program) -> Iterator[None]:
    """Start the worker; check that it still runs at the end."""
    worker.start()
    try:
        yield
        assert worker.is_running, worker.log()
    finally:
        worker.kill()


def wait_for_letters(folder: Path, worker: Program) -> None:
    """Wait until all letters are written."""
    wait_until(
        lambda: {path.stem for path in folder.glob("*.txt")} == set(NUMBERS),
        DONE_S,
        "letters are missing",
        worker.log,
    )


@pytest.mark.parametrize("example", ORDERS)
def test_orders_that_are_sent_are_packed(
    example: str, program: Start, count_messages: Callable[[], int]
) -> None:
    place, pack = ORDERS[example]
    packed = {f"order {number} is packed" for number in NUMBERS}
    producer = program(example, "producer", place, "1", f"{LAST}")
    consumer = program(example, "consumer", pack)
    assert producer.run().split() == NUMBERS
    consumer.start()
    try:
        wait_until(lambda: packed <= set(consumer.printed()), DONE_S, "orders wait", consumer.log)
        assert consumer.stop() == SIGTERM_STATUS.get(example, 0), consumer.log()
    finally:
        consumer.kill()
    assert len(consumer.printed()) == LAST, "an order was packed twice"
    assert not count_messages(), "a packed order is still in the queue"


def test_celery_worker_runs_its_tasks(program: Start, tmp_path: Path) -> None:
    """The letters include one whose task is retried."""
    command = ("-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-l", "info")
    worker = program("celery-sqs", "worker", *command)
    send = program("celery-sqs", "producer", "send_letters.py", "1", f"{LAST}", str(tmp_path))
    assert send.run().split() == NUMBERS
    with working(worker):
        wait_for_letters(tmp_path, worker)


def test_django_q2_cluster_runs_its_tasks(program: Start, tmp_path: Path) -> None:
    program("django-q2", "migrate", "manage.py", "migrate", "-v", "0").run()
    cluster = program("django-q2", "cluster", "manage.py", "qcluster")
    arguments = ("manage.py", "send_letters", "1", f"{LAST}", str(tmp_path))
    assert program("django-q2", "producer", *arguments).run().split() == NUMBERS
    with working(cluster):
        wait_for_letters(tmp_path, cluster)
