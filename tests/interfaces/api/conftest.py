"""Callers that the API's tests share."""

import pytest

from tests.support.api import Api
from tests.support.factories import ApiKeyFactory


@pytest.fixture
def admin(db: None) -> Api:
    """An operator's key."""
    return Api(ApiKeyFactory.create(admin=True))


@pytest.fixture
def nobody(db: None) -> Api:
    """No key at all."""
    return Api()
