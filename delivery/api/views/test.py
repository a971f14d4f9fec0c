"""Test: send a consumer one signed sample and show what it answers."""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api.base import ApiView, json_object
from channels_app.config_cache import config_cache
from channels_app.errors import Conflict, Invalid
from delivery.api import documents, policy, shapes
from delivery.runtime.probe import probe


class ConsumerTestView(ApiView):
    """One sample."""

    scopes: ClassVar = {"POST": ("register",)}

    @documents.test_consumer
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Send the consumer a signed sample and show its answer.

        Waits for up to 30 seconds. The sample is the example of an event type that the consumer
        asked for, carries `Hookstation-Test: true` and is stored nowhere. A paused consumer is
        tested too. Few may wait at once, and one of a team: 429 means try again in a moment.
        """
        consumer = policy.consumer_of(self.caller, channel, client_id)
        if json_object(request, optional=True):
            raise Invalid("invalid_fields", "A test takes no fields: send {} or nothing.")
        view = config_cache.consumers({consumer.id}).get(consumer.id)
        if view is None:
            raise Conflict(
                "consumer_retired", "The consumer was removed: nothing is sent to it any more."
            )
        return Response(shapes.probed(probe(view, team_id=self.caller.tenant.team_id)))
