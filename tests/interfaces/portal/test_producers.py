"""Producers in the portal: a team creates its own, which need an operator's grant."""

from typing import Any

import pytest
from django.test import Client

from channels_app.core.errors import NotFound
from channels_app.models import Producer, Team
from channels_app.registry import producers
from tests.support.factories import ProducerFactory, TeamFactory
from tests.support.principals import acting

pytestmark = pytest.mark.django_db

LIST = "/portal/acme/producers/"
NEW = f"{LIST}-/new/"


def receive_request(**changes: Any) -> dict[str, Any]:
    return {"name": "till", "description": "The till", "default_priority": "4", **changes}


def test_a_new_producer_is_listed_with_what_it_needs_next(team: Team, editor: Client) -> None:
    assert "No producers yet" in editor.get(LIST).content.decode()

    answer = editor.post(NEW, receive_request(default_priority="6"), follow=True)

    page = "/portal/acme/producers/acme.till/"
    assert answer.redirect_chain == [(page, 302)]
    assert "Ask an operator for its first key" in answer.content.decode()
    made = Producer.objects.get()
    assert (made.slug, made.team, made.description) == ("acme.till", team, "The till")
    assert (made.default_priority, made.max_priority, made.rate_per_second) == (6, 9, None)
    listed = editor.get(LIST).content.decode()
    assert "The till" in listed
    assert "none yet" in listed


def test_an_invalid_producer_is_refused_and_input_kept(team: Team, editor: Client) -> None:
    ProducerFactory.create(slug="acme.shop", team=team)
    for changes, sentence in (
        ({"name": "Till"}, "lower-case letters"),
        ({"name": "t" * 99}, "1 to 100 characters"),  # too long with the team's name
        ({"name": "shop"}, "a producer acme.shop already"),
        ({"default_priority": "10"}, "less than or equal to 9"),
        ({"description": "\x07"}, "Control characters"),
    ):
        answer = editor.post(NEW, receive_request(**changes))
        html = answer.content.decode()
        assert answer.status_code == 422
        assert sentence in html
        assert f'value="{changes.get("name", "till")}"' in html
    assert Producer.objects.count() == 1


def test_a_producer_cannot_take_an_existing_name(editor: Client) -> None:
    ProducerFactory.create(slug="till", team=None)
    ProducerFactory.create(slug="acme.till", team=TeamFactory.create(slug="other"))

    assert editor.post(NEW, receive_request()).status_code == 422

    assert editor.post(NEW, receive_request(name="shop")).status_code == 302
    assert list(Producer.objects.filter(team__slug="acme").values_list("slug", flat=True)) == [
        "acme.shop"
    ]


def test_the_number_of_producers_is_limited(
    team: Team, editor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_OF_TEAM", 1)
    ProducerFactory.create(team=team)

    answer = editor.post(NEW, receive_request())

    assert answer.status_code == 422
    assert "ask an operator for more" in answer.content.decode()


def test_a_team_cannot_change_limits_or_an_operators_disabling(team: Team, editor: Client) -> None:
    shop = ProducerFactory.create(
        slug="acme.shop", team=team, max_priority=5, rate_per_second=2.0, disabled=True
    )
    wider = {"max_priority": "9", "rate_limit": "", "disabled": "", "team": ""}
    wished = {"description": "", "version": f"{shop.version}", **wider}
    page = f"{LIST}acme.shop/"

    refused = editor.post(page, {**wished, "default_priority": "6"})
    assert refused.status_code == 422
    assert "above max_priority" in refused.content.decode()
    assert editor.post(page, {**wished, "default_priority": "5"}).status_code == 302

    shop.refresh_from_db()
    assert (shop.max_priority, shop.rate_per_second, shop.disabled) == (5, 2.0, True)
    assert (shop.default_priority, shop.team) == (5, team)


def test_a_producer_that_changed_its_team_meanwhile_is_not_written(team: Team) -> None:
    """The page of another team's producer is 404: test_others.py."""
    ProducerFactory.create(slug="bank", team=TeamFactory.create(slug="other"))
    with pytest.raises(NotFound):
        producers.change_within("acme", "bank", {}, principal=acting("user:eddy"))
