"""Lists, dead letters and their replay in the portal, with a real pump and a real receiver."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from channels_app.database import clock, keyset
from channels_app.models import AuditEntry, Consumer
from delivery import replay
from delivery.core.lifecycle import SHOWN_STATES
from delivery.core.ordering import BEHIND
from delivery.models import Delivery, Replay
from delivery.portal import charts, pages
from delivery.portal.views import replays
from delivery.portal.views import webhook as views
from delivery.serializers.filters import SKEW, DeliveryFilter
from tests.support import people
from tests.support.counts import key_at, make_deliveries, query_count
from tests.support.factories import AttemptFactory, ConsumerFactory, DeliveryFactory, TeamFactory
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
)
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def webhook(receiver: Receiver) -> Consumer:
    team = TeamFactory.create(slug="acme", name="Acme")
    channel = make_channel(exposure="external")
    return make_consumer(channel, receiver.url("/hook"), client_id="mine", team=team)


@pytest.fixture
def owner(webhook: Consumer) -> Client:
    assert webhook.team is not None
    return people.person("olga", webhook.team, "owner")


def root(webhook: Consumer) -> str:
    return f"/portal/acme/webhooks/{webhook.channel}/{webhook}"


def text(answer: Any) -> str:
    return str(answer.content.decode())


@pytest.mark.seed("S4-04")
def test_scheduled_deliveries_are_ordered_by_due_time(
    owner: Client, webhook: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{root(webhook)}/upcoming/"
    assert "Nothing is due later" in text(owner.get(path))
    now = clock.now()

    def due(minutes: int, **traits: Any) -> str:
        at = now + timedelta(minutes=minutes)
        return str(DeliveryFactory.create(consumer=webhook, **{"due_at": at} | traits))

    third, first = due(30, priority=9), due(10, priority=1)
    retry = due(20, retrying=True)
    for other in (
        *(due(0), due(5, in_flight=True), due(5, due_at=BEHIND), due(5, dead=True, due_at=None)),
        str(DeliveryFactory.create(due_at=now + timedelta(minutes=5))),
    ):
        assert other not in text(owner.get(path))
    shown = re.findall(r">(dlv_\w{13})<", text(owner.get(path)))
    assert shown == [first, retry, third]
    monkeypatch.setattr(views, "MAX_UPCOMING", 2)
    few = text(owner.get(path))
    assert re.findall(r">(dlv_\w{13})<", few) == [first, retry]
    assert "Only the first 2 are shown" in few


def run_sweeps() -> None:
    """Run the replays as the maintenance process does."""
    while replay.run_due(clock.now(), slot=0):
        pass


def test_dead_letters_are_counted_before_a_replay(
    owner: Client, webhook: Consumer, receiver: Receiver
) -> None:
    receiver.script("/hook", [Reply(500, b"no")])
    Consumer.objects.filter(id=webhook.id).update(retry="once")
    publish(webhook.channel, *[b"%d" % n for n in range(5)], event_type="order.paid")
    with pumping() as pump:
        pump_until(pump, all_finished)
    receiver.script("/hook", [Reply(200)])
    rows = Delivery.objects.filter(state="dead")
    assert len(rows) == 5
    dead = text(owner.get(f"{root(webhook)}/dead/"))
    assert all(str(row) in dead for row in rows)
    start = f"{root(webhook)}/dead/replay/?outcome=server_error"
    assert "Replay 5 messages?" in text(owner.get(start))
    assert not Replay.objects.exists()
    assert owner.post(start, {"reason": ""}).status_code == 422  # a reason is required

    answer = owner.post(start, {"reason": "it was down"})

    asked = Replay.objects.get()
    assert answer["Location"] == f"{root(webhook)}/replays/{asked}/"
    assert "<b>0</b> of 5 queued again" in text(owner.get(answer["Location"]))
    run_sweeps()
    with pumping() as pump:
        pump_until(pump, all_finished)
    part = owner.get(answer["Location"], headers={"X-Live": "1"})
    assert "<html" not in text(part)
    assert "<b>5</b> of 5 queued again" in text(part)
    assert "data-live-stop" in text(part)
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered"}
    assert "it was down" in text(owner.get(f"{root(webhook)}/replays/"))
    entry = AuditEntry.objects.get(action="replay.create")
    assert (entry.actor, entry.reason) == ("user:olga", "it was down")


def test_only_selected_dead_letters_are_replayed(owner: Client, webhook: Consumer) -> None:
    first, second, third = DeliveryFactory.create_batch(3, consumer=webhook, dead=True)
    start = f"{root(webhook)}/dead/replay/?id={first}&id={third}"
    assert "Replay 2 messages?" in text(owner.get(start))
    owner.post(start, {"reason": "two of them"})
    run_sweeps()
    second.refresh_from_db()
    assert second.state == "dead"
    assert Delivery.objects.filter(state="queued").count() == 2


def test_another_teams_dead_letters_cannot_be_selected(owner: Client, webhook: Consumer) -> None:
    theirs = ConsumerFactory.create(channel=webhook.channel, team=TeamFactory.create())
    row = DeliveryFactory.create(dead=True, consumer=theirs)
    start = f"{root(webhook)}/dead/replay/?id={row}"
    assert "There is nothing to replay" in text(owner.get(start))
    owner.post(start, {"reason": "mine now"})
    run_sweeps()
    row.refresh_from_db()
    assert row.state == "dead"
    assert owner.get(f"{root(webhook)}/dead/replay/?id=nonsense").status_code == 404


def test_a_replay_is_cancelled_half_way(owner: Client, webhook: Consumer) -> None:
    DeliveryFactory.create_batch(3, consumer=webhook, dead=True)
    start = f"{root(webhook)}/dead/replay/"
    page = owner.post(start, {"reason": "slowly", "rate_per_second": "0.001"})["Location"]
    run_sweeps()
    answer = owner.post(f"{page}cancel/", follow=True)
    assert "Deliveries that are already queued are still sent" in text(answer)
    assert Replay.objects.get().state == "cancelled"
    assert Delivery.objects.filter(state="dead").count() == 2
    assert "cancelled already" in text(owner.post(f"{page}cancel/", follow=True))


def asked(team_id: int | None, consumer_id: int) -> Replay:
    now = clock.now()
    return Replay(
        id=key_at(now),
        filter={},
        consumer_ids=[consumer_id],
        team_id=team_id,
        requested_by="user:x",
        upper_id=1,
        next_due_at=now,
        created_at=now,
    )


def test_other_replays_do_not_hide_one(
    owner: Client, webhook: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "LAST", 2)
    monkeypatch.setattr(replays, "SCAN_ROWS", 3)
    another = ConsumerFactory.create(channel=webhook.channel, team=webhook.team)
    order = (webhook, *[another] * 4, webhook, webhook, webhook)
    rows = [asked(webhook.team_id, consumer.id) for consumer in order]
    Replay.objects.bulk_create(rows)
    mine = [str(row) for row in reversed(rows) if row.consumer_ids == [webhook.id]]

    found, query = [], ""
    for _ in range(len(rows)):
        html = text(owner.get(f"{root(webhook)}/replays/{query}"))
        found.append(re.findall(r">(rpl_\w+)</a>", html))
        older = re.search(r'href="(\?before=[^"]+)"', html)
        if not older:
            break
        query = older[1]

    assert found == [mine[:2], mine[2:3], mine[3:], []]


def test_replays_of_others_do_not_displace_own_ones(
    owner: Client, webhook: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "SCAN_ROWS", 50)
    mine = asked(webhook.team_id, webhook.id)
    mine.save()
    Replay.objects.bulk_create(asked(None, webhook.id) for _ in range(60))

    assert str(mine) in text(owner.get(f"{root(webhook)}/replays/"))


def test_another_webhooks_replay_is_not_found(owner: Client, webhook: Consumer) -> None:
    for row in (asked(webhook.team_id, webhook.id + 1), asked(None, webhook.id)):
        row.save()
        page = f"{root(webhook)}/replays/{row}/"
        assert owner.get(page).status_code == 404
        assert owner.post(f"{page}cancel/").status_code == 404
        assert str(row) not in text(owner.get(f"{root(webhook)}/replays/"))
        row.delete()


def test_a_delivery_is_replayed_or_cancelled(owner: Client, webhook: Consumer) -> None:
    row = DeliveryFactory.create(consumer=webhook, dead=True)
    page = f"{root(webhook)}/deliveries/{row}/"
    assert "Replay" in text(owner.get(page))
    assert "Queued: it is sent now." in text(owner.post(f"{page}replay/", follow=True))
    assert "Cancel the delivery" in text(owner.get(page))
    assert "Cancelled." in text(owner.post(f"{page}cancel/", follow=True))
    assert "only a queued one" in text(owner.post(f"{page}cancel/", follow=True))
    actions = AuditEntry.objects.filter(actor="user:olga").values_list("action", flat=True)
    assert {"delivery.replay", "delivery.cancel"} <= set(actions)


def make_history(webhook: Consumer) -> list[Delivery]:
    """Create sixty deliveries, one a minute, in several states; newest last."""
    now, rows = clock.now(), []
    for place in range(60):
        at = now - timedelta(minutes=60 - place)
        kind: dict[str, Any] = {"delivered": True}
        if place % 5 == 0:
            kind = {"dead": True, "outcome": "timeout" if place % 10 else "server_error"}
        elif place % 7 == 0:
            kind = {"retrying": True}
        row = DeliveryFactory.create(
            id=key_at(at),
            consumer=webhook,
            accepted_at=at,
            event_type="order.paid" if place % 3 else "stock.low",
            **kind,
        )
        if row.state == "delivered":
            AttemptFactory.create(
                delivery=row, outcome="delivered", status_code=200, total_ms=10 + place
            )
        rows.append(row)
    return rows


def listed(answer: Any) -> list[str]:
    """Return the ids on a page."""
    return re.findall(r'href="[^"]*/deliveries/(dlv_\w+)/"', text(answer))


def walk(owner: Client, address: str, query: str = "") -> list[str]:
    """Return the ids on all pages, newest first, and check that going back ends on page one."""
    first = page = owner.get(address + query)
    seen = listed(page)
    while link := re.search(r'rel="next" href="([^"]+)"', text(page)):
        page = owner.get(address + link[1].replace("&amp;", "&"))
        seen += listed(page)
    while link := re.search(r'rel="prev" href="([^"]+)"', text(page)):
        page = owner.get(address + link[1].replace("&amp;", "&"))
    assert listed(page) == listed(first)
    return seen


@pytest.mark.slow("turns many pages")
def test_every_page_lists_matching_rows_once_in_order(
    owner: Client, webhook: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when the scan stops before it has filled a page."""
    rows = [str(row) for row in reversed(make_history(webhook))]
    assert walk(owner, f"{root(webhook)}/") == rows
    monkeypatch.setattr(keyset, "SCAN_ROWS", (3, 9))
    dead = Delivery.objects.filter(state="dead", outcome="timeout").order_by("-id")
    expected = [str(row) for row in dead]
    assert walk(owner, f"{root(webhook)}/", "?state=Dead&outcome=timeout") == expected


