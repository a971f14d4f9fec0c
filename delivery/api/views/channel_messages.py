"""Messages of a channel: the list, at the address where they are published."""

from typing import Any

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app import clock
from channels_app.api import cursor
from channels_app.api.cursor import Page
from channels_app.api.views.publish import PublishView
from channels_app.models import IdempotencyRecord, Message
from channels_app.models.hints import by_index
from delivery.api import documents, pages, policy, shapes
from delivery.steps.replay.filters import LARGEST_ID, SKEW, id_at

STATES: dict[str, Q] = {
    **{state.value: Q(state=state.value) for state in Message.State},
    **{shown.value: Message.in_state(shown) for shown in Message.Shown},
}
"""What ``state=`` may say: a state as stored, or as shown; beside them ``scheduled``."""


class ChannelMessagesView(PublishView):
    """The messages of a channel: publishing is the parent's part of the address."""

    scopes = PublishView.scopes | {"GET": ("read",)}

    @documents.list_messages
    def get(self, request: Request, channel: str) -> Response:
        """Messages of a channel, newest first.

        With a filter a page may hold fewer items than asked for, even none, while `next` is set:
        each request looks at a bounded number of rows.
        """
        view = policy.channel_of(channel)
        page = cursor.read(request)
        now = clock.now()
        wanted = pages.common(page) & policy.messages_on(self.caller, view.id)
        if "state" in page.filters:
            states = {**STATES, "scheduled": Message.scheduled(now)}
            wanted &= pages.choose(page, "state", states)
        return Response(
            pages.answer(
                page,
                [self._rows(page, view.id)],
                wanted,
                lambda row: shapes.message(row, channel, now),
            )
        )

    def _rows(self, page: Page, channel_id: int) -> Any:
        """The range of the list: all of it, or the one message that the caller's key stands for."""
        rows = _between(page, channel_id)
        if "idempotency_key" not in page.filters:
            return rows
        producer = self.caller.producer
        digest = IdempotencyRecord.digest_of(
            channel_id, producer.id if producer else None, page.filters["idempotency_key"]
        )
        open_ones = IdempotencyRecord.objects.filter(digest=digest, expires_at__gt=clock.now())
        return rows.filter(id__in=list(open_ones.values_list("message_id", flat=True)))


def _between(page: Page, channel_id: int) -> Any:
    """The channel's messages; keys rise with time, so a time range is a range of the index."""
    begins, ends = pages.instant_of(page, "from"), pages.instant_of(page, "to")
    first = id_at(begins - SKEW) if begins else 0
    last = id_at(ends + SKEW) if ends else LARGEST_ID
    rows = Message.objects.filter(channel_id=channel_id, id__gte=first, id__lte=last)
    return Message.with_open(by_index(rows, "message_channel"))
