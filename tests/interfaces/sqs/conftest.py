"""boto3 clients of the SQS API and of moto, in this process."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from moto.core.utils import unix_time, unix_time_millis
from moto.sqs import models

from delivery.sqs import handler
from tests.interfaces.sqs.calling import Door, moto_client
from tests.support import clocks
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory


@pytest.fixture(autouse=True)
def _one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the handler keep the connection, which has the test's transaction."""
    monkeypatch.setattr(handler, "close_old_connections", lambda: None)


@pytest.fixture
def door(db: None) -> Door:
    """The SQS API, with a key that has all scopes."""
    return Door.of("sqs", "--scope", "admin", "--all-channels")


@pytest.fixture
def boto(door: Door) -> Iterator[Any]:
    """A boto3 client of the broker."""
    made = door.client()
    yield made
    made.close()


@pytest.fixture(scope="session")
def moto() -> Iterator[Any]:
    """A boto3 client of moto."""
    made = moto_client()
    yield made
    made.close()


@pytest.fixture(params=["broker", "moto"])
def sqs(request: pytest.FixtureRequest) -> Any:
    """A boto3 client of the broker, then of moto: the same assertions hold for both."""
    return request.getfixturevalue("boto" if request.param == "broker" else "moto")


@pytest.fixture
def admin(db: None) -> Api:
    """A client of the REST API."""
    return Api(ApiKeyFactory.create(admin=True))


@pytest.fixture
def name() -> str:
    """A queue name that no other test uses."""
    return f"Test_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def elapse(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Returns a function that moves the clocks of the broker and of moto forward by seconds."""
    move, passed_s = clocks.forward(monkeypatch), 0.0

    def elapse(seconds: float) -> None:
        nonlocal passed_s
        move(seconds)
        passed_s += seconds

    monkeypatch.setattr(models, "unix_time", lambda: unix_time() + passed_s)
    monkeypatch.setattr(models, "unix_time_millis", lambda: unix_time_millis() + passed_s * 1000)
    return elapse
