"""The console's view of queues: waiting messages, dead-letter queues, and moving messages back."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from channels_app.access.principal import Principal
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer
from channels_app.registry import roles
from delivery.admin import queue
from delivery.models import Delivery, MoveTask, Queue
from delivery.pull import backlog
from tests.support import console
from tests.support.counts import assert_counters_are_true, query_count
from tests.support.factories import ChannelFactory, ConsumerFactory, DeliveryFactory
from tests.support.pulling import Worker, bring, waiting
from tests.support.pumping import publish

pytestmark = pytest.mark.django_db
State = MoveTask.State


def dead_letter_queue(*bodies: bytes, **values: Any) -> Consumer:
    """Create a queue with these messages that gets the dead letters of the queue ``jobs``."""
    consumer = waiting(channel=ChannelFactory.create(slug="jobs.dead"), client_id="sqs", **values)
    source = ChannelFactory.create(slug="jobs", kind="queue")
    ConsumerFactory.create(
        channel=source,
        client_id="sqs",
        pull=True,
        max_attempts=3,
        dead_letter_channel=consumer.channel,
    )
    if bodies:
        bring(consumer, *bodies, headers={"Hookstation-Dead-Letter-Channel": "jobs"})
    return consumer


def source_of(consumer: Consumer) -> Consumer:
    return Consumer.objects.get(dead_letter_channel=consumer.channel)


def url(consumer: Consumer, view: str) -> str:
    return reverse(f"admin:channels_app_consumer_{view}", args=[consumer.pk])


def part(page: str, name: str = "queue") -> str:
    return page.partition(f'id="{name}"')[2].partition("</section>")[0]


def role(name: str) -> Client:
    """Return a client of a user in one of the three groups."""
    roles.ensure()
    user = User.objects.create_user(name, is_staff=True)
    user.groups.add(Group.objects.get(name=name))
    client = Client()
    client.force_login(user)
    return client


# -- Views -----------------------------------------------------------------------------------------


def test_the_list_of_queues_shows_waiting_counts(operator: Client) -> None:
    consumer = waiting(b"x", b"y", client_id="printers")
    ConsumerFactory.create(client_id="pushed")
    text = console.look(operator, console.list_url(Consumer, "?mode__exact=pull"))
    assert "pushed" not in text
    assert f'consumer={consumer.pk}&amp;state=queued">2</a>' in text
    navigation = text.partition("nav-sidebar-apps")[2]
    assert f'href="{console.list_url(Consumer)}?mode__exact=pull"' in navigation


def test_the_list_of_consumers_counts_all_of_its_rows_in_one_query(operator: Client) -> None:
    page = console.list_url(Consumer)
    waiting(b"x")
    few = [query_count(operator, page) for _ in range(2)][1]
    for _ in range(5):
        waiting(b"x")
    assert query_count(operator, page) == few


def test_a_queues_page_counts_waiting_leased_and_delayed_messages(operator: Client) -> None:
    consumer = waiting(b"1", b"2", b"3")
    Delivery.objects.update(accepted_at=clock.now() - timedelta(hours=2, minutes=5))
    Worker(consumer).receive(max=1)
    publish(consumer.channel, b"later", due_at=clock.now() + timedelta(hours=1))
    publish(consumer.channel, b"not fanned out yet")
    shown = part(console.look(operator, console.page_url(consumer)))
    figures = dict(zip(("Waiting", "In flight", "Delayed"), (3, 1, 1), strict=True))
    for name, number in figures.items():
        assert f">{number}</a>" in shown.partition(f"<dt>{name}</dt>")[2].partition("</div>")[0]
    assert "2\xa0hours, 5\xa0minutes" in shown
    assert "None: dead letters stay with this consumer" in shown


def test_a_scheduled_retry_counts_as_delayed(operator: Client) -> None:
    consumer = waiting(b"1", b"2")
    first = Delivery.objects.order_by("id")[0]
    Delivery.objects.filter(pk=first.pk).update(due_at=clock.now() + timedelta(hours=1))
    counted = backlog.count(consumer.pk, consumer.channel_id, clock.now())
    assert counted == (1, 0, 1)


def test_a_delayed_message_is_counted_once_before_and_after_its_fan_out() -> None:
    consumer = waiting()
    publish(consumer.channel, b"later", due_at=clock.now() + timedelta(hours=1))
    for _ in range(2):
        assert backlog.count(consumer.pk, consumer.channel_id, clock.now()) == (0, 0, 1)
        bring(consumer)


def test_a_queues_counts_exclude_other_channels() -> None:
    consumer = waiting()
    other = ChannelFactory.create()
    publish(other, b"x", b"y")
    publish(consumer.channel, b"z")
    now = clock.now()
    assert backlog.count(consumer.pk, consumer.channel_id, now) == (1, 0, 0)
    few = 2  # fewer than wait in all channels
    assert backlog.count(consumer.pk, consumer.channel_id, now, few) == (1, 0, 0)
    assert backlog.count(0, other.pk, now, few) == (2, 0, 0)


def test_a_push_consumers_page_has_no_queue_and_no_leases(operator: Client) -> None:
    consumer = DeliveryFactory.create(in_flight=True).consumer
    page = console.look(operator, console.page_url(consumer))
    assert part(page) == part(page, "leases") == ""


def test_a_dead_letter_queue_and_its_source_link_to_each_other(operator: Client) -> None:
    dead = dead_letter_queue(b"x")
    source = source_of(dead)
    Queue.objects.create(name="Jobs", consumer=source, tags={"team": "<b>print</b>", "bare": ""})
    Queue.objects.filter(name="Jobs").update(attributes={"VisibilityTimeout": "45"})
    shown = part(console.look(operator, console.page_url(source)))
    assert f'href="{console.page_url(dead)}">jobs.dead</a>, where 1 waits; after 3 attempts' in (
        shown
    )
    assert "team=&lt;b&gt;print&lt;/b&gt;" in shown
    assert ">bare<" in shown
    assert "45 s" in shown
    assert 'mono">Jobs</span>' in shown
    back = part(console.look(operator, console.page_url(dead)))
    assert f'href="{console.page_url(source)}">Jobs</a>' in back
    ConsumerFactory.create(channel=dead.channel, client_id="other", pull=True)
    shown = part(console.look(operator, console.page_url(source)))
    assert f'href="{console.page_url(dead.channel)}">jobs.dead</a>;' in shown


def test_a_channels_page_links_to_its_consumers(operator: Client) -> None:
    consumer = waiting(client_id="printers")
    ConsumerFactory.create(channel=consumer.channel, client_id="gone", retired=True)
    shown = part(console.look(operator, console.page_url(consumer.channel)), "consumers")
    assert f'href="{console.page_url(consumer)}">printers</a>' in shown
    assert "also with SQS clients" in shown
    assert "gone" not in shown
    nobody = console.look(operator, console.page_url(ChannelFactory.create()))
    assert "stored but not delivered" in part(nobody, "consumers")


def test_the_search_finds_a_queue_by_its_own_name(operator: Client) -> None:
    consumer = waiting()
    Queue.objects.create(name="Big-Jobs", consumer=consumer)
    found = operator.get(reverse("admin:search"), {"s": "Big-J", "extended": "1"}).content.decode()
    assert console.page_url(consumer) in found


# -- Moving ----------------------------------------------------------------------------------------


def test_a_redrive_shows_a_count_before_it_starts(operator: Client) -> None:
    dead = dead_letter_queue(b"x", b"y")
    assert operator.get(url(dead, "redrive")).headers["Location"] == url(dead, "move")
    page = console.look(operator, url(dead, "move"))
    assert "<strong>2</strong> messages wait" in page
    assert f'href="{console.page_url(source_of(dead))}"' in page
    assert not MoveTask.objects.exists()

    form = {"max_per_second": "50", "reason": "it was down"}
    answer = operator.post(url(dead, "move"), form)
    assert answer.headers["Location"] == console.page_url(dead)
    task = MoveTask.objects.get()
    assert (task.consumer, task.to_move_count, task.max_per_second) == (dead, 2, 50)
    entry = AuditEntry.objects.get(action="queue.move")
    assert (entry.actor, entry.reason, entry.target) == (
        "user:olga",
        "it was down",
        "consumer:jobs.dead/sqs",
    )
    assert console.told(operator) == ["Moving 2 messages."]


def test_redriven_messages_return_to_their_source_queue(operator: Client) -> None:
    dead = dead_letter_queue(b"x", b"y")
    operator.post(url(dead, "move"))
    while backlog.has_work():
        backlog.run()
    bring(source_of(dead))
    received = Worker(source_of(dead)).receive(max=10)
    assert sorted(one["body"] for one in received) == ["x", "y"]
    shown = part(console.look(operator, console.page_url(dead)))
    assert "completed" in shown
    assert "2 of 2" in shown
    assert_counters_are_true()


def test_a_destination_is_a_queue_of_the_same_kind(operator: Client) -> None:
    dead = dead_letter_queue(b"x")
    plain = waiting(channel=ChannelFactory.create(slug="plain"))
    ordered = waiting(channel=ChannelFactory.create(slug="ordered"), ordering=True)
    pushed = ConsumerFactory.create(channel=ChannelFactory.create(slug="pushed"))
    page = console.look(operator, url(dead, "move"))
    assert f'<option value="{plain.channel_id}"' in page
    for other in (ordered, pushed, dead):
        assert f'<option value="{other.channel_id}"' not in page
        form = {"destination": str(other.channel_id)}
        assert "Select a valid choice" in operator.post(url(dead, "move"), form).content.decode()
    operator.post(url(dead, "move"), {"destination": str(plain.channel_id)})
    assert MoveTask.objects.get().destination == plain.channel
    after = AuditEntry.objects.get(action="queue.move").after
    assert after == {"to": "channel:plain", "waiting": 1, "rate": None}


def test_an_invalid_rate_is_reported_at_its_field(operator: Client) -> None:
    dead = dead_letter_queue(b"x")
    for rate in ("0", "501", "fast"):
        answer = operator.post(url(dead, "move"), {"max_per_second": rate})
        assert answer.status_code == 200
        assert "max_per_second" in answer.context["form"].errors
    assert not MoveTask.objects.exists()


def test_an_empty_queue_cannot_be_redriven(operator: Client) -> None:
    page = console.look(operator, url(dead_letter_queue(), "move"))
    assert "there is nothing to move" in page
    assert 'name="max_per_second"' not in page


def test_a_queue_that_gets_no_dead_letters_has_no_redrive(operator: Client) -> None:
    consumer = waiting(b"x")
    assert url(consumer, "redrive") not in console.look(operator, console.page_url(consumer))
    for view in ("move", "redrive"):
        assert operator.get(url(consumer, view)).status_code in {403, 404}
    assert operator.post(url(consumer, "move")).status_code == 404
    assert not MoveTask.objects.exists()


def test_a_redrive_shows_its_progress_and_prevents_a_second_one(operator: Client) -> None:
    dead = dead_letter_queue(b"x", b"y", b"z")
    operator.post(url(dead, "move"), {"max_per_second": "1"})
    backlog.run()
    page = console.look(operator, console.page_url(dead))
    assert f'hx-get="{url(dead, "moves")}"' in page
    shown = console.look(operator, url(dead, "moves"))
    assert '<progress class="hs-progress" max="3" value="1"' in shown
    assert "At most 1 a second." in shown
    assert url(dead, "redrive") not in page
    assert operator.get(url(dead, "move")).status_code == 404
    assert operator.post(url(dead, "move")).status_code == 404
    assert MoveTask.objects.count() == 1

    MoveTask.objects.update(state=State.FAILED, failure="<i>It stopped.</i>")
    assert operator.get(url(dead, "moves")).headers["HX-Refresh"] == "true"
    page = console.look(operator, console.page_url(dead))
    assert "hx-get" not in part(page, "progress")
    assert "&lt;i&gt;It stopped.&lt;/i&gt;" in part(page)


def test_a_redrive_is_stopped_after_confirmation_and_audited(operator: Client) -> None:
    dead = dead_letter_queue(b"x")
    stop = url(dead, "stop_moving")
    assert operator.post(stop, {"reason": "wrong"}).status_code == 403
    operator.post(url(dead, "move"))
    question = console.look(operator, stop)
    assert "Stop moving messages?" in question
    assert MoveTask.objects.get().state == State.RUNNING
    operator.post(stop, {"_form_submitted": "True", "reason": "wrong queue"})
    assert MoveTask.objects.get().state == State.CANCELLED
    entry = AuditEntry.objects.get(action="queue.cancel_move")
    assert (entry.reason, entry.after) == ("wrong queue", {"moved": 0})
    backlog.run()
    assert Delivery.objects.filter(consumer=dead, state="queued").count() == 1
    assert stop not in console.look(operator, console.page_url(dead))


@pytest.mark.parametrize(("name", "may"), [("Viewer", False), ("Operator", True)])
def test_a_viewer_sees_redrives_and_cannot_start_or_stop_them(name: str, may: bool) -> None:
    dead = dead_letter_queue(b"x")
    client = role(name)
    page = console.look(client, console.page_url(dead))
    assert part(page)
    assert (url(dead, "redrive") in page) == may
    assert client.get(url(dead, "move")).status_code == (200 if may else 403)
    assert client.post(url(dead, "move")).status_code == (302 if may else 403)
    assert MoveTask.objects.count() == int(may)
    if not may:
        backlog.start_move(dead, Principal("command"), now=clock.now(), to_move=1)
    page = console.look(client, console.page_url(dead))
    assert "hx-get" in page
    assert (url(dead, "stop_moving") in page) == may
    client.post(url(dead, "stop_moving"), {"_form_submitted": "True"})
    assert MoveTask.objects.get().state == (State.CANCELLED if may else State.RUNNING)


def test_the_queue_page_uses_a_constant_number_of_queries(operator: Client) -> None:
    dead = dead_letter_queue(b"x")
    few = [query_count(operator, console.page_url(dead)) for _ in range(2)][1]
    bring(dead, *[b"x"] * 5)
    assert query_count(operator, console.page_url(dead)) == few


def test_many_source_queues_are_truncated(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = dead_letter_queue()
    for number in range(3):
        channel = ChannelFactory.create(slug=f"source-{number}")
        ConsumerFactory.create(channel=channel, dead_letter_channel=dead.channel)
    monkeypatch.setattr(queue, "MAX_SOURCES", 2)
    shown = part(console.look(operator, console.page_url(dead)))
    assert ">jobs/sqs</a>" in shown
    assert shown.count(">source-") == 1
