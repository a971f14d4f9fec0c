"""Triage of a generated month: its clusters and their filters match those of plain Python."""

from collections import Counter as Tally
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from django.urls import reverse

from channels_app.models import AuditEntry, new_id
from channels_app.registry import data_encryption
from channels_app.registry.data_encryption import StoredResponse
from delivery.admin import triage
from delivery.admin.triage import GroupMember
from delivery.models import Attempt, DeadCluster, Delivery
from pipeline.broker import tables
from pipeline.core import triage as rules
from pipeline.core.triage import duration
from pipeline.execution.job import JobError
from pipeline.jobs.triage import host
from pipeline.settings import Settings
from pipeline.transforms import dead_letters
from tests.pipeline import month
from tests.pipeline.conftest import RunJob
from tests.pipeline.month import Month
from tests.pipeline.moving import move
from tests.support import console
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 700
EVER = "60d"


def by_hand(made: Month) -> dict[str, list[Delivery]]:
    """The month's dead deliveries by signature, in plain Python."""
    attempts = defaultdict(list)
    for attempt in made.attempts:
        attempts[attempt.delivery_id].append(attempt)
    hosts = {row.pk: urlsplit(row.url).netloc for row in made.consumers.values()}
    found = defaultdict(list)
    for row in made.deliveries:
        if row.state != "dead":
            continue
        last = max(attempts[row.id], key=lambda attempt: attempt.number)
        shape = rules.shape(rules.response_text(last.error, bytes(last.answer_excerpt)))
        key = rules.signature(row.outcome, row.status_code, hosts[row.consumer_id], shape)
        found[key].append(row)
    return found


def counts() -> Tally[str]:
    return Tally(dict(DeadCluster.objects.values_list("signature", "dead_count")))


def test_clusters_of_a_month_are_those_of_plain_python(run_job: RunJob, chosen: Settings) -> None:
    made = month.make(messages=MANY)
    wanted = by_hand(made)
    moved_at = made.broke_at - timedelta(minutes=25)
    for consumer in made.consumers.values():
        target = f"consumer:{consumer.channel.slug}/{consumer.client_id}"
        entry = AuditEntry.objects.create(
            actor="user:mia", action="consumer.update", target=target, after={"url": "x"}
        )
        AuditEntry.objects.filter(pk=entry.pk).update(at=moved_at)

    result = run_job("triage", since=EVER)

    assert counts() == Tally({key: len(rows) for key, rows in wanted.items()})
    assert result["dead_letters"] == sum(map(len, wanted.values()))
    assert (result["clusters"], result["left_out"]) == (len(wanted), 0)
    broken = DeadCluster.objects.get(host="broken.example")
    assert broken.shape == "upstream <address> is away, request #"
    assert (broken.outcome, broken.status_code, broken.kind) == ("unavailable", 503, "replay")
    rows = wanted[broken.signature]
    began = min(
        attempt.started_at for attempt in made.attempts if attempt.delivery_id in {*map(key, rows)}
    )
    assert broken.began_at == began >= made.broke_at
    assert broken.first_seen_at == min(ended(row) for row in rows)
    assert broken.last_seen_at == max(ended(row) for row in rows)
    arrived = [
        attempt
        for attempt in made.attempts
        if attempt.delivery.consumer_id == made.consumers["broken"].pk
        and attempt.started_at < began
    ]
    assert {attempt.outcome for attempt in arrived} == {"delivered"}
    known = duration(began - min(attempt.started_at for attempt in arrived))
    assert broken.story == (
        f"That was {duration(began - moved_at)} after user:mia changed url of orders/broken. "
        f"Before, orders/broken took {len(arrived):,} in {known}, without a dead letter; "
        "its last attempt ended in delivered (200)."
    )
    assert broken.sample_id is not None
    sample = Delivery.objects.get(pk=broken.sample_id)
    assert sample.finished_at == broken.last_seen_at
    places = DeadCluster.objects.order_by("place").values_list("place", flat=True)
    assert list(places) == list(range(1, len(wanted) + 1))

    lake_counts_and_only_what_was_made_in_the_time(made, run_job, chosen)


def lake_counts_and_only_what_was_made_in_the_time(
    made: Month, run_job: RunJob, chosen: Settings
) -> None:
    """And replaces the last run."""
    moved_until = made.broke_at + timedelta(days=1)
    # Half of the rows are still being archived: they are in the files and in the tables.
    move(chosen, "deliveries", moved_until, stays=is_even)
    since, until = made.until - timedelta(days=20), made.until - timedelta(days=1)
    low, high = tables.first_key(since), tables.first_key(until)

    result = run_job("triage", since=since.isoformat(), until=until.isoformat())

    within = {
        key: [row for row in rows if low <= row.id < high] for key, rows in by_hand(made).items()
    }
    dead = sum(map(len, within.values()))
    assert 0 < dead < sum(row.state == "dead" for row in made.deliveries)
    assert result["dead_letters"] == dead
    assert counts() == Tally({key: len(rows) for key, rows in within.items() if rows})
    archived = dict(DeadCluster.objects.values_list("signature", "archived_count"))
    moved = tables.first_key(moved_until)
    assert archived == {
        key: sum(row.id < moved and not is_even(row.id) for row in rows)
        for key, rows in within.items()
        if rows
    }
    assert 0 < sum(archived.values()) < dead
    for cluster in DeadCluster.objects.all():
        here = Delivery.objects.filter(
            id__gte=low,
            id__lt=high,
            state="dead",
            outcome=cluster.outcome,
            consumer=cluster.consumers[0]["consumer"],
        )
        assert sum(part["sendable"] for part in cluster.consumers) == here.count()


