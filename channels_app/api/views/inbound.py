"""Another address for the callbacks of a consumer's provider (S3-39)."""

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import openapi
from channels_app.api.views.consumers import CONSUMER, PATH, DoneView
from channels_app.steps import renew_inbound


class InboundAddressView(DoneView):
    """The address at which its provider calls back."""

    @openapi.operation(
        "renewInboundAddress",
        "Make another inbound address for a consumer",
        tag="Consumers",
        answers={200: CONSUMER},
        errors=(404, 409, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Make another address; at the former one nobody is heard any more."""
        return self.done(renew_inbound.renew, request, channel, client_id)
