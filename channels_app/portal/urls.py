"""Map the URLs of the portal, below /portal/."""

from django.urls import path

from channels_app.portal.views import keys, producers, team

app_name = "portal"
# Pages without a team are below `-`, which is not a valid team name: names begin with a letter or
# a digit.
urlpatterns = [
    path("", team.ChooseView.as_view(), name="choose"),
    path("-/new/", team.FoundView.as_view(), name="found"),
    path("-/join/<str:token>/", team.JoinView.as_view(), name="join"),
    path("<str:team>/", team.HomeView.as_view(), name="home"),
    path("<str:team>/members/", team.MembersView.as_view(), name="members"),
    path("<str:team>/members/invite/", team.InviteView.as_view(), name="invite"),
    path("<str:team>/members/leave/", team.LeaveView.as_view(), name="leave"),
    path(
        "<str:team>/members/<int:member>/role/",
        team.MemberView.as_view(),
        {"action": "role"},
        name="set_role",
    ),
    path(
        "<str:team>/members/<int:member>/remove/",
        team.MemberView.as_view(),
        {"action": "remove"},
        name="remove",
    ),
    path(
        "<str:team>/invitations/<int:invitation>/revoke/",
        team.InvitationView.as_view(),
        name="revoke_invitation",
    ),
    path("<str:team>/audit/", team.AuditView.as_view(), name="audit"),
    path("<str:team>/producers/", producers.ProducersView.as_view(), name="producers"),
    path("<str:team>/producers/-/new/", producers.NewProducerView.as_view(), name="new_producer"),
    path("<str:team>/producers/<str:producer>/", producers.ProducerView.as_view(), name="producer"),
    path("<str:team>/keys/", keys.KeysView.as_view(), name="keys"),
    path("<str:team>/keys/new/", keys.NewKeyView.as_view(), name="new_key"),
    path("<str:team>/keys/<str:key_id>/rotate/", keys.RotateView.as_view(), name="rotate_key"),
    path("<str:team>/keys/<str:key_id>/revoke/", keys.RevokeView.as_view(), name="revoke_key"),
]
