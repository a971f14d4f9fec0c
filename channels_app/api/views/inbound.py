"""Another address for the callbacks of a consumer's provider (S3-39)."""

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import etags, openapi
from channels_app.api.base import ApiView
from channels_app.api.views.consumers import CONSUMER, PATH, WRITE, shown
from channels_app.steps import renew_inbound


class InboundAddressView(ApiView):
    """The address at which its provider calls back."""

    scopes = {"POST": WRITE}

    @openapi.operation(
        "renew_inbound_address",
        tag="Consumers",
        answers={200: CONSUMER},
        errors=(404, 409, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Make another address; at the former one nobody is heard any more."""
        done = renew_inbound.renew(
            channel,
            client_id,
            actor=self.caller.actor,
            tenant=self.caller.tenant,
            condition=etags.condition_of(request),
        )
        return etags.registered(done, shown(done.row))
