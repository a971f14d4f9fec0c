"""The console's layout: navigation, and lists whose cost does not grow with their rows."""

import re
import sys
from types import CodeType, FrameType
from typing import Any

import pytest
from django import urls
from django.contrib import admin
from django.template import Context, Template
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from unfold.contrib.filters.admin import DropdownFilter
from unfold.contrib.filters.forms import DropdownForm
from unfold.templatetags import unfold_list

from broker_site.console import changelist, navigation
from broker_site.console import tags as console_tags
from channels_app.admin import filters
from channels_app.database import clock
from channels_app.models import Consumer, Schedule, Team
from delivery.models import Delivery, PipelineRun
from pipeline.contract.jobs import JOBS
from tests.support import console
from tests.support.counts import make_deliveries
from tests.support.factories import ChannelFactory, ConsumerFactory
from tests.support.html import parts

pytestmark = pytest.mark.django_db

DEAD = console.list_url(Delivery, "?state=dead")


# -- Navigation ------------------------------------------------------------------------------------


def test_the_sidebar_highlights_the_current_page(operator: Client) -> None:
    for address, lit in (
        (reverse("admin:index"), "Overview"),
        (console.list_url(Delivery), "Deliveries"),
        (console.list_url(Delivery, "?state=queued"), "Deliveries"),
        (DEAD, "Dead letters"),
        (console.list_url(Consumer), "Consumers"),
        (console.list_url(Team), "Teams"),
        (reverse("admin:system"), "System"),
        (reverse("admin:health"), "Health"),
    ):
        groups = operator.get(address).context["sidebar_navigation"]
        items = [item for group in groups for item in group["items"]]
        assert [item["title"] for item in items if item["active"]] == [lit]