def test_an_invalid_filter_is_named_and_ignored_but_replays_nothing(
    owner: Client, webhook: Consumer
) -> None:
    DeliveryFactory.create(consumer=webhook, delivered=True)
    DeliveryFactory.create(consumer=webhook, dead=True)
    for query, sentence in (
        ("state=nonsense", "state: Choose from Queued"),
        ("status_code=%C2%B2", "status_code: A whole number from 100 to 999"),
        ("since=2h", "since: Choose from 1h"),
        ("event_type=a..b", "event_type: A pattern is"),
        ("outcome=moon&event_type=a..b", "event_type: A pattern is"),
    ):
        answer = owner.get(f"{root(webhook)}/?{query}")
        assert sentence in text(answer)
        assert listed(answer) == listed(owner.get(f"{root(webhook)}/"))
        if "state" not in query.split("="):
            dead = text(owner.get(f"{root(webhook)}/dead/?{query}"))
            assert sentence in dead
            assert "Replay all that match" not in dead
            start = f"{root(webhook)}/dead/replay/?{query}"
            assert owner.get(start).status_code == 404
            assert owner.post(start, {"reason": "all of them?"}).status_code == 404
    both = owner.get(f"{root(webhook)}/?outcome=moon&state=Dead")
    assert len(listed(both)) == 1, "the valid filter applies"
    assert not Replay.objects.exists()


