"""Map all URLs of the site."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from broker_site.observability import probes
from delivery.api.views.callbacks import AckView, InboundView

admin.autodiscover()  # only processes that serve URLs need the console's pages (apps.py)

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    # Delivery first: it overrides some URLs of channels_app with views that know deliveries.
    path("api/v1/", include("delivery.api.urls")),
    path("api/v1/", include("channels_app.api.urls")),
    path("acks/<str:token>", AckView.as_view()),
    path("inbound/<str:token>", InboundView.as_view()),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    # Delivery first: the portal's pattern for teams would match its URLs.
    path("portal/<str:team>/webhooks/", include("delivery.portal.urls")),
    path("portal/", include("channels_app.portal.urls")),
    path("accounts/", include("allauth.account.urls")),
    path("accounts/2fa/", include("allauth.mfa.urls")),
    path("livez", probes.livez, name="livez"),
    path("readyz", probes.readyz, name="readyz"),
    path("metrics", probes.metrics, name="metrics"),
]

handler400 = "broker_site.server.errors.bad_request"
handler403 = "broker_site.server.errors.forbidden"
handler429 = "broker_site.server.errors.too_many"
handler404 = "broker_site.server.errors.not_found"
handler500 = "broker_site.server.errors.server_error"