@pytest.mark.trap("a response that repeats the body")
def test_sealed_answers_are_told_apart_and_not_written_in_clear(run_job: RunJob) -> None:
    consumer = ConsumerFactory.create()
    now = datetime.now(UTC)
    answers = (b"account 4711 is closed", b"account 4712 is closed", b"x" * 990 + b" is no name")
    for row, answer in zip(
        make_deliveries(consumer, 3, outcome="client_error"), answers, strict=True
    ):
        Delivery.objects.filter(pk=row.pk).update(finished_at=now)
        said = StoredResponse("", "HTTP/1.1 422 No", answer)
        Attempt.objects.create(
            id=new_id(),
            delivery=row,
            number=1,
            started_at=now,
            outcome="client_error",
            status_code=422,
            answer_excerpt=data_encryption.encrypt_response(row.pk, 1, said),
        )

    run_job("triage", since=EVER)

    clusters = DeadCluster.objects.order_by("-dead_count")
    assert [row.dead_count for row in clusters] == [2, 1]
    assert {row.shape for row in clusters} == {dead_letters.ENCRYPTED_SHAPE}
    unkeyed = rules.signature(
        "client_error", None, urlsplit(consumer.url).netloc, "account # is closed"
    )
    assert unkeyed not in {row.signature for row in clusters}


def test_a_replay_takes_what_the_page_says(run_job: RunJob) -> None:
    made = month.make(messages=300)
    broken = made.consumers["broken"]
    usual_ones = [
        row for row in made.deliveries if row.state == "dead" and row.consumer_id == broken.pk
    ]
    # Others within the same period: the same status with another body, and another status.
    for row, status in zip(usual_ones, (503, 503, 502), strict=False):
        accepted_at = row.accepted_at + timedelta(milliseconds=1)
        (other,) = make_deliveries(
            broken, 1, outcome="unavailable", status_code=status, accepted_at=accepted_at
        )
        Delivery.objects.filter(pk=other.pk).update(finished_at=accepted_at + timedelta(hours=1))
        for number, answer in ((2, b"maintenance"), (1, b"only the first answer")):
            Attempt.objects.create(
                id=new_id(),
                delivery=other,
                number=number,
                started_at=accepted_at,
                outcome="unavailable",
                status_code=status,
                answer_excerpt=answer,
            )
    assert len(usual_ones) > 3
    Delivery.objects.filter(pk=usual_ones[1].pk).update(expires_at=made.until)

    run_job("triage", since=EVER)

    operator = console.operator()
    parts = [
        (line.cluster, part)
        for line in triage.lines(DeadCluster.objects.order_by("place"))
        for part in line.parts
    ]
    assert parts
    for cluster, part in parts:
        preview = operator.get(part.replay_url).context["preview"]
        assert preview.count.number == part.sendable + part.more, cluster
        assert part.dead == cluster.dead_count
    mixed = {
        (cluster.status_code, cluster.shape): part
        for cluster, part in parts
        if cluster.host == "broken.example"
    }
    shape = "upstream <address> is away, request #"
    assert set(mixed) == {(503, shape), (503, "maintenance"), (502, "maintenance")}
    usual: GroupMember = mixed[503, shape]
    assert (usual.dead - usual.sendable, usual.more) == (1, 2)
    assert DeadCluster.objects.get(shape=shape).expired_count == 1
    assert "The filter also matches 2 with the same outcome and another response." in console.look(
        operator, reverse("admin:triage")
    )


def test_a_time_that_ends_before_it_begins_is_refused(run_job: RunJob) -> None:
    with pytest.raises(JobError):
        run_job("triage", since="2026-11-02", until="2026-11-01")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://Hooks.Example/x", "hooks.example"),
        ("http://mia:secret@a.example:8080/x", "a.example:8080"),
        ("", ""),
    ],
)
def test_a_host_is_named_without_credentials(url: str, name: str) -> None:
    assert host(url) == name


def is_even(key: int) -> bool:
    return key % 2 == 0


def key(row: Delivery) -> int:
    return row.id


def ended(row: Delivery) -> datetime:
    assert row.finished_at is not None
    return row.finished_at
