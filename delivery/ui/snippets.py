"""Generate code snippets for one webhook."""

from channels_app.conf import conf
from channels_app.models import Consumer
from delivery.rules.pull_snippets import receiving
from delivery.rules.snippets import MASKED, Snippet, snippets


def code_for(webhook: Consumer, secret: str = MASKED) -> list[Snippet]:
    """Return code to verify a push consumer's requests, or to receive for a pull consumer."""
    if webhook.mode == Consumer.Mode.PULL:
        api = f"{conf().public_url}/api/v1"
        return receiving(api, webhook.channel.slug, webhook.client_id)
    return snippets(webhook.url, secret)
