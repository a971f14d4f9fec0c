"""Provide users, a row of every table, and checks of pages, for tests of the console."""

import re
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db.models import Model, QuerySet
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from channels_app.conf import keyring
from channels_app.core import ids, recurrence
from channels_app.models import (
    AuditEntry,
    ConfigVersion,
    IdempotencyRecord,
    Membership,
    PendingSequenceNumber,
    ProducerRate,
    Sequence,
    new_id,
)
from channels_app.registry import teams
from delivery.core.ordering import key_number
from delivery.core.reconciliation import Check
from delivery.core.timing import BUCKETS
from delivery.models import (
    ConsumerHealth,
    Correlation,
    DeadCluster,
    DeadLetter,
    Delivery,
    Erasure,
    ForecastFrame,
    HealthDay,
    HealthStatus,
    LakeAudit,
    LakeFinding,
    LatencyHour,
    Notification,
    OrderingKey,
    OrderingWaiter,
    PendingAck,
    PipelineLock,
    PipelineRun,
    PipelineSchedule,
    PullWorker,
    PumpSlot,
    ReconciliationReport,
    Replay,
    Restore,
    Restored,
    RestoredMessage,
    RetentionMark,
    Segment,
    SweepRun,
    Traffic,
    TrafficMark,
    UsageHour,
)
from pipeline.contract.results import CHECKS
from tests.support.factories import (
    ApiKeyFactory,
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    ProducerFactory,
    ScheduleFactory,
    TeamFactory,
)
from tests.support.principals import acting