def test_states_are_those_of_the_list(owner: Client, webhook: Consumer) -> None:
    DeliveryFactory.create(consumer=webhook, dead=True)
    retry = DeliveryFactory.create(consumer=webhook, retrying=True)
    answer = owner.get(f"{root(webhook)}/?state=Retry-Delivery")
    states = re.findall(r'<option value="([A-Z][^"]*)"( selected)?>[^<]', text(answer))
    assert [state for state, _ in states] == list(SHOWN_STATES)
    assert [state for state, chosen in states if chosen] == ["Retry-Delivery"]
    assert listed(answer) == [str(retry)]


@pytest.mark.parametrize("place", ["before=dlv_0000000000000", "after=x", "before=x"])
def test_a_place_that_no_page_has_shows_a_page(
    owner: Client, webhook: Consumer, place: str
) -> None:
    make_history(webhook)
    assert owner.get(f"{root(webhook)}/?{place}").status_code == 200


def test_the_time_filter_reads_no_older_rows(webhook: Consumer) -> None:
    rows = make_history(webhook)
    begin = clock.now() - timedelta(minutes=30)
    found = pages.find(webhook.id, DeliveryFilter(begins=begin), limit=100)
    expected = [row.id for row in reversed(rows) if row.accepted_at >= begin]
    assert [row.id for row in found.rows] == expected
    assert 0 < len(expected) < len(rows)
    Delivery.objects.update(accepted_at=clock.now())
    narrow = pages.find(webhook.id, DeliveryFilter(begins=begin), limit=100)
    assert len(narrow.rows) == len(expected) + SKEW // timedelta(minutes=1), "by the key"
    values, _ = pages.DELIVERIES.usable({"since": "1h"})
    assert timedelta() <= clock.now() - values["begins"] - timedelta(hours=1) < timedelta(minutes=1)


