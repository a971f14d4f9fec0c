"""The team of most tests, and a member who may change its objects."""

import pytest
from django.test import Client

from channels_app.models import Team
from tests.support import people
from tests.support.factories import TeamFactory


@pytest.fixture
def team() -> Team:
    return TeamFactory.create(slug="acme", name="Acme")


@pytest.fixture
def editor(team: Team) -> Client:
    return people.person("eddy", team, "editor")
