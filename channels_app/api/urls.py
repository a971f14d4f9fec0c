"""Map the API's URLs of channels_app, below /api/v1/."""

from django.urls import URLPattern, path

from channels_app.api.views.batch import BatchView
from channels_app.api.views.channels import ChannelListView, ChannelView
from channels_app.api.views.consumers import (
    ConsumerListView,
    ConsumerView,
    InboundAddressView,
    PauseView,
    ResumeView,
    SecretsView,
)
from channels_app.api.views.event_types import EventTypeListView, EventTypeView
from channels_app.api.views.keys import KeyListView, KeyRotationView, KeyView
from channels_app.api.views.producers import ProducerListView, ProducerView
from channels_app.api.views.publish import PublishView
from channels_app.api.views.schedules import (
    PauseScheduleView,
    ResumeScheduleView,
    ScheduleListView,
    ScheduleView,
)
from channels_app.api.views.teams import TeamListView, TeamView

CHANNEL = "channels/<str:channel>"
CONSUMER = f"{CHANNEL}/consumers/<str:client_id>"
SCHEDULE = f"{CHANNEL}/schedules/<str:schedule>"
PRODUCER = "producers/<str:producer>"

urlpatterns: list[URLPattern] = [
    path(f"{CHANNEL}/messages", PublishView.as_view()),
    path(f"{CHANNEL}/messages/batch", BatchView.as_view()),
    path("channels", ChannelListView.as_view()),
    path(CHANNEL, ChannelView.as_view()),
    path(f"{CHANNEL}/event-types", EventTypeListView.as_view()),
    path(f"{CHANNEL}/event-types/<str:name>", EventTypeView.as_view()),
    path(f"{CHANNEL}/consumers", ConsumerListView.as_view()),
    path(CONSUMER, ConsumerView.as_view()),
    path(f"{CONSUMER}/pause", PauseView.as_view()),
    path(f"{CONSUMER}/resume", ResumeView.as_view()),
    path(f"{CONSUMER}/secrets", SecretsView.as_view()),
    path(f"{CONSUMER}/inbound", InboundAddressView.as_view()),
    path(f"{CHANNEL}/schedules", ScheduleListView.as_view()),
    path(SCHEDULE, ScheduleView.as_view()),
    path(f"{SCHEDULE}/pause", PauseScheduleView.as_view()),
    path(f"{SCHEDULE}/resume", ResumeScheduleView.as_view()),
    path("teams", TeamListView.as_view()),
    path("teams/<str:team>", TeamView.as_view()),
    path("producers", ProducerListView.as_view()),
    path(PRODUCER, ProducerView.as_view()),
    path(f"{PRODUCER}/keys", KeyListView.as_view()),
    path(f"{PRODUCER}/keys/<str:key_id>", KeyView.as_view()),
    path(f"{PRODUCER}/keys/<str:key_id>/rotate", KeyRotationView.as_view()),
]
