"""The Django outbox, in processes of the example project."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from hookstation_client import Delivery, Hookstation

from tests.support import postgresql
from tests.support.broker import Broker, empty_database
from tests.support.examples import Program

pytestmark = pytest.mark.e2e
SETUP = "import django; django.setup()\n"
ROOMS, ORDERS = 3, 400


class Project:
    """The example project with its own database."""

    def __init__(self, broker: Broker, database: str, folder: Path) -> None:
        self._log = folder / "project.log"
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "DATABASE_URL": database,
            "HOOKSTATION_URL": f"http://127.0.0.1:{broker.port}",
            "HOOKSTATION_KEY": broker.key,
        }

    def program(self, *command: str, **environment: str) -> Program:
        """A program of the project that is not started."""
        return Program("django", self._log, self._environment | environment, *command)

    def run(self, code: str, expect: int = 0, **environment: str) -> str:
        """Run code in the project; return its output."""
        return self.program("-c", SETUP + code, **environment).run(expect=expect)

    def manage(self, *arguments: str, expect: int = 0, **environment: str) -> str:
        """Run a management command; return its output."""
        return self.program("manage.py", *arguments, **environment).run(expect=expect)

    def waiting(self) -> int:
        """How many messages are in the outbox."""
        code = "from hookstation_client.django.models import OutboxMessage as O"
        return int(self.run(f"{code}\nprint(O.objects.count())"))


on_postgresql_too = pytest.mark.parametrize(
    "project", ["own_project", "on_postgresql"], indirect=True
)
"""For tests of what the database does: locks, and transactions that are rolled back or killed."""


@pytest.fixture(scope="module")
def own_project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The project on the broker's kind of database."""
    folder = tmp_path_factory.mktemp("shop")
    with empty_database(folder) as database:
        yield migrated(Project(broker, database, folder))