def test_the_health_page_counts_outcomes(
    owner: Client, webhook: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_history(webhook)
    monkeypatch.setattr(charts, "SAMPLE", 5)  # independent of the current edges of the bars
    assert "A sample:" in text(owner.get(f"{root(webhook)}/health/?span=7d"))
    monkeypatch.setattr(charts, "SAMPLE", 100)
    taken = sum(row.state == "delivered" for row in rows)
    attempts = sum(row.attempt_count for row in rows)
    table = f"FROM {connection.ops.quote_name(Delivery._meta.db_table)}"
    for span in ("24h", "7d"):
        with CaptureQueriesContext(connection) as captured:
            page = text(owner.get(f"{root(webhook)}/health/?span={span}"))
        assert sum(table in query["sql"] for query in captured) == 1
        assert f"{taken} of {attempts} attempts" in page
        assert "dead: 12" in page
        assert "All messages of this time." in page


def test_the_list_of_webhooks_uses_a_constant_number_of_queries(
    owner: Client, webhook: Consumer
) -> None:
    make_deliveries(webhook, 40, state="delivered")
    one = query_count(owner, "/portal/acme/webhooks/")
    others = ConsumerFactory.create_batch(3, channel=webhook.channel, team=webhook.team)
    make_deliveries(others[0], 40, state="delivered", attempt_count=2)
    make_deliveries(others[0], 2, state="dead")

    assert query_count(owner, "/portal/acme/webhooks/") == one
    rows = owner.get("/portal/acme/webhooks/").context["rows"]
    ticks = {row["webhook"].id: row["ticks"] for row in rows}
    tones = [tick["tone"] for tick in ticks[others[0].id]]
    assert tones == ["wait"] * 28 + ["bad"] * 2, "the newest stand last"
    assert ticks[others[1].id] == []
    assert len(ticks[webhook.id]) == 30


def test_pages_use_a_constant_number_of_queries(owner: Client, webhook: Consumer) -> None:
    for state in ("delivered", "dead", "retrying"):
        DeliveryFactory.create(consumer=webhook, **{state: True})
    paths = [f"{root(webhook)}/{path}" for path in ("", "dead/", "health/")]
    few = [query_count(owner, path) for path in paths]
    make_history(webhook)
    assert [query_count(owner, path) for path in paths] == few
