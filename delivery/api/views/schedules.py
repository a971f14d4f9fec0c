"""Run a schedule by hand: publish its message once now."""

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import openapi
from channels_app.api.base import ApiView
from channels_app.api.views.publish import PUBLISHED
from channels_app.api.views.schedules import PATH, WRITE, order_of
from delivery.maintenance import recurring


class RunScheduleView(ApiView):
    """Run one schedule."""

    scopes = {"POST": WRITE}

    @openapi.operation(
        "runSchedule",
        "Run a schedule once, now",
        tag="Schedules",
        answers={202: PUBLISHED},
        errors=(404, 409, 412, 422, 429, 507),
        parameters=(*PATH, openapi.IF_MATCH),
    )
    def post(self, request: Request, channel: str, schedule: str) -> Response:
        """Publish the schedule's message now, even if it is paused.

        The run changes neither the timetable nor the count for `limit`.
        """
        shown = recurring.run_now(order_of(self.principal, request, channel, schedule))
        return Response(shown, status=202, headers={"Location": shown["url"]})