@pytest.fixture(scope="module")
def on_postgresql(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The project on PostgreSQL."""
    if connection.vendor == "mysql":
        pytest.skip("PostgreSQL is tried once, in the run on SQLite")
    with postgresql.server() as database:
        yield migrated(Project(broker, database, tmp_path_factory.mktemp("shop")))


def migrated(project: Project) -> Project:
    project.manage("migrate", "--verbosity", "0")
    return project


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Project:
    found: Project = request.getfixturevalue(getattr(request, "param", "own_project"))
    return found


@pytest.fixture
def orders(hooks: Hookstation) -> Iterator[str]:
    """A consumer of the shop's channel, without any waiting message."""
    hooks.create_channel("bookings")
    hooks.register("bookings", "billing")
    yield "billing"
    hooks.retire_consumer("bookings", "billing")


def received(hooks: Hookstation, channel: str, consumer: str, wait: float = 0) -> list[Delivery]:
    """Receive and acknowledge all waiting messages; the first call waits for one."""
    found: list[Delivery] = []
    while batch := hooks.receive_batch(channel, consumer, max=100, wait=0 if found else wait):
        hooks.ack(batch)
        found += batch
    return found


@pytest.mark.mysql
@on_postgresql_too
def test_messages_of_committed_transactions_alone_are_published(
    project: Project, hooks: Hookstation, orders: str
) -> None:
    """The process that committed the row publishes it in the background."""
    project.run(
        "import time\n"
        "from django.db import transaction\n"
        "from hookstation_client.django.models import OutboxMessage\n"
        "from shop.after import place_order\n"
        "try:\n"
        "    with transaction.atomic(): place_order('blue', 1); raise ValueError\n"
        "except ValueError: pass\n"
        "assert not OutboxMessage.objects.exists()\n"
        "place_order('red', 2)\n"
        "while OutboxMessage.objects.exists(): time.sleep(0.05)\n"
    )

    (message,) = received(hooks, "bookings", orders, wait=20)

    assert (message.json()["room"], message.json()["number"]) == ("red", 2)
    assert (message.event_type, message.ordering_key) == ("order.created", "red")


@pytest.mark.parametrize(("module", "published"), [("before", 0), ("after", 1)])
def test_a_kill_after_the_commit_loses_nothing(
    project: Project, hooks: Hookstation, orders: str, module: str, published: int
) -> None:
    """With the outbox the message is kept; without it the message is lost."""
    project.run(
        "import os, signal\n"
        "from django.db import transaction\n"
        f"from shop.{module} import place_order\n"
        "with transaction.atomic():\n"
        "    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "    place_order('blue', 1)\n",
        expect=-signal.SIGKILL,
        RELAY_ON_COMMIT="false",
    )

    assert project.manage("relay_outbox", "--once") == f"{published} messages published.\n"
    assert len(received(hooks, "bookings", orders)) == published
    assert project.waiting() == 0


@pytest.mark.mysql
@on_postgresql_too
def test_a_killed_relay_loses_nothing_and_keeps_the_order(
    project: Project, hooks: Hookstation, orders: str
) -> None:
    project.run(
        "from django.db import transaction\n"
        "from shop.after import place_order\n"
        "with transaction.atomic():\n"
        f"    for n in range({ORDERS}): place_order(str(n % {ROOMS}), n)\n",
        RELAY_ON_COMMIT="false",
    )
    relay = project.program("manage.py", "relay_outbox")
    relay.start()
    first: list[Delivery] = []
    try:
        # At once after the first messages: the relay is to be killed before the last ones.
        while not first:
            first = hooks.receive_batch("bookings", orders, max=10, wait=20)
    finally:
        relay.kill()
    hooks.ack(first)
    project.manage("relay_outbox", "--once")
    rest = received(hooks, "bookings", orders, wait=20)

    # Ids rise in the order in which the broker stored the messages.
    stored = sorted(first + rest, key=lambda message: message.id)
    numbers = [message.json()["number"] for message in stored]
    assert first
    assert sorted(numbers) == list(range(ORDERS))
    for room in range(ROOMS):
        of_room = [number for number in numbers if number % ROOMS == room]
        assert of_room == sorted(of_room)


def test_a_refused_message_does_not_block_others(
    project: Project, hooks: Hookstation, orders: str
) -> None:
    project.run(
        "from hookstation_client.django import publish_on_commit\n"
        "publish_on_commit('bookings', 'good', ordering_key='k')\n"
        "publish_on_commit('bookings', 'bad', priority=10, ordering_key='k')\n"
        "publish_on_commit('nowhere', 'lost', ordering_key='k')\n"
        "publish_on_commit('bookings', 'fine', ordering_key='k')\n",
        RELAY_ON_COMMIT="false",
    )

    project.manage("relay_outbox", "--once", expect=1)

    assert [message.body for message in received(hooks, "bookings", orders, wait=20)] == [
        b"good",
        b"fine",
    ]
    shown = project.run(
        "from hookstation_client.django.models import OutboxMessage\n"
        "for row in OutboxMessage.objects.order_by('id'): print(row.channel, row.error)\n"
        "OutboxMessage.objects.all().delete()\n"
    )
    refused, waiting = shown.splitlines()
    assert refused.startswith("bookings invalid_fields: ")
    assert waiting.strip() == "nowhere"


def test_a_mirrored_model_publishes_its_changes(project: Project, hooks: Hookstation) -> None:
    hooks.create_channel("customers")
    hooks.register("customers", "crm", ordering=True)
    project.run(
        "from shop.models import Customer\n"
        "from django.db import transaction\n"
        "one = Customer.objects.create(name='Zoë', town='Malmö', notes='private')\n"
        "one.town = 'Lund'; one.save()\n"
        "try:\n"
        "    with transaction.atomic(): one.name = 'X'; one.save(); raise ValueError\n"
        "except ValueError: pass\n"
        "one.delete()\n",
        RELAY_ON_COMMIT="false",
    )
    project.manage("relay_outbox", "--once")

    found = received(hooks, "customers", "crm", wait=20)

    assert [message.event_type for message in found] == [
        "customer.created",
        "customer.updated",
        "customer.deleted",
    ]
    fields = [message.json()["fields"] for message in found]
    assert fields[0] == {"name": "Zoë", "town": "Malmö"}
    assert [one["town"] for one in fields[1:]] == ["Lund", "Lund"]
    assert len({message.ordering_key for message in found}) == 1


def test_a_row_and_its_message_are_one_transaction(project: Project, hooks: Hookstation) -> None:
    """Also outside a transaction: when the message cannot be stored, neither is the row."""
    shown = project.run(
        "from shop.models import Customer\n"
        "import hookstation_client.django.mirroring as mirroring\n"
        "def fail(*args, **kwargs): raise RuntimeError('killed here')\n"
        "mirroring.publish_on_commit = fail\n"
        "try: Customer.objects.create(name='Ann', town='Ulm')\n"
        "except RuntimeError as error: print(error)\n"
        "print(Customer.objects.filter(name='Ann').count())\n",
        RELAY_ON_COMMIT="false",
    )
    assert shown.splitlines() == ["killed here", "0"]
