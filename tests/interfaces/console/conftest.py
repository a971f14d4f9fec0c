"""Users that tests of the console share."""

import pytest
from django.test import Client

from tests.support import console


@pytest.fixture
def operator() -> Client:
    """A user with all permissions."""
    return console.operator()


@pytest.fixture
def onlooker() -> Client:
    """A user who may view everything and change nothing."""
    return console.onlooker()
