"""Route the API of messages, deliveries, replays and pull consumers below /api/v1/."""

from django.urls import URLPattern, path

from delivery.api.views import deliveries, leases, messages, ordering_keys, replays, timeline
from delivery.api.views.deliveries import ConsumerTestView
from delivery.api.views.leases import ReceiveView
from delivery.api.views.messages import ChannelMessagesView
from delivery.api.views.schedules import RunScheduleView

_CONSUMER = "channels/<str:channel>/consumers/<str:client_id>"

urlpatterns: list[URLPattern] = [
    # Before the parent's route: this view also publishes.
    path("channels/<str:channel>/messages", ChannelMessagesView.as_view()),
    path("channels/<str:channel>/timeline", timeline.TimelineView.as_view()),
    path("channels/<str:channel>/timeline/histogram", timeline.HistogramView.as_view()),
    # Before the route of one message; no id looks like these.
    path("messages/move", messages.MoveView.as_view()),
    path("messages/cancel", messages.CancelView.as_view()),
    path("messages/<str:message_id>", messages.MessageView.as_view()),
    path("messages/<str:message_id>/body", messages.MessageBodyView.as_view()),
    path("deliveries/<str:delivery_id>", deliveries.DeliveryView.as_view()),
    path("deliveries/<str:delivery_id>/replay", deliveries.DeliveryReplayView.as_view()),
    path("deliveries/<str:delivery_id>/cancel", deliveries.DeliveryCancelView.as_view()),
    path(f"{_CONSUMER}/deliveries", deliveries.ConsumerDeliveriesView.as_view()),
    path(f"{_CONSUMER}/dead-letters", deliveries.DeadLettersView.as_view()),
    path(f"{_CONSUMER}/messages", deliveries.ConsumerMessagesView.as_view()),
    path(f"{_CONSUMER}/backfill", replays.BackfillView.as_view()),
    path(f"{_CONSUMER}/test", ConsumerTestView.as_view()),
    path(f"{_CONSUMER}/ordering-keys", ordering_keys.OrderingKeysView.as_view()),
    path(
        f"{_CONSUMER}/ordering-keys/<str:ordering_key_id>", ordering_keys.OrderingKeyView.as_view()
    ),
    path(
        f"{_CONSUMER}/ordering-keys/<str:ordering_key_id>/pause",
        ordering_keys.OrderingKeyPauseView.as_view(),
    ),
    path(
        f"{_CONSUMER}/ordering-keys/<str:ordering_key_id>/resume",
        ordering_keys.OrderingKeyResumeView.as_view(),
    ),
    path(
        f"{_CONSUMER}/ordering-keys/<str:ordering_key_id>/skip",
        ordering_keys.OrderingKeySkipView.as_view(),
    ),
    path(f"{_CONSUMER}/receive", ReceiveView.as_view()),
    path("leases/ack", leases.AckView.as_view()),
    path("leases/nack", leases.NackView.as_view()),
    path("leases/extend", leases.ExtendView.as_view()),
    path("leases/release", leases.ReleaseView.as_view()),
    path("channels/<str:channel>/schedules/<str:schedule>/run", RunScheduleView.as_view()),
    path("replays", replays.ReplaysView.as_view()),
    path("replays/<str:replay_id>", replays.ReplayView.as_view()),
    path("replays/<str:replay_id>/cancel", replays.ReplayCancelView.as_view()),
]
