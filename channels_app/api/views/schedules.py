"""Serve schedules of a channel: messages that are published repeatedly, by the clock (S4-06)."""

from base64 import b64encode
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, json_object
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import NotFound
from channels_app.database import clock
from channels_app.ingest import publication, recurring
from channels_app.models import Schedule
from channels_app.registry import schedules, viewing
from channels_app.registry.schedules import Order
from channels_app.serializers.fields import Slug
from channels_app.serializers.schedules import (
    ScheduleQuerySerializer,
    ScheduleSerializer,
    ScheduleSummarySerializer,
)

QUERY = ScheduleQuerySerializer()
SETTINGS, CHANGES, SCHEDULE = openapi.described(ScheduleSerializer)
SUMMARY = openapi.component("ScheduleSummary", ScheduleSummarySerializer().shown_schema())
SCHEDULE_NAME = OpenApiParameter("schedule", Slug().json_schema(), OpenApiParameter.PATH)
PATH = (openapi.CHANNEL, SCHEDULE_NAME)
READ, WRITE = ("read", "publish"), ("publish",)


class ScheduleListView(ApiView):
    """The caller's schedules on a channel."""

    scopes = {"GET": READ}

    @openapi.operation(
        "listSchedules",
        "List the schedules of a channel",
        tag="Schedules",
        answers={200: openapi.page_of(SUMMARY)},
        errors=(404, 422),
        parameters=(
            openapi.CHANNEL,
            *openapi.queries(ScheduleQuerySerializer),
            *openapi.LIST,
        ),
    )
    def get(self, request: Request, channel: str) -> Response:
        """List the channel's schedules, newest first, without their bodies."""
        config = publication.channel_of(channel)
        page = cursor.read(request)
        rows = _visible(self.principal, config.id).filter(**page.read(QUERY))
        show = ScheduleSummarySerializer(context={"now": clock.now()}).to_representation
        return Response(page.answer([rows], show))


class OneScheduleView(ApiView):
    """Base of operations that respond with one schedule."""

    def whole(self, schedule: Schedule, *, sent: bool = False) -> dict[str, Any]:
        """The schedule with the content of its messages, if the caller may view it."""
        return _shown_whole(schedule, clock.now(), self.principal, sent=sent)


class ScheduleView(OneScheduleView):
    """One schedule."""

    scopes = {"GET": READ, "PUT": WRITE, "PATCH": WRITE, "DELETE": WRITE}

    @openapi.operation(
        "getSchedule",
        "Get a schedule",
        tag="Schedules",
        answers={200: SCHEDULE},
        errors=(404,),
        parameters=(*PATH, openapi.ETAG),
    )
    def get(self, request: Request, channel: str, schedule: str) -> Response:
        """Return the schedule with its body, its next occurrences and its latest results.

        The ETag is the version of its settings; an occurrence does not change it.
        """
        config = publication.channel_of(channel)
        rows = _visible(self.principal, config.id).select_related("body")
        row = rows.filter(name=schedule).first()
        if row is None:
            raise NotFound("unknown_schedule", f"The channel has no schedule {schedule}.")
        return base.tagged(self.whole(row), row.version)

    @openapi.operation(
        "putSchedule",
        "Create or replace a schedule",
        tag="Schedules",
        body={openapi.JSON: SETTINGS},
        answers={200: SCHEDULE, 201: SCHEDULE},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(*PATH, *openapi.CREATING),
    )
    def put(self, request: Request, channel: str, schedule: str) -> Response:
        """Create or replace the schedule. Repeating the call changes nothing.

        A paused schedule stays paused.
        """
        done = recurring.put(
            order_of(self.principal, request, channel, schedule), json_object(request)
        )
        return base.registered(request, done, self.whole(done.row, sent=True))

    @openapi.operation(
        "patchSchedule",
        "Change settings of a schedule",
        tag="Schedules",
        body={openapi.JSON: CHANGES},
        answers={200: SCHEDULE},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def patch(self, request: Request, channel: str, schedule: str) -> Response:
        """Change the given settings and keep the others. A paused schedule stays paused.

        `cron` and `every_ms` replace each other, and so do `body` and `body_base64`.
        """
        done = recurring.patch(
            order_of(self.principal, request, channel, schedule), json_object(request)
        )
        return base.registered(request, done, self.whole(done.row))

    @openapi.operation(
        "deleteSchedule",
        "Delete a schedule",
        tag="Schedules",
        answers={204: None},
        errors=(404, 412, 422),
        parameters=(*PATH, openapi.IF_MATCH),
    )
    def delete(self, request: Request, channel: str, schedule: str) -> Response:
        """Delete the schedule. Messages that it published are still delivered."""
        publication.channel_of(channel)
        schedules.remove(order_of(self.principal, request, channel, schedule))
        return Response(status=204)


class PauseScheduleView(OneScheduleView):
    """Pause a schedule."""

    scopes = {"POST": WRITE}

    @openapi.operation(
        "pauseSchedule",
        "Pause a schedule",
        tag="Schedules",
        answers={200: SCHEDULE},
        errors=(404, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, schedule: str) -> Response:
        """Stop publishing until the schedule is resumed."""
        done = schedules.pause(order_of(self.principal, request, channel, schedule))
        return base.registered(request, done, self.whole(done.row))


class ResumeScheduleView(OneScheduleView):
    """Resume a schedule."""

    scopes = {"POST": WRITE}

    @openapi.operation(
        "resumeSchedule",
        "Resume a schedule",
        tag="Schedules",
        answers={200: SCHEDULE},
        errors=(404, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, schedule: str) -> Response:
        """Resume with the next occurrence. Occurrences missed during the pause are skipped."""
        done = schedules.resume(order_of(self.principal, request, channel, schedule))
        return base.registered(request, done, self.whole(done.row))


def order_of(principal: Principal, request: Request, channel: str, schedule: str) -> Order:
    """The order of the caller, for its own schedules, with the precondition of ``If-Match``."""
    return Order(channel, schedule, principal, base.precondition_of(request))


def _visible(principal: Principal, channel_id: int) -> QuerySet[Schedule]:
    rows = Schedule.objects.select_related("channel", "producer").filter(channel_id=channel_id)
    if principal.is_operator:
        return rows
    of_producers = Q(producer__isnull=False, producer__team_id=principal.team_id)
    return rows.filter(of_producers | Q(producer=None, team_id=principal.team_id))


def _shown_whole(
    schedule: Schedule, now: datetime, principal: Principal, *, sent: bool
) -> dict[str, Any]:
    """The schedule with its body, as text or base64; both are null if its key is missing.

    Without permission for a sensitive channel, the caller gets neither body nor headers. Viewing is
    recorded in the audit log, unless the caller has just ``sent`` the content.
    """
    content: dict[str, Any] = {"body": None, "body_base64": None}
    if not principal.may_open(schedule.channel):
        content["headers"] = {}
    else:
        target = f"schedule:{schedule.channel.slug}/{schedule.name}"
        if not sent:
            viewing.note(principal, target, "body", "headers")
        content |= _readable(schedule)
    return {**ScheduleSerializer(schedule, context={"now": now}).data, **content}


def _readable(schedule: Schedule) -> dict[str, str]:
    try:
        body = schedules.body_of(schedule)
        return {"body": body.decode()}
    except Unreadable:
        return {}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
