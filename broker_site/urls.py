"""Every address of the site."""

from django.contrib import admin
from django.urls import include, path

from broker_site import health

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("channels_app.api.urls")),
    path("api/v1/", include("delivery.api.urls")),
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
]
