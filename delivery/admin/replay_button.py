"""Again: the button of a list that replays one delivery at once."""

from functools import cache

from django.urls import reverse

from channels_app.admin import base
from delivery.models import Delivery
from delivery.rules.lifecycle import FINISHED, DeliveryState

AGAIN = (
    '<button type="submit" class="hs-again" formaction="{0}" data-key="r" title="Replay" '
    'aria-label="Replay {1}"{2}><span class="material-symbols-outlined">replay</span></button>'
)
ASKS = ' data-asks="This was delivered. Replay it?"'
"""Read by console.js: a key that is pressed by mistake sends nothing twice."""


def button(delivery: Delivery) -> str:
    """The list's own form proves who asks. Nothing for what is on its way."""
    if DeliveryState(delivery.state) not in FINISHED:
        return ""
    start = AGAIN.replace("{2}", ASKS if delivery.state == DeliveryState.DELIVERED else "")
    return base.fill(start, _replaying().format(delivery.pk), str(delivery))


@cache
def _replaying() -> str:
    """Address that replays a delivery, with a hole for its key: a list needs it in every row."""
    return reverse("admin:delivery_delivery_replay", args=[0]).replace("/0/", "/{}/")
