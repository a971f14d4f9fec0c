"""Show deliveries in the console: list, timeline, replay and cancel.

Its views also serve a message's page: reschedule or cancel a waiting message, and replay one row of
a list.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from channels_app.access.principal import Principal
from channels_app.admin import base, body
from channels_app.admin.base import WithPageContext, display
from channels_app.conf import conf
from channels_app.core import http, ids, times
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.registry import viewing
from delivery import replay
from delivery.admin import consumer, dead_letter_groups, ordering_key, replays
from delivery.admin.attempt import MAX_SHOWN, headers, moments
from delivery.admin.filters import FILTERS, Deliveries
from delivery.core.lifecycle import FINISHED, DeliveryState, tone
from delivery.models import Delivery
from delivery.queue import cancel, release, reschedule

MAY_CHANGE_MESSAGE = "channels_app.change_message"
AGAIN = (
    '<button type="submit" class="hs-again" formaction="{0}" data-key="r" title="Replay" '
    'aria-label="Replay {1}"{2}><span class="material-symbols-outlined">replay</span></button>'
)
ASKS = ' data-asks="This was delivered. Replay it?"'
"""console.js asks this question, so that a key pressed by mistake sends nothing twice."""
PAGES = {"matching": replays.page, "causes": dead_letter_groups.page}
"""Further pages of the list, by the last part of their URLs."""


def move_message(request: HttpRequest, object_id: int) -> HttpResponse:
    """Reschedule a message; an invalid time is shown in the field again."""
    base.require(request.user.has_perm(MAY_CHANGE_MESSAGE))
    page, typed, now = (
        _page(request, object_id),
        request.POST.get("due_at", "").strip(),
        clock.now(),
    )
    try:
        due_at = (
            now if "now" in request.POST else times.soon(typed, now, days=conf().max_future_days)
        )
    except ValueError as wrong:
        messages.error(request, f"{typed or 'Nothing'}: {wrong}")
        mark = "&" if "?" in page else "?"
        return redirect(f"{page}{mark}{urlencode({'due_at': typed})}")
    with base.telling(request, f"It is sent from {times.text(due_at)} on."):
        reschedule.reschedule(object_id, _principal(request), now=now, due_at=due_at)
    return redirect(page)


def cancel_message(request: HttpRequest, object_id: int) -> HttpResponse:
    """Cancel the deliveries of a message that are not delivered yet."""
    base.require(request.user.has_perm(MAY_CHANGE_MESSAGE))
    with base.telling(request, "Its waiting deliveries are cancelled."):
        cancel.cancel_message(object_id, _principal(request), now=clock.now())
    return redirect(_page(request, object_id))


def replay_button(delivery: Delivery) -> str:
    """Return a replay button for the list's form; '' if it is not finished."""
    if DeliveryState(delivery.state) not in FINISHED:
        return ""
    start = AGAIN.replace("{2}", ASKS if delivery.state == DeliveryState.DELIVERED else "")
    return base.fill(start, _replaying().format(delivery.pk), str(delivery))


