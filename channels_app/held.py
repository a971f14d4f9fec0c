"""Held: a registered consumer for whoever is about to change it, until the transaction ends."""

from channels_app.errors import NotFound, Stale
from channels_app.models import Consumer
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.tenants import OPERATOR, Tenant


def consumer(
    channel: str, client_id: str, *, tenant: Tenant = OPERATOR, condition: Condition = ALWAYS
) -> Consumer:
    """The consumer, locked, in the version that the caller knows. A removed one is none.

    Raises NotFound, for another tenant's as well, and Stale.
    """
    mine = Consumer.objects.select_for_update().filter(channel__slug=channel, client_id=client_id)
    found = mine.exclude(state=Consumer.State.RETIRED).first()
    if found is None or not tenant.owns(found.team_id):
        raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
    if not condition.holds(found.version):
        raise Stale("stale_version", "The consumer has changed since; read it again.")
    return found
