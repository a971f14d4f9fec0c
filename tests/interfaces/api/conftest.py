"""API clients that the API's tests share."""

import pytest

from tests.support.api import Api
from tests.support.factories import ApiKeyFactory


@pytest.fixture
def admin(db: None) -> Api:
    """A client with an operator's key."""
    return Api(ApiKeyFactory.create(admin=True))


@pytest.fixture
def nobody(db: None) -> Api:
    """A client without a key."""
    return Api()
