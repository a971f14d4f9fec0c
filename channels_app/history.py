"""Determine from when on a team may receive a channel's messages older than its consumer."""

from collections.abc import Iterator
from datetime import datetime

from channels_app.models import ApiKey, Channel, Membership, Team
from channels_app.rules import grants


def begins(team_id: int, channel: Channel, now: datetime) -> datetime | None:
    """When the team got access; None if the channel shares its history with everybody.

    A team has access while a key of it is valid, and its members have access to each external
    channel. A team that loses access and regains it does not get the messages in between.
    """
    if channel.history == Channel.History.SHARED:
        return None
    return grants.since(_spans(team_id, channel), now)


def _spans(team_id: int, channel: Channel) -> Iterator[tuple[datetime, datetime | None]]:
    is_open = channel.exposure == Channel.Exposure.EXTERNAL
    opened = channel.exposed_at or channel.created_at
    # Memberships have no date; members have access since both the team and the exposure exist.
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
