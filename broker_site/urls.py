"""Every address of the site."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("channels_app.api.urls")),
    path("api/v1/", include("delivery.api.urls")),
]
