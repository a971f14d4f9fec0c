"""Addresses below /portal/: what a team does by itself."""

from django.urls import path

from channels_app.ui.views import home, members

app_name = "portal"
# What belongs to no team stands below `-`, which no team can be called: names begin with a letter
# or a digit.
urlpatterns = [
    path("", home.ChooseView.as_view(), name="choose"),
    path("<str:team>/", home.HomeView.as_view(), name="home"),
    path("<str:team>/members/", members.MembersView.as_view(), name="members"),
]
