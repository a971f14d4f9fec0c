"""History: from when on a team may have the messages of a channel that came before its consumer."""

from collections.abc import Iterator
from datetime import datetime

from channels_app.models import ApiKey, Channel, Membership, Team
from channels_app.rules import grants


def begins(team_id: int, channel: Channel, now: datetime) -> datetime | None:
    """When the team was let in; None where the channel shares its history with everybody.

    Keys let a team in as long as they work, and its members see each external channel. A break
    counts: who is let in again does not get what came in between.
    """
    if channel.history == Channel.History.SHARED:
        return None
    return grants.since(_spans(team_id, channel), now)


def _spans(team_id: int, channel: Channel) -> Iterator[tuple[datetime, datetime | None]]:
    is_open = channel.exposure == Channel.Exposure.EXTERNAL
    opened = channel.exposed_at or channel.created_at
    # Members have no date of their own. They, too, see nothing before there are team and channel.
    if is_open and Membership.objects.filter(team_id=team_id).exists():
        made = Team.objects.values_list("created_at", flat=True).get(id=team_id)
        yield max(made, opened), None
    keys = ApiKey.objects.filter(team_id=team_id)
    for key in keys | ApiKey.objects.filter(producer__team_id=team_id):
        ends = min((end for end in (key.expires_at, key.revoked_at) if end), default=None)
        if channel.slug in key.channels or key.reaches_all:
            yield key.created_at, ends
        elif is_open and not key.channels:
            yield max(key.created_at, opened), ends
