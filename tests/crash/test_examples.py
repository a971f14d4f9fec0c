"""Each example, and an SQS client, through kills of worker, producer and web process of the broker.

A producer prints the number of each message after the broker has acknowledged it. In the end every
printed message has been handled at least once.
"""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hookstation_client import Hookstation, HookstationError

from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S
from tests.crash.test_kills import victim
from tests.support import broker as broker_module
from tests.support import ports
from tests.support.broker import Broker, descendants, title, wait_until
from tests.support.door import Door
from tests.support.examples import Program, WebShop, task_receiver

pytestmark = pytest.mark.e2e
SETTINGS = {
    # One process: while it is down, no request is answered.
    "HOOKSTATION_WEB_WORKERS": "1",
    "GRANIAN_RESPAWN_INTERVAL": "0.2",
    "HOOKSTATION_LONG_POLLS": "8",
    "HOOKSTATION_LEASE_GRACE_MS": "2000",
}
HELD = (
    "SELECT COUNT(*) FROM delivery_delivery AS delivery"
    " JOIN channels_app_consumer AS consumer ON consumer.id = delivery.consumer_id"
    " JOIN channels_app_channel AS channel ON channel.id = consumer.channel_id"
    " WHERE delivery.state = 'in_flight' AND channel.slug = '{}'"
)
LAST = 1_000_000
"""More messages than any producer sends before its kill."""
STEP = 10
"""Messages that are stored between two kills."""
_numbers = count(1)
PRODUCER = """
import sys, time
{begin}
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    while True:
        try:
            {send}
        except Exception as error:
            print(f"{{number}} is sent again: {{error!r}}", file=sys.stderr)
            time.sleep(0.2)
        else:
            break
    print(number, flush=True)
    time.sleep(0.02)
"""
SQS_QUEUE = """
import os, boto3
queue = boto3.resource("sqs").create_queue(
    QueueName=os.environ["QUEUE"], Attributes={"VisibilityTimeout": "3"}
)
"""
SQS_WORKER = """
import sys, time
from botocore.exceptions import BotoCoreError, ClientError
while True:
    try:
        for message in queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=5):
            with open(os.environ["LINES"], "a") as lines:
                lines.write(f"{message.body}\\n")
            message.delete()
    except (BotoCoreError, ClientError) as error:
        print(f"the queue does not answer: {error}", file=sys.stderr)
        time.sleep(0.2)
"""
NODE_PRODUCER = """
import { setTimeout } from "node:timers/promises";
const [first, last, name] = process.argv.slice(1);
BEGIN
for (let number = Number(first); number < Number(last); number += 1) {
  for (let isStored = false; !isStored; ) {
    try {
      await SEND;
      isStored = true;
    } catch (error) {
      console.error(`${number} is sent again: ${error}`);
      await setTimeout(200);
    }
  }
  console.log(number);
  await setTimeout(20);
}
"""
NODE_CLIENT = """
import { Hookstation } from "hookstation-client";
const hooks = new Hookstation();
"""
NODE_PUBLISH = """
hooks.publish(name, { id: number, article: "tea" }, { eventType: "order.created" })
"""
BULL = """
import Queue from "@hookstation/bull";
const [options, kind] = [{}, []];
"""
BULLMQ = """
import { Queue } from "@hookstation/bullmq";
const [options, kind] = [{ connection: {} }, ["letter"]];
"""
QUEUE = """
const queue = new Queue(name, options);
queue.on("error", (error) => console.error(`${error}`));
const retried = { attempts: 3, backoff: { type: "fixed", delay: 200 } };
"""
ADD = """
queue.add(...kind, { number, to: "Ana" }, { jobId: `letter-${number}`, ...retried })
"""


@dataclass(slots=True)
class Application:
    """The processes of an example, and how to read their results."""

    producer: Program
    worker: Program
    start_worker: Callable[[], None]
    is_at_work: Callable[[], bool]
    """Whether the stopped worker holds a message that it has not acknowledged."""
    handled: Callable[[], set[int]]
    arguments: tuple[str, ...] = ()
    """More arguments of the producer, after the first and the last number."""

    def produce(self) -> None:
        """Start a producer after the last message that is known to be stored."""
        first = max(self.confirmed(), default=0) + 1
        self.producer.start(str(first), str(LAST), *self.arguments)

    def confirmed(self) -> set[int]:
        """Numbers of the messages that the producers know to be stored."""
        return {int(line) for line in self.producer.printed()}

    def wait_for_more(self) -> None:
        """Wait until more messages are stored."""
        wanted = len(self.confirmed()) + STEP
        self.wait_until(
            lambda: len(self.confirmed()) >= wanted and self.producer.is_running,
            "nothing is stored",
        )

    def wait_for_all(self) -> None:
        """Wait until all acknowledged messages are handled."""
        confirmed = self.confirmed()
        self.wait_until(
            lambda: confirmed <= self.handled(),
            "acknowledged messages are missing",
            lambda: f"{sorted(confirmed - self.handled())}\n{self.logs()}",
        )

    def wait_until(
        self, done: Callable[[], bool], otherwise: str, more: Callable[[], str] | None = None
    ) -> None:
        """Wait until the condition holds; fail if the worker ends."""

        def is_done() -> bool:
            assert self.worker.is_running, self.logs()
            return done()

        wait_until(is_done, TIMEOUT_S, otherwise, more or self.logs)

    def kill_worker_at_work(self) -> None:
        """Kill the worker while it holds an unacknowledged message."""

        def is_caught() -> bool:
            self.worker.signal(signal.SIGSTOP)
            if self.is_at_work():
                return True
            self.worker.signal(signal.SIGCONT)
            return False

        self.wait_until(is_caught, "the worker holds nothing")
        self.worker.kill()

    def logs(self) -> str:
        """The standard error of both processes."""
        return f"{self.producer.log()[-1500:]}\n--\n{self.worker.log()[-1500:]}"


