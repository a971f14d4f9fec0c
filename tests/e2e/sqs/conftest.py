"""The SQS API of a real broker, and moto's server to compare it with."""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from tests.support import ports
from tests.support.broker import running
from tests.support.door import REGION, Door


@pytest.fixture(scope="package")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One broker for all tests of the folder."""
    with running(tmp_path_factory.mktemp("sqs")) as broker:
        yield Door.of(broker)


def client(environment: dict[str, str]) -> Any:
    """A boto3 client with the endpoint and credentials of this environment."""
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
    """A boto3 client of the broker."""
    made = client(door.environment)
    yield made
    made.close()


@pytest.fixture(scope="package")
def moto() -> Iterator[Any]:
    """A boto3 client of moto's server."""
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
    """A boto3 client of the broker, then of moto: the same assertions hold for both."""
    return request.getfixturevalue("boto" if request.param == "broker" else "moto")


@pytest.fixture
def name() -> str:
    """A queue name that no other test uses."""
    return f"Test_{uuid.uuid4().hex[:12]}"


os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
