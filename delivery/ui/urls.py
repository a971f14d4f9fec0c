"""Addresses below /portal/{team}/webhooks/: what needs to know deliveries."""

from django.urls import URLPattern

app_name = "webhooks"
# `index` is what the portal's navigation leads to, as soon as it is here.
urlpatterns: list[URLPattern] = []