@dataclass(frozen=True, slots=True)
class Stage:
    """The broker, the clients and the folder that an example uses."""

    broker: Broker
    hooks: Hookstation
    door: Door
    folder: Path
    name: str
    """The name of the example's own channel or queue."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that uses the client."""
        return {"HOOKSTATION_URL": self.hooks.url, "HOOKSTATION_KEY": self.hooks.key}

    def program(self, example: str, role: str, *command: str, **environment: str) -> Program:
        """Make a process of an example with its own log file."""
        log = self.folder / f"{role}.log"
        return Program(example, log, self.environment | environment, *command)

    def is_held(self) -> bool:
        """Whether a delivery of the channel is in flight."""
        return Counts(self.broker).number(HELD.format(self.name)) > 0

    def lines(self) -> set[int]:
        """Numbers of the lines that an example wrote to one file."""
        file = self.folder / "lines"
        return {int(line) for line in file.read_text().split()} if file.exists() else set()

    def application(
        self, producer: Program, worker: Program, handled: Callable[[], set[int]], *arguments: str
    ) -> Application:
        """An application whose worker needs no further process."""
        return Application(producer, worker, worker.start, self.is_held, handled, arguments)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that all tests of the file share."""
    folder = tmp_path_factory.mktemp("examples")
    with broker_module.running(folder, **SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def door(broker: Broker) -> Door:
    """Its SQS API."""
    return Door.of(broker)


@pytest.fixture(scope="module")
def hooks(broker: Broker) -> Iterator[Hookstation]:
    """A Python client of it."""
    key = broker.key
    with Hookstation(f"http://127.0.0.1:{broker.port}", key=key, timeout=60) as client:
        yield client


def sqs(stage: Stage) -> Application:
    """Messages of Amazon SQS, sent and received with boto3."""
    file = str(stage.folder / "lines")
    environment = stage.door.environment | {"QUEUE": stage.name, "LINES": file}
    send = "queue.send_message(MessageBody=str(number))"
    code = PRODUCER.format(begin=SQS_QUEUE, send=send)
    producer = stage.program(".", "producer", "-c", code, **environment)
    worker = stage.program(".", "worker", "-c", SQS_QUEUE + SQS_WORKER, **environment)
    return stage.application(producer, worker, stage.lines)


def _tasks(stage: Stage, worker: Program) -> Application:
    """Calls of a task that writes a line."""
    send = "note.apply_async([sys.argv[3], str(number)], queue=sys.argv[4])"
    code = PRODUCER.format(begin="from after import note", send=send)
    producer = stage.program("celery", "producer", "-c", code)
    lines = str(stage.folder / "lines")
    return stage.application(producer, worker, stage.lines, lines, stage.name)


def celery(stage: Stage) -> Application:
    """Tasks of the Celery-compatible module, pulled by its worker."""
    command = ("-m", "hookstation_client.celery", "-A", "after", "-c", "2", "-Q", stage.name)
    return _tasks(stage, stage.program("celery", "worker", *command))


def pushed_tasks(stage: Stage, framework: str) -> Application:
    """Tasks of the Celery-compatible module, pushed into a web application."""
    port = ports.claim()
    stage.hooks.create_channel(stage.name, kind="queue")
    made = stage.hooks.register(
        stage.name, "web", url=f"http://127.0.0.1:{port}/tasks", max_attempts=100, retry=[1]
    )
    command = task_receiver(framework, port)
    secret = {"HOOKSTATION_SECRET": made["secret"]}
    return _tasks(stage, stage.program("celery", "web", *command, **secret))


def web_shop(stage: Stage, framework: str) -> Application:
    """Orders, delivered to a shop that deduplicates them."""
    shop = WebShop(stage.folder, framework, "after")
    stage.hooks.create_channel(stage.name)
    made = stage.hooks.register(
        stage.name, "shop", url=f"{shop.url}/hooks", max_attempts=100, retry=[1]
    )
    producer = stage.program(framework, "producer", *_order_producer(framework))
    return Application(
        producer,
        shop,
        lambda: shop.serve(made["secret"]),
        stage.is_held,
        lambda: set(shop.orders()),
        (stage.name,),
    )


def _order_producer(framework: str) -> tuple[str, ...]:
    if framework in ("express", "hono"):
        return _node_producer(NODE_CLIENT, NODE_PUBLISH)
    send = (
        'hooks.publish(sys.argv[3], {"id": number, "article": "tea"}, event_type="order.created")'
    )
    begin = "from hookstation_client import Hookstation\nhooks = Hookstation()"
    return "-c", PRODUCER.format(begin=begin, send=send)


def _node_producer(begin: str, send: str) -> tuple[str, ...]:
    code = NODE_PRODUCER.replace("BEGIN", begin).replace("SEND", send.strip())
    return "--input-type=module", "-e", code


def jobs(stage: Stage, package: str, begin: str) -> Application:
    """Letters, sent by a worker of BullMQ or Bull with the broker as its backend."""
    lines = str(stage.folder / "lines")
    variables = {"SHOP_QUEUE": stage.name, "SHOP_LETTERS": lines}
    worker = stage.program(package, "worker", "after.mjs", "work", **variables)
    producer = stage.program(package, "producer", *_node_producer(begin + QUEUE, ADD))
    return stage.application(producer, worker, stage.lines, stage.name)


def django(stage: Stage) -> Application:
    """Orders in a Django outbox: stored at the commit, handled when the relay publishes them."""
    file = stage.folder / "shop.sqlite3"
    environment = {"DATABASE_URL": f"sqlite:///{file}", "RELAY_ON_COMMIT": "false"}
    stage.program("django", "migrate", "manage.py", "migrate", "-v", "0", **environment).run()
    stage.hooks.create_channel("bookings")
    stage.hooks.register("bookings", "billing")
    arrived: set[int] = set()

    def received() -> set[int]:
        with suppress(HookstationError):  # the web process is down: the next call receives more
            while batch := stage.hooks.receive_batch("bookings", "billing", max=100):
                arrived.update(message.json()["number"] for message in batch)
                stage.hooks.ack(batch)
        return arrived

    def is_waiting() -> bool:
        try:
            with closing(sqlite3.connect(file, timeout=5)) as database:
                (found,) = database.execute("SELECT COUNT(*) FROM hookstation_outboxmessage")
                return bool(found[0])
        except sqlite3.OperationalError:  # the relay was stopped while it held the database lock
            return True

    begin = "import django; django.setup()\nfrom shop.after import place_order"
    code = PRODUCER.format(begin=begin, send="place_order('blue', number)")
    environment["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    producer = stage.program("django", "producer", "-c", code, **environment)
    relay = ("manage.py", "relay_outbox", "--poll", "0.1")
    worker = stage.program("django", "relay", *relay, **environment)
    return Application(producer, worker, worker.start, is_waiting, received)


def web_process(broker: Broker) -> int:
    """Process id of the only process that answers requests.

    Its server replaces it at once; after kills of the server the supervisor waits longer each time.
    """
    assert broker.process is not None
    server = victim(broker, "web")
    (answering,) = (pid for pid in descendants(server) if "granian" in title(pid))
    return answering


EXAMPLES: dict[str, Callable[[Stage], Application]] = {
    "sqs": sqs,
    "celery": celery,
    "celery_in_fastapi": partial(pushed_tasks, framework="fastapi"),
    "fastapi": partial(web_shop, framework="fastapi"),
    "django": django,
    "express": partial(web_shop, framework="express"),
    "bullmq": partial(jobs, package="bullmq", begin=BULLMQ),
    "go_net_http": partial(web_shop, framework="go-net-http"),
    "java_httpserver": partial(web_shop, framework="java-httpserver"),
}
REPEATS: dict[str, Callable[[Stage], Application]] = {
    "celery_in_flask": partial(pushed_tasks, framework="flask"),
    "celery_in_django": partial(pushed_tasks, framework="django"),
    "flask": partial(web_shop, framework="flask"),
    "django_receiving": partial(web_shop, framework="django-receiving"),
    "hono": partial(web_shop, framework="hono"),
    "bull": partial(jobs, package="bull", begin=BULL),
}


@pytest.mark.parametrize(
    "example",
    [pytest.param(example, id=name) for name, example in EXAMPLES.items()]
    + [pytest.param(it, id=name, marks=pytest.mark.repeats) for name, it in REPEATS.items()],
)
def test_kills_lose_no_acknowledged_message(
    example: Callable[[Stage], Application],
    broker: Broker,
    hooks: Hookstation,
    door: Door,
    tmp_path: Path,
) -> None:
    application = example(Stage(broker, hooks, door, tmp_path, f"kill-{next(_numbers)}"))
    with ExitStack() as stack:
        stack.callback(application.worker.kill)
        stack.callback(application.producer.kill)
        application.start_worker()
        application.produce()
        application.wait_until(lambda: bool(application.handled()), "nothing is worked off")

        application.kill_worker_at_work()
        application.start_worker()
        application.wait_for_more()

        os.kill(web_process(broker), signal.SIGKILL)
        application.wait_for_more()

        application.producer.kill()
        application.produce()
        application.wait_for_more()
        application.producer.kill()
        application.wait_for_all()
