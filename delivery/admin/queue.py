"""Show the queue of a pull consumer on its page, its dead-letter queue, and message moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.humanize.templatetags.humanize import intcomma
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from channels_app.admin import base
from channels_app.admin.base import RowActions, action, dialog
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.database.raw import by_index
from channels_app.models import Channel, Consumer
from channels_app.registry.consumers import MAX_REASON_LENGTH
from delivery.admin.replays import Live
from delivery.core.lifecycle import DeliveryState
from delivery.models import Counter, Delivery, MoveTask, Queue
from delivery.pull import backlog

MAY_MOVE = "delivery.change_movetask"
MAX_SOURCES = 50
SAMPLE = 5
"""Messages that the preview of a move shows."""
MAX_DELAYED = 1000
"""Maximum delayed messages that a page counts."""
State = MoveTask.State
TONE = {
    State.RUNNING: "busy",
    State.COMPLETED: "good",
    State.CANCELLED: "calm",
    State.FAILED: "bad",
}
STOP = dialog(
    "Stop moving messages?", "Messages already moved stay there. The others stay here.", "Stop it"
)
DURATIONS = {
    "VisibilityTimeout": "Visibility timeout",
    "MessageRetentionPeriod": "Retention",
    "DelaySeconds": "Delay",
    "ReceiveMessageWaitTimeSeconds": "Long poll",
}
"""Attributes in seconds that an SQS client can set; the page has fields for the others."""
Consumers = QuerySet[Consumer]


@dataclass(frozen=True, slots=True)
class LinkedQueue:
    """The queue at the other end of a redrive policy."""

    name: str
    url: str
    waiting: int | None = None
    """None for a channel that is not one queue."""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A row of the table of move tasks."""

    row: MoveTask
    state: SafeString
    where: str


class MoveForm(forms.Form):
    """Destination, rate and reason of a move."""

    destination = forms.ModelChoiceField(
        Channel.objects.none(),
        required=False,
        widget=UnfoldAdminSelectWidget,
        empty_label="Where each message died",
        help_text="Or one queue for all of them.",
    )
    max_per_second = forms.IntegerField(
        label="Maximum per second",
        required=False,
        min_value=1,
        max_value=backlog.MAX_PER_SECOND,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Empty: as fast as the broker can.",
    )
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON_LENGTH,
        widget=UnfoldAdminTextInputWidget,
        help_text="For the audit log.",
    )

    def __init__(self, consumer: Consumer, data: Any = None) -> None:
        super().__init__(data)
        candidates = _pulling().filter(ordering=consumer.ordering)
        self.fields["destination"].queryset = (  # type: ignore[attr-defined]  # of rows
            Channel.objects.filter(pk__in=candidates.values("channel_id"))
            .exclude(pk=consumer.channel_id)
            .order_by("slug")
        )