@admin.register(Delivery)
class DeliveryAdmin(WithPageContext, base.BigList):
    """Deliveries: not editable, but people replay or cancel them."""

    id_prefix = ids.DELIVERY
    list_display = (
        "name",
        "again",
        "accepted_short",
        "route",
        "event_type",
        "state_now",
        "ended",
        "attempts",
        "due_short",
    )
    list_fetched = ("channel", "consumer")
    list_filter = FILTERS
    search_fields = ("id",)
    search_help_text = "dlv_… , msg_… or a client id (whole)"
    list_before_template = "delivery/list_top.html"
    actions = ("replay_selected", "cancel_selected")
    actions_detail = ("see_audit",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("name", "shown_message"),
                    ("channel", "consumer"),
                    ("state_now", "reason"),
                    ("ended", "due"),
                    "held_by",
                    ("accepted", "finished"),
                    ("attempt_count", "failure_count"),
                    ("event_type", "priority"),
                )
            },
        ),
    )
    readonly_fields = (
        *("name", "shown_message", "state_now", "ended", "due", "held_by"),
        *("accepted", "finished"),
    )
    change_form_outer_before_template = "delivery/repair.html"
    change_form_outer_after_template = "delivery/timeline.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[Deliveries]:
        """Use the list that filters and searches by index."""
        return Deliveries

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Delivery], search_term: str
    ) -> tuple[QuerySet[Delivery], bool]:
        """Return all rows: the list itself combines search and filters."""
        return queryset, False

    def audit_target(self, obj: Delivery) -> str:
        """Its name in the audit log."""
        return f"delivery:{obj}"

    def get_list_display(self, request: HttpRequest) -> Any:
        """Omit buttons for users who may only view, and columns that all dead letters share."""
        without = set() if self.has_operate_permission(request) else {"again"}
        if request.GET.get("state") == DeliveryState.DEAD:
            without |= {"state_now", "due_short"}
        return [name for name in super().get_list_display(request) if name not in without]

    def get_actions(self, request: HttpRequest) -> Any:
        """No actions for users who may only view."""
        return super().get_actions(request) if self.has_operate_permission(request) else {}

    def row_context(self, request: HttpRequest, row: Delivery) -> dict[str, Any]:
        """Its timeline and its actions."""
        may = self.has_operate_permission(request)
        state = DeliveryState(row.state)
        shown = body.shown_to(request, row.message)
        hidden = body.hidden(request, row.channel)
        if not hidden:
            viewing.note(
                base.principal(request),
                f"delivery:{row}",
                *("body", "headers", "answers"),
                team_id=row.consumer.team_id,
            )
        return {
            "body": shown,
            "curl": self._curl(row, shown.data or b""),
            "curl_note": "Unsigned: a consumer that verifies signatures refuses it.",
            "moments": moments(row, hidden=hidden),
            "roundtrip": row.roundtrip(row.attempts.order_by("-number")[:MAX_SHOWN]),
            "most_shown": MAX_SHOWN,
            "may_replay": may and state in FINISHED,
            "may_cancel": may and state is DeliveryState.QUEUED,
            "may_release": may and consumer.is_pulled(row),
            "holder": consumer.holder(row),
            "ordering_key_url": ordering_key.url_of(row),
        }

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of the buttons."""
        pages = [
            path(
                f"{name}/",
                self.admin_site.admin_view(partial(page, self)),
                name=f"delivery_delivery_{name}",
            )
            for name, page in PAGES.items()
        ]
        own = [
            path(
                f"<path:object_id>/{name}",
                self.admin_site.admin_view(require_POST(view)),
                name=f"delivery_delivery_{name}",
            )
            for name, view in self._buttons().items()
        ]
        of_messages = [
            path(
                f"message/<int:object_id>/{name}",
                self.admin_site.admin_view(require_POST(view)),
                name=f"delivery_message_{name}",
            )
            for name, view in (("move", move_message), ("cancel", cancel_message))
        ]
        return [*pages, *of_messages, *own, *super().get_urls()]

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """The actions for the whole list."""
        return {"may_operate": self.has_operate_permission(request)}

    def _buttons(self) -> dict[str, Callable[..., HttpResponse]]:
        """Views of the actions on one delivery, by the last part of their URLs."""
        return {
            "replay": partial(self._repair, step=replay.replay_one, done="is queued again."),
            "cancel": partial(self._repair, step=cancel.cancel_one, done="is cancelled."),
            "release": partial(self._repair, step=release.release_lease, done="is queued again."),
        }

    @admin.action(description="Replay")
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        """Start one replay of all selected deliveries; unfinished ones are skipped."""
        numbers = sorted(queryset.values_list("pk", flat=True))
        names = [ids.to_public(ids.DELIVERY, number) for number in numbers]
        try:
            wanted = replay.parse({"ids": names, "states": sorted(FINISHED)})
            principal = _principal(request)
            consumers = replay.consumers_of(wanted, principal)
            created = replay.create(wanted, consumers, principal, now=clock.now())
        except BrokerError as refused:
            messages.error(request, refused.detail)
            return
        link = base.linked(reverse("admin:delivery_replay_change", args=[created.pk]), str(created))
        messages.success(
            request, format_html("{} queues {} deliveries.", link, created.matched_count)
        )

    @admin.action(description="Cancel")
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        """Cancel the selected deliveries that are queued."""
        done = 0
        for number in queryset.values_list("pk", flat=True):
            try:
                cancel.cancel_one(number, _principal(request), now=clock.now())
                done += 1
            except BrokerError as refused:
                messages.error(request, f"{ids.to_public(ids.DELIVERY, number)}: {refused.detail}")
        messages.success(request, f"{done} deliveries are cancelled.")

    @display(description="Delivery")
    def name(self, delivery: Delivery) -> str:
        """Its public id."""
        return base.public_id(str(delivery))

    @display(description="Message")
    def shown_message(self, delivery: Delivery) -> str:
        """Link to its message."""
        url = reverse("admin:channels_app_message_change", args=[delivery.message_id])
        return base.linked(url, ids.to_public(ids.MESSAGE, delivery.message_id))

    @display(description="Channel / consumer")
    def route(self, delivery: Delivery) -> str:
        """Its channel and consumer."""
        return f"{delivery.channel.slug} / {delivery.consumer.client_id}"

    @display(description="State")
    def state_now(self, delivery: Delivery) -> str:
        """Its state, by the requirement's name."""
        state = DeliveryState(delivery.state)
        return base.label(delivery.shown, tone(state, delivery.failure_count))

    @display(description="Last outcome")
    def ended(self, delivery: Delivery) -> str:
        """Outcome of its last attempt."""
        code = f" ({delivery.status_code})" if delivery.status_code else ""
        return f"{delivery.outcome.replace('_', ' ')}{code}" if delivery.outcome else base.NONE

    @display(description="Next due")
    def due(self, delivery: Delivery) -> str:
        """When it is due; for a delivery in flight, when its lease ends."""
        return base.instant(delivery.next_at)

    @display(description="Held by")
    def held_by(self, delivery: Delivery) -> str:
        """The worker that holds its lease."""
        return consumer.holder(delivery)

    @display(description="Accepted")
    def accepted(self, delivery: Delivery) -> str:
        """When its message was accepted."""
        return base.instant(delivery.accepted_at)

    @display(description="Accepted")
    def accepted_short(self, delivery: Delivery) -> str:
        """The same in a narrow column."""
        return base.instant(delivery.accepted_at, exact=False)

    @display(description="Next due")
    def due_short(self, delivery: Delivery) -> str:
        """The same in a narrow column."""
        return base.instant(delivery.next_at, exact=False)

    @display(description="Attempts")
    def attempts(self, delivery: Delivery) -> str:
        """Number of claims so far."""
        return str(delivery.attempt_count)

    @display(description="Replay")
    def again(self, delivery: Delivery) -> str:
        """A button that replays it."""
        return replay_button(delivery)

    @display(description="Finished")
    def finished(self, delivery: Delivery) -> str:
        """When it was delivered, died or was cancelled."""
        return base.instant(delivery.finished_at)

    def _repair(
        self, request: HttpRequest, object_id: str, step: Callable[..., Any], done: str
    ) -> HttpResponse:
        base.require(self.has_operate_permission(request))
        delivery = self.get_object(request, object_id)
        number = delivery.pk if delivery else 0
        with base.telling(request, f"{delivery} {done}"):
            step(number, _principal(request), now=clock.now())
        return redirect(self._list_before(request) or self.page_of(number or object_id))

    def _curl(self, delivery: Delivery, data: bytes) -> str:
        consumer = delivery.consumer
        sent = headers(delivery, delivery.message, consumer, clock.now())
        return http.line(consumer.url, sent, data) if data and consumer.url else ""

    def _list_before(self, request: HttpRequest) -> str:
        """Return the URL of the list with its filters, if the button was there."""
        before = request.headers.get("Referer", "")
        secure = request.is_secure()
        own = url_has_allowed_host_and_scheme(before, {request.get_host()}, require_https=secure)
        is_list = urlsplit(before).path == reverse("admin:delivery_delivery_changelist")
        return before if own and is_list else ""


def _page(request: HttpRequest, message_id: int) -> str:
    """Return the URL of the message's page, or of the timeline if the request came from there."""
    if (back := request.POST.get("back", "")).startswith("?"):
        return reverse("admin:timeline") + back
    return reverse("admin:channels_app_message_change", args=[message_id])


def _principal(request: HttpRequest) -> Principal:
    return base.principal(request, request.POST.get("reason", "")[:500])


@cache
def _replaying() -> str:
    """Return the URL that replays a delivery, with a placeholder for the key of each row."""
    return reverse("admin:delivery_delivery_replay", args=[0]).replace("/0/", "/{}/")
