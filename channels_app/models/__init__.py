"""Define the tables of configuration and of accepted messages."""

from channels_app.models.audit import AuditEntry
from channels_app.models.base import ConfigVersion, Versioned, new_id, new_message_id, reseed_ids
from channels_app.models.channel import Channel, EventType
from channels_app.models.consumer import Consumer, ConsumerSecret
from channels_app.models.message import (
    IdempotencyRecord,
    Message,
    MessageBody,
    PendingSequenceNumber,
    Sequence,
)
from channels_app.models.producer import ApiKey, Producer, ProducerRate, SigningKey
from channels_app.models.schedule import Schedule, ScheduleBody
from channels_app.models.team import Invitation, Membership, QuotaUsage, Team, WriteProbe

__all__ = [
    "ApiKey",
    "AuditEntry",
    "Channel",
    "ConfigVersion",
    "Consumer",
    "ConsumerSecret",
    "EventType",
    "IdempotencyRecord",
    "Invitation",
    "Membership",
    "Message",
    "MessageBody",
    "PendingSequenceNumber",
    "Producer",
    "ProducerRate",
    "QuotaUsage",
    "Schedule",
    "ScheduleBody",
    "Sequence",
    "SigningKey",
    "Team",
    "Versioned",
    "WriteProbe",
    "new_id",
    "new_message_id",
    "reseed_ids",
]