def test_links_with_a_filter_lead_to_a_list(operator: Client) -> None:
    """Links without one lead to pages that tests/golden/queries.txt records."""
    groups = (*navigation.TABS, *(group.places for group in navigation.NAVIGATION))
    links = {place.link() for group in groups for place in group if "?" in place.link()}
    assert {link: operator.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_only_permitted_links_are_shown() -> None:
    client = console.staff("view_delivery")

    groups = client.get(reverse("admin:index")).context["sidebar_navigation"]

    assert [[item["title"] for item in group["items"]] for group in groups] == [
        ["Overview"],
        ["Deliveries", "Dead letters"],
    ]


def test_the_chosen_state_is_a_tab(operator: Client) -> None:
    tabs = [tab for tab in operator.get(DEAD).context["tab_list"] if tab["models"][0] == DELIVERY]

    assert [item["title"] for item in tabs[0]["items"] if item["active"]] == ["Dead letters"]


def test_the_dead_letter_link_shows_the_count(operator: Client) -> None:
    assert badge(operator) == ""
    make_deliveries(ConsumerFactory.create(), 3, state="dead")
    assert badge(operator) == "3"


def badge(client: Client) -> str:
    groups = client.get(reverse("admin:index")).context["sidebar_navigation"]
    items = {item["title"]: item for group in groups for item in group["items"]}
    return str(items["Dead letters"]["badge"])


DELIVERY = "delivery.delivery"


def test_empty_pages_explain_how_to_start(operator: Client) -> None:
    channel = ChannelFactory.create()
    starts = [reverse("admin:delivery_pipelinerun_start", args=[job]) for job in JOBS]
    for page, words in {
        reverse("admin:index"): ["Nothing has been published yet"],
        reverse("admin:system"): ["No worker has ever run here", "No sweep has run yet"],
        reverse("admin:timeline"): ["Nothing is scheduled", "Hookstation-Delay"],
        f"{reverse('admin:timeline')}?channel={channel.pk}": [f"channels/{channel.slug}/messages"],
        reverse("admin:delivery_delivery_causes"): ["No dead letters"],
        console.list_url(Schedule): [
            "No schedules yet",
            reverse("admin:channels_app_schedule_add"),
        ],
        console.list_url(PipelineRun): ["set <code", "HOOKSTATION_LAKE", "never", *starts],
    }.items():
        text = console.look(operator, page)
        assert [it for it in words if it not in text] == [], page
    make_deliveries(ConsumerFactory.create(), 1)
    assert "Nothing has been published" not in console.look(operator, reverse("admin:index"))


# -- Lists -----------------------------------------------------------------------------------------


@pytest.mark.slow("draws the list of every table")
def test_rows_look_as_unfold_draws_them(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    console.fill()
    # Rows are drawn twice: how long something has been running must be the same both times.
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    for model in admin.site._registry:
        answer = operator.get(console.list_url(model))
        is_filled = model._meta.app_label in ("channels_app", "delivery")
        assert "Nothing is here yet" not in answer.content.decode() or not is_filled, model
        cl = answer.context["cl"]
        headers = list(unfold_list.result_headers(cl))
        assert changelist.is_plain(cl)
        ours = [parts(row)[2:-2] for row in changelist.rows(cl, headers)]  # without <tbody><tr>
        assert ours == [parts("".join(row)) for row in unfold_list.results(cl)], model


def test_a_choice_looks_as_unfold_draws_it() -> None:
    given: dict[str, Any] = {
        "name": "state",
        "label": "By state",
        "choices": [("", "All"), ("dead", "<Dead>"), ("it's", "It's & that")],
        "data": {"state": "dead"},
    }

    unfolds = [{"form": DropdownForm(**given)}]
    ours = [{"form": filters.Form(**given)}]
    templates = DropdownFilter.template, filters.DropdownFilter.template
    drawn = [
        render_to_string(template, {"choices": forms})
        for template, forms in zip(templates, (unfolds, ours), strict=True)
    ]

    assert parts(drawn[1]) == parts(drawn[0])
    assert "&lt;Dead&gt;" in drawn[1]
    given |= {"data": {"state": None}}
    assert 'value="" selected' in str(filters.Form(**given))


def test_a_block_is_drawn_once_for_each_value_of_its_keys() -> None:
    source = (
        "{% load console %}{% remembered a b.c %}{{ a }}{{ b.c }}{{ other }}{% endremembered %}"
    )
    block = Template(source)

    def drawn(a: Any, c: Any, other: str) -> str:
        return block.render(Context({"a": a, "b": {"c": c}, "other": other}))

    assert drawn(1, 2, "first") == "12first"
    assert drawn(1, 2, "second") == "12first"
    assert drawn("1", 2, "third") == "12third"
    assert [drawn(number, 2, "x") for number in range(300)][-1] == "2992x"
    (remembered,) = block.nodelist.get_nodes_by_type(console_tags.Remembered)
    assert isinstance(remembered, console_tags.Remembered)
    assert 0 < len(remembered.drawn) <= console_tags.MAX_REMEMBERED


def test_cached_page_parts_do_not_leak_between_users(operator: Client) -> None:
    changelist = make_deliveries(ConsumerFactory.create(), 2, state="dead")
    client = console.staff("view_delivery")

    full = operator.get(DEAD).content.decode()
    little = client.get(DEAD).content.decode()

    only_theirs = "Cancel</option>|action-toggle|Audit log"
    assert set(re.findall(only_theirs, full)) == set(only_theirs.split("|"))
    assert str(changelist[0]) in little
    assert not re.findall(only_theirs, little)
    assert parts(operator.get(DEAD).content.decode())[:50] == parts(full)[:50]


def test_popup_lists_use_unfolds_templates(operator: Client) -> None:
    ConsumerFactory.create()
    answer = operator.get(console.list_url(Consumer, "?_popup=1"))

    assert not changelist.is_plain(answer.context["cl"])
    assert "data-popup-opener" in answer.content.decode()


def test_a_list_renders_a_constant_number_of_templates(operator: Client) -> None:
    make_deliveries(ConsumerFactory.create(), 1, state="dead")
    _, few = operator.get(DEAD), operator.get(DEAD)
    make_deliveries(ConsumerFactory.create(), 19, state="dead")
    ConsumerFactory.create_batch(20)
    _, many = operator.get(DEAD), operator.get(DEAD)

    assert len(many.context["cl"].result_list) == 20
    assert len(many.templates) == len(few.templates) < 120


def test_a_list_resolves_few_addresses(operator: Client) -> None:
    make_deliveries(ConsumerFactory.create(), 20, state="dead")
    operator.get(DEAD)

    with Calls(urls.reverse.__code__) as calls:
        operator.get(DEAD)

    assert 0 < calls.number < 30


class Calls:
    """Counts the calls of a function while the context is active."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.number = 0

    def __enter__(self) -> "Calls":
        sys.setprofile(self.look)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def look(self, frame: FrameType, event: str, arg: Any) -> None:
        self.number += event == "call" and frame.f_code is self.code