class MoveActions(RowActions):
    """The queue's part of a consumer's page; only pull consumers have one."""

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of a move's preview and of its progress."""
        own = [
            path(f"<path:object_id>/{name}", self.admin_site.admin_view(view), name=_name(name))
            for name, view in (("move", self.move_view), ("moves", self.moves_view))
        ]
        return [*own, *super().get_urls()]

    def has_redrive_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether this is a dead-letter queue without a running move."""
        if not request.user.has_perm(MAY_MOVE):
            return False
        return not object_id or _dead_letter_queues().filter(pk=object_id).exists()

    def has_moving_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether a move is running."""
        if not request.user.has_perm(MAY_MOVE):
            return False
        return not object_id or _running(object_id).exists()

    @action(
        description="Redrive",
        icon="move_up",
        permissions=["redrive"],
        variant=ActionVariant.PRIMARY,
    )
    def redrive(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to the preview."""
        return redirect(reverse(f"admin:{_name('move')}", args=[object_id]))

    @action(
        description="Stop moving",
        icon="stop_circle",
        permissions=["moving"],
        dialog=STOP,
        variant=ActionVariant.DANGER,
    )
    def stop_moving(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Cancel the running move."""
        task = _running(object_id).values_list("pk", flat=True).first() or 0
        return self.carry_out(
            request,
            form,
            object_id,
            lambda principal: backlog.cancel_move(task, principal),
            "The move is stopped.",
        )

    def move_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show what would be moved and where, and start the move once a person confirms."""
        base.require(self.has_redrive_permission(request))
        rows = _dead_letter_queues().select_related("channel")
        consumer = rows.filter(pk=object_id).first() if object_id.isdecimal() else None
        if consumer is None:
            raise Http404("There is no such dead-letter queue.")
        now = clock.now()
        waiting = _count(consumer, now)
        form, refused = MoveForm(consumer, request.POST if request.method == "POST" else None), ""
        if request.method == "POST" and form.is_valid():
            try:
                backlog.start_move(
                    consumer,
                    base.principal(request, form.cleaned_data["reason"]),
                    now=now,
                    to_move=waiting.to_move,
                    destination=form.cleaned_data["destination"],
                    max_per_second=form.cleaned_data["max_per_second"],
                )
            except BrokerError as error:
                refused = error.detail
            else:
                messages.success(request, f"Moving {waiting.to_move:,} messages.")
                return redirect(self.page_of(consumer.pk))
        context = self.admin_site.each_context(request) | {
            "title": f"Redrive {name_of(consumer)}",
            "opts": self.opts,
            "consumer": consumer,
            "consumer_url": self.page_of(consumer.pk),
            "waiting": waiting,
            "oldest": backlog.oldest(consumer.pk),
            "sources": sources(consumer),
            "sample": _sample(consumer),
            "form": form,
            "refused": refused,
        }
        return TemplateResponse(request, "delivery/move.html", context)

    def moves_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the move's progress; at the end reload the page, since its buttons change."""
        base.require(self.has_view_permission(request))
        consumer = self.get_object(request, object_id)
        if consumer is None:
            raise Http404("There is no such consumer.")
        shown = progress(consumer)
        response = TemplateResponse(request, "delivery/live.html", shown)
        if not shown:
            response["HX-Refresh"] = "true"
        return response


def page_context(consumer: Consumer) -> dict[str, Any]:
    """Return the queue's part of the page; {} for a push consumer."""
    if consumer.mode != Consumer.Mode.PULL:
        return {}
    row: Queue | None = getattr(consumer, "sqs_queue", None)
    now = clock.now()
    waiting, since = _count(consumer, now), backlog.oldest(consumer.pk)
    target = consumer.dead_letter_channel
    return {
        "queue": {
            "name": row.name if row else consumer.channel.slug,
            "figures": _figures(consumer, waiting, since, now),
            "attributes": _attributes(row),
            "tags": sorted(row.tags.items()) if row else [],
            "receives": consumer.max_attempts,
            "target": _linked(target) if target else None,
            "sources": sources(consumer),
            "tasks": [
                MoveRow(task, base.label(task.state.lower(), TONE[State(task.state)]), _where(task))
                for task in _tasks(consumer)
            ],
        },
        **progress(consumer),
    }


def progress(consumer: Consumer) -> dict[str, Any]:
    """Return the progress of the running move; {} without one."""
    task = _running(consumer.pk).select_related("destination").first()
    if task is None:
        return {}
    rate = f"At most {task.max_per_second} a second. " if task.max_per_second else ""
    return {
        "live": Live(
            "Moving messages",
            _where(task),
            task.moved_count,
            # More may have been fanned out meanwhile.
            max(task.to_move_count, task.moved_count, 1),
            "Messages moved",
            facts=(("Moved", task.moved_count), ("Of", max(task.to_move_count, task.moved_count))),
            hint=f"{rate}Messages accepted later are not moved.",
        ),
        "is_open": True,
        "live_url": reverse(f"admin:{_name('moves')}", args=[consumer.pk]),
    }


def sources(consumer: Consumer) -> Sequence[LinkedQueue]:
    """Return the queues whose dead letters go to its channel, up to MAX_SOURCES."""
    rows = Consumer.objects.filter(dead_letter_channel_id=consumer.channel_id)
    rows = rows.exclude(state=Consumer.State.RETIRED).select_related("channel", "sqs_queue")
    return [
        LinkedQueue(name_of(row), _page(row))
        for row in rows.order_by("channel__slug")[:MAX_SOURCES]
    ]


def name_of(consumer: Consumer) -> str:
    """Return the queue's SQS name, or channel and consumer for a consumer without one."""
    row: Queue | None = getattr(consumer, "sqs_queue", None)
    if row is not None:
        return row.name
    return f"{consumer.channel.slug}/{consumer.client_id}"


def _figures(
    consumer: Consumer, waiting: backlog.QueueCounts, since: datetime | None, now: datetime
) -> list[tuple[str, str, str]]:
    """Return labels, values and links."""
    place = f"{reverse('admin:delivery_delivery_changelist')}?consumer={consumer.pk}"
    ahead = f"{reverse('admin:timeline')}?channel={consumer.channel_id}"
    delayed = intcomma(waiting.delayed)
    if waiting.delayed >= MAX_DELAYED:
        delayed = f"at least {delayed}"
    return [
        ("Waiting", intcomma(waiting.ready), f"{place}&state=queued"),
        ("In flight", intcomma(waiting.in_flight), f"{place}&state=in_flight"),
        ("Delayed", delayed, ahead),
        ("Oldest waits for", _duration(now - since) if since else base.NONE, ""),
    ]


def _count(consumer: Consumer, now: datetime) -> backlog.QueueCounts:
    return backlog.count(consumer.pk, consumer.channel_id, now, MAX_DELAYED)


def _attributes(row: Queue | None) -> list[tuple[str, str]]:
    given = row.attributes if row else {}
    return [
        (title, _duration(timedelta(seconds=int(given[name]))))
        for name, title in DURATIONS.items()
        if name in given
    ]


def _duration(span: timedelta) -> str:
    """Format in seconds up to two minutes, then in words."""
    now = clock.now()
    seconds = max(0, int(span.total_seconds()))
    return f"{seconds} s" if seconds < 120 else timesince(now - span, now)


def _linked(channel: Channel) -> LinkedQueue:
    """Return the only queue of a channel; the channel itself if it has several, or none."""
    pulling = list(_pulling().filter(channel=channel).select_related("sqs_queue")[:2])
    if len(pulling) != 1:
        url = reverse("admin:channels_app_channel_change", args=[channel.pk])
        return LinkedQueue(channel.slug, url)
    consumer = pulling[0]
    counts = Counter.read([consumer.pk])[consumer.pk]
    row: Queue | None = getattr(consumer, "sqs_queue", None)
    name = row.name if row else channel.slug
    return LinkedQueue(name, _page(consumer), counts[DeliveryState.QUEUED.value])


def _pulling() -> Consumers:
    pull = Consumer.objects.filter(mode=Consumer.Mode.PULL)
    return pull.exclude(state=Consumer.State.RETIRED)


def _dead_letter_queues() -> Consumers:
    """Return pull consumers of channels that receive dead letters, without a running move."""
    sources = Consumer.objects.exclude(state=Consumer.State.RETIRED)
    targets = sources.filter(dead_letter_channel__isnull=False).values("dead_letter_channel_id")
    moving = MoveTask.objects.filter(state=State.RUNNING).values("consumer_id")
    return _pulling().filter(channel_id__in=targets).exclude(pk__in=moving)


def _running(consumer_id: Any) -> QuerySet[MoveTask]:
    return MoveTask.objects.filter(consumer_id=consumer_id, state=State.RUNNING)


def _tasks(consumer: Consumer) -> QuerySet[MoveTask]:
    rows = MoveTask.objects.filter(consumer=consumer).select_related("destination")
    return rows.order_by("-id")[: backlog.MAX_MOVES_KEPT]


def _sample(consumer: Consumer) -> QuerySet[Delivery]:
    """Return the oldest waiting messages."""
    rows = by_index(Delivery.objects.all(), "delivery_list")
    queued = rows.filter(consumer=consumer, state=DeliveryState.QUEUED.value)
    return queued.order_by("id")[:SAMPLE]


def _where(task: MoveTask) -> str:
    return f"to {task.destination.slug}" if task.destination else "to where they died"


def _page(consumer: Consumer) -> str:
    return reverse("admin:channels_app_consumer_change", args=[consumer.pk])


def _name(view: str) -> str:
    return f"channels_app_consumer_{view}"
