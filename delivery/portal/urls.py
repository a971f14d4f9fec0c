"""Route the portal's pages below /portal/{team}/webhooks/ that need deliveries."""

from django.urls import path

from delivery.portal.views import deliveries, replays, webhook

app_name = "webhooks"
_ONE = "<str:channel>/<str:client_id>/"
# Pages of no particular webhook are below `-`, which is no valid channel name.
urlpatterns = [
    path("", webhook.IndexView.as_view(), name="index"),
    path("-/catalogue/", webhook.CatalogueView.as_view(), name="catalogue"),
    path("-/catalogue/<str:channel>/", webhook.ChannelPage.as_view(), name="channel"),
    path("-/new/<str:channel>/", webhook.RegisterView.as_view(), name="register"),
    path("-/check/", webhook.CheckView.as_view(), name="check"),
    path(_ONE, webhook.DeliveriesView.as_view(), name="deliveries"),
    path(f"{_ONE}upcoming/", webhook.UpcomingView.as_view(), name="upcoming"),
    path(f"{_ONE}dead/", webhook.DeadLettersView.as_view(), name="dead"),
    path(f"{_ONE}dead/replay/", replays.ReplayStartView.as_view(), name="replay_new"),
    path(f"{_ONE}replays/", replays.ReplaysView.as_view(), name="replays"),
    path(f"{_ONE}replays/<str:replay_id>/", replays.ReplayView.as_view(), name="replay"),
    path(
        f"{_ONE}replays/<str:replay_id>/cancel/",
        replays.ReplayCancelView.as_view(),
        name="replay_cancel",
    ),
    path(f"{_ONE}health/", webhook.HealthView.as_view(), name="health"),
    path(f"{_ONE}settings/", webhook.SettingsView.as_view(), name="settings"),
    path(f"{_ONE}secret/", webhook.SecretView.as_view(), name="secret"),
    path(f"{_ONE}test/", webhook.TestView.as_view(), name="test"),
    *(
        path(f"{_ONE}{action}/", webhook.SwitchView.as_view(), {"action": action}, name=action)
        for action in ("pause", "resume", "retire")
    ),
    path(f"{_ONE}deliveries/<str:delivery>/", deliveries.DeliveryView.as_view(), name="delivery"),
    *(
        path(
            f"{_ONE}deliveries/<str:delivery>/{action}/",
            deliveries.DeliveryActionView.as_view(),
            {"action": action},
            name=f"delivery_{action}",
        )
        for action in ("replay", "cancel")
    ),
]
