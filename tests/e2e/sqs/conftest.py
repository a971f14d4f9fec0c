"""The SQS door of a real broker, and moto's service beside it as a second opinion."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from tests.support import ports
from tests.support.broker import Broker, running

REGION = "us-east-1"


class Door(NamedTuple):
    """A running broker and the key pair of an SQS client that may do everything."""

    broker: Broker
    url: str
    access_key_id: str
    secret_access_key: str

    @property
    def environment(self) -> dict[str, str]:
        """What an unmodified client is given."""
        return {
            "AWS_ENDPOINT_URL_SQS": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    def key(self, *arguments: str) -> dict[str, str]:
        """The environment of another key that the command makes with these arguments."""
        text = self.broker.manage("create_api_key", *arguments, "--sigv4")
        return self.environment | dict(re.findall(r"^(AWS_\w+)=(.*)$", text, re.MULTILINE))


@pytest.fixture(scope="package")
def door(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, django_db_blocker: Any
) -> Iterator[Door]:
    """One broker for all tests of the folder."""
    with django_db_blocker.unblock(), opened(tmp_path_factory.mktemp("sqs")) as door:
        yield door


@contextmanager
def opened(folder: Path) -> Iterator[Door]:
    """A broker of its own, and a key for all of it."""
    with running(folder) as broker:
        door = Door(broker, f"http://127.0.0.1:{broker.port}", "", "")
        made = door.key("sqs", "--scope", "admin", "--all-channels")
        yield door._replace(
            access_key_id=made["AWS_ACCESS_KEY_ID"],
            secret_access_key=made["AWS_SECRET_ACCESS_KEY"],
        )


def client(environment: dict[str, str]) -> Any:
    """A boto3 client with the address and the keys of this environment."""
    return boto3.client(
        "sqs",
        endpoint_url=environment["AWS_ENDPOINT_URL_SQS"],
        region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"total_max_attempts": 1}, read_timeout=90),
    )


@pytest.fixture(scope="package")
def boto(door: Door) -> Iterator[Any]:
    """boto3's client of the door."""
    made = client(door.environment)
    yield made
    made.close()


@pytest.fixture(scope="package")
def moto() -> Iterator[Any]:
    """boto3's client of moto's service."""
    port = ports.claim()
    server = ThreadedMotoServer("127.0.0.1", port=port, verbose=False)
    server.start()
    made = client(
        {
            "AWS_ENDPOINT_URL_SQS": f"http://127.0.0.1:{port}",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }
    )
    yield made
    made.close()
    server.stop()


@pytest.fixture(params=["broker", "moto"])
def sqs(request: pytest.FixtureRequest) -> Any:
    """A boto3 client of each service in turn: what holds for one holds for the other."""
    return request.getfixturevalue("boto" if request.param == "broker" else "moto")


@pytest.fixture
def name() -> str:
    """A queue's name of the test's own."""
    return f"Test_{uuid.uuid4().hex[:12]}"


os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