# Only the page's own URL may be absolute; everything that it loads or calls must be relative.
_LOADED = re.compile(
    r"""(?:src|href|action|hx-\w+|data-url)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
)
_CSS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
OWN = "http://testserver/"


INTERNAL = {
    *("configversion", "consumersecret", "idempotencyrecord", "messagebody", "producerrate"),
    *("pendingsequencenumber", "quotausage", "schedulebody", "signingkey", "writeprobe"),
    *("consumerhealth", "correlation", "counter", "deadcluster", "deadletter", "forecastframe"),
    *("healthday", "healthstatus", "lakefinding", "latencyhour", "orderingwaiter", "pendingack"),
    *("pipelinelock", "pipelineschedule"),
    *("pullworker", "pumpslot", "restored", "restoredmessage", "retentionmark", "sweeprun"),
    *("trafficmark", "usagehour"),
}
"""Tables without a page: what other pages show of them is enough."""


INLINES = {"invitation", "membership"}
"""Tables that are inlines of other pages."""


def models_of(app: str) -> list[type[Model]]:
    """Return every table of an app that has a page."""
    return [
        model
        for model in apps.get_app_config(app).get_models()
        if model._meta.model_name not in INTERNAL | INLINES
    ]


def operator() -> Client:
    """Return a client logged in as a user with all permissions."""
    client = Client()
    client.force_login(User.objects.create_superuser("olga"))
    return client


def inline(prefix: str, *rows: dict[str, Any], known: int = 0) -> dict[str, Any]:
    """Return an inline's part of a form, whose first ``known`` rows exist."""
    values = {f"{prefix}-TOTAL_FORMS": len(rows), f"{prefix}-INITIAL_FORMS": known}
    return values | {
        f"{prefix}-{place}-{name}": value
        for place, row in enumerate(rows)
        for name, value in row.items()
    }


def values_of(client: Client, url: str) -> dict[str, Any]:
    """Return the values that an unchanged form would send."""
    context: Any = client.get(url).context
    form = context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    return {name: value for name, value in values.items() if value not in (None, False)}


def onlooker() -> Client:
    """Return a client logged in as a user who may view everything and change nothing."""
    return _staff(Permission.objects.filter(codename__startswith="view_"))


def staff(*codenames: str, name: str = "otto") -> Client:
    """Return a client logged in as a user of the console with only these permissions."""
    return _staff(Permission.objects.filter(codename__in=codenames), name)


def _staff(permissions: QuerySet[Permission], name: str = "otto") -> Client:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(permissions)
    client = Client()
    client.force_login(user)
    return client


def fill() -> None:
    """Create at least one row in every table of both apps."""
    now = timezone.now()
    team = TeamFactory.create()
    producer = ProducerFactory.create(team=team, rate_per_second=5.0)
    channel = ChannelFactory.create()
    consumer = ConsumerFactory.create(
        channel=channel, team=team, ordering=True, head_of_line="block"
    )
    EventTypeFactory.create(channel=channel, schema={"type": "object"})
    ApiKeyFactory.create(producer=producer)
    ProducerRate.objects.create(producer=producer)
    Membership.objects.create(team=team, user=User.objects.create_user("mia"), role="owner")
    teams.invite(
        team.slug, {"email": "nora@example.com"}, principal=acting("user:mia"), inviter="mia"
    )
    AuditEntry.record("user:mia", "channel.create", f"channel:{channel.slug}", after={"a": 1})
    ConfigVersion.objects.get_or_create(id=1)
    dead = DeliveryFactory.create(consumer=consumer, dead=True)
    DeliveryFactory.create(consumer=consumer, in_flight=True)
    AttemptFactory.create(
        delivery=dead,
        number=1,
        answer_headers="HTTP/1.1 500 Oh no",
        answer_excerpt=b"<script>alert(1)</script>",
    )
    key = key_number(consumer.id, "room-7")
    OrderingKey.objects.create(
        id=key,
        consumer=consumer,
        ordering_key="room-7",
        head_id=dead.id,
        head_at=now,
        last_place=1,
        waiting_count=1,
        blocked_at=now,
    )
    OrderingWaiter.objects.create(delivery_id=1, key_number=key, place=1, due_at=now)
    row = Sequence.objects.create(
        **{"id": 1, "channel": channel, "producer": producer, "ordering_key": "room-7"},
        **{"expected": 4, "skipped_count": 2, "skipped_from": 2, "skipped_to": 3},
        **{"skipped_at": now, "touched_at": now},
    )
    PendingSequenceNumber.objects.create(
        id=1, sequence_id=row.id, number=6, until=now + timedelta(minutes=1)
    )
    PendingAck.objects.create(delivery_id=1, ok=True, said_at=now)
    DeadLetter.objects.create(delivery_id=dead.id, due_at=now)
    Correlation.objects.create(id=1, delivery_id=dead.id, noted_at=now)
    fired = ids.to_public(ids.MESSAGE, dead.message_id)
    ScheduleFactory.create(
        **{"channel": channel, "producer": producer, "name": "daily-report"},
        **{"cron": "0 9 * * 1-5", "every_ms": None, "timezone": "Europe/Paris"},
        recent=[
            recurrence.line(recurrence.FIRED, now, occurrence_at=now, message=fired),
            recurrence.line(recurrence.MISSED, now, occurrence_at=now, count=1234),
            recurrence.line(
                recurrence.REFUSED, now, occurrence_at=now, detail="<script>alert(1)</script>"
            ),
        ],
    )
    IdempotencyRecord.objects.create(
        digest="0" * 64, message_id=dead.message_id, body_digest="1" * 64, expires_at=now
    )
    ConsumerHealth.objects.create(consumer=consumer, circuit="open", consecutive_failures=3)
    SweepRun.objects.create(name="orphans", next_at=now)
    RetentionMark.objects.create(channel_id=channel.id, message_id=1)
    accounted = {"until": now, "started_at": now, "finished_at": now}
    ReconciliationReport.objects.create(span="recent", since=now, **accounted)
    ReconciliationReport.objects.create(
        **{"span": "everything", **accounted, "gap": len(Check), "delivery_count": 2},
        checks=dict.fromkeys(Check, 1),
        findings=[
            {
                "check": check,
                "place": [channel.id, consumer.id],
                "channel": channel.slug,
                "consumer": consumer.client_id,
                "count": 2,
                "ids": [ids.to_public(ids.DELIVERY, dead.id)],
                "sentence": "2 deliveries: each is off.",
            }
            for check in Check
        ],
    )
    audited = LakeAudit.objects.create(
        **accounted,
        run_id=1,
        gap=2 * len(CHECKS),
        checks=dict.fromkeys(CHECKS, 2),
        spans=[[now.replace(microsecond=0).isoformat(), 3, 2]],
    )
    for name in CHECKS:
        LakeFinding.objects.create(
            audit=audited,
            check_name=name,
            channel_id=channel.id,
            consumer_id=consumer.id,
            hour=now,
            count=2,
            ids=[ids.to_public(ids.DELIVERY, dead.id), ids.to_public(ids.MESSAGE, 1)],
        )
    LakeAudit.objects.create(**accounted, run_id=2)
    restore = Restore.objects.create(
        run_id=3,
        consumer_id=consumer.id,
        requested_by="user:mia",
        created_at=now,
        options={"asked": {"since": "30d", "only_dead": False}},
    )
    Restored.objects.create(
        restore=restore,
        message_id=1,
        consumer_id=consumer.id,
        channel_id=channel.id,
        priority=4,
        body_bytes=1,
        accepted_at=now,
        due_at=now,
        consumer_count=1,
        version=1,
        body=b"x",
    )
    RestoredMessage.objects.create(message_id=dead.message_id)
    Erasure.objects.create(
        run_id=4,
        digest="d" * 64,
        requested_by="user:mia",
        started_at=now,
        finished_at=now,
        message_count=1,
        files=[{"table": "messages", "path": "a", "rows": 1, "before": "b" * 64, "after": ""}],
    )
    Erasure.objects.create(run_id=5, digest="e" * 64, requested_by="user:mia", started_at=now)
    run = PipelineRun.objects.create(
        **{"job": "archive", "state": "running", "requested_by": "user:mia", "pid": 7, "host": "h"},
        **{"options": {"day": "<1>"}, "stage": "archiving", "done": 3, "total": 4, "log": "<b>"},
        **dict.fromkeys(("requested_at", "started_at", "heartbeat_at"), now),
    )
    PipelineLock.objects.create(job="archive", run_id=run.pk, until=now)
    PipelineSchedule.objects.create(job="archive", every_minutes=60)
    file = {"table": "deliveries", "path": "deliveries/day=2026-11-22/000000000001.parquet"}
    Segment.objects.create(
        **{"kind": "deliveries", "state": "pruning", "day": now.date(), "low": 1, "high": 9},
        **{"cutoffs": {"finished": str(now), "dead": str(now), "channels": {}}},
        **{"row_count": 8, "byte_count": 4096, "deleted_count": 3, "cursor": 4},
        **dict.fromkeys(("planned_at", "exported_at", "verified_at"), now),
        files=[file | {"tmp": "", "rows": 8, "bytes": 4096, "sha256": "a" * 64, "first": 1}],
    )
    HealthStatus.objects.create(consumer=consumer, since=now, looked_at=now)
    Notification.objects.create(consumer=consumer, kind="failing", at=now)
    TrafficMark.objects.create(message_id=1, attempt_id=1)
    Traffic.objects.create(
        span_s=60,
        begins_at=now,
        delivered=60,
        latency=[0, 0, 2, 9, 31, 12, 5, 0, 1, *[0] * (BUCKETS - 9)],
    )
    dead_letters(dead, now)
    forecast(channel.pk, now)
    hour = now.replace(minute=0, second=0, microsecond=0)
    mine = {"hour": hour, "channel_id": channel.id, "producer_id": producer.id}
    UsageHour.objects.create(**mine, consumer_id=0, messages=3, bytes=4096)
    UsageHour.objects.create(
        **mine, consumer_id=consumer.id, delivered=2, dead=1, attempts=5, failed_attempts=3
    )
    LatencyHour.objects.create(hour=hour, consumer_id=consumer.id, bucket=20, count=2)
    for whose in (consumer.id, 0):
        HealthDay.objects.create(
            **{"day": now.date(), "consumer_id": whose, "host": "consumer.example"},
            **{"attempts": 5, "failed": 3, "retries": 3, "score": 21, "objective": 99.9},
            reason="60.00% of attempts failed, mostly server error",
            week_before={"score": 80},
        )
    PullWorker.objects.create(id=-1, consumer=consumer, name="printer-1", seen_at=now)
    place = {"cluster": "c", "ordinal": 0, "generation": 1, "host": "h", "pid": 1}
    keys = ",".join(keyring().ids)
    PumpSlot.objects.create(
        **place, key_ids=keys, started_at=now, heartbeat_at=now + timedelta(hours=1)
    )
    Replay.objects.create(
        id=new_id(),
        filter={"channel": channel.slug},
        requested_by="user:mia",
        upper_id=dead.id,
        next_due_at=now,
        created_at=now,
    )


def dead_letters(sample: Delivery, now: datetime) -> None:
    """Create a group of dead letters as the pipeline stores it, and the remainder."""
    times = dict.fromkeys(("first_seen_at", "last_seen_at", "began_at"), now)
    where = f"{sample.channel.slug}/{sample.consumer.client_id}"
    DeadCluster.objects.create(
        place=1,
        signature="0" * 32,
        outcome="server_error",
        status_code=500,
        host="hooks.example",
        shape="<script>alert(1)</script> line #",
        dead_count=3,
        archived_count=1,
        consumer_count=1,
        consumers=[
            {
                "consumer": sample.consumer_id,
                "channel": sample.channel_id,
                "name": where,
                "dead": 3,
                "sendable": 2,
                "matches": 3,
                "failing_since": now.isoformat(),
                "begins": (now - timedelta(hours=1)).isoformat(),
                "ends": now.isoformat(),
            }
        ],
        **times,
        sample_id=sample.pk,
        story=f"No earlier attempt at {where} is known.",
        kind="replay",
        advice="It failed inside. Replay a few once it is healthy.",
        run_id=1,
    )
    DeadCluster.objects.create(place=2, dead_count=17, run_id=1)


def forecast(channel_id: int, now: datetime) -> None:
    """Create a forecast of three days for all channels and for one, with a peak."""
    start = now.replace(minute=0, second=0, microsecond=0)
    frames = []
    for place in range(72):
        number = 900.0 if place == 30 else 10.0 * (place % 24)
        for owner in (0, channel_id):
            frames.append(
                ForecastFrame(
                    channel_id=owner,
                    begins_at=start + timedelta(hours=place),
                    messages=number,
                    deliveries=2 * number,
                    bytes=2000 * number,
                    low=number / 2,
                    high=2 * number,
                    samples=4,
                    basis="weeks",
                    per_second=number / 1800,
                    is_hot=number > 800,
                    run_id=1,
                )
            )
    minute = start + timedelta(hours=30, minutes=15)
    frames.append(
        ForecastFrame(
            span_s=60,
            begins_at=minute,
            messages=700,
            deliveries=1400,
            scheduled=700,
            is_hot=True,
            per_second=23,
            run_id=1,
        )
    )
    ForecastFrame.objects.bulk_create(frames)


def list_url(model: type[Model], query: str = "") -> str:
    """Return the URL of a table's list."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") + query


def page_url(row: Model) -> str:
    """Return the URL of a row's page."""
    name = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    return reverse(name, args=[row.pk])


def look(client: Client, url: str) -> str:
    """Return a page as text. It must exist and load nothing from other hosts."""
    answer = client.get(url)
    assert answer.status_code == 200, (url, answer.status_code, answer.headers.get("Location"))
    text = answer.content.decode()
    foreign = [found for found in (*_LOADED.findall(text), *_CSS.findall(text)) if OWN not in found]
    assert foreign == [], url
    assert "script-src 'self' 'unsafe-eval';" in answer["Content-Security-Policy"]
    return text


def told(client: Client) -> list[str]:
    """Return the messages that the next page shows."""
    answer = client.get(reverse("admin:index"))
    messages: Any = answer.context["messages"]
    return [str(message) for message in messages]
