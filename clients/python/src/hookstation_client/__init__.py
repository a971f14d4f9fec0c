"""The Python client of Hookstation: publish and receive messages, run workers, verify webhooks.

from hookstation_client import Hookstation

hooks = Hookstation("http://127.0.0.1:8000", key="hsk_...")
hooks.publish("orders", {"id": 7}, event_type="order.created")
"""

from hookstation_client.buffer import AsyncBuffer, Buffer, Refused
from hookstation_client.client import (
    AsyncDelivery,
    AsyncHookstation,
    Delivery,
    Hookstation,
)
from hookstation_client.errors import (
    BadRequest,
    Conflict,
    ConnectionFailed,
    Forbidden,
    HookstationError,
    LeaseLost,
    NotFound,
    RateLimited,
    Reject,
    Retry,
    SignatureError,
    Unauthorized,
    Unavailable,
)
from hookstation_client.models import BatchResult, ItemResult, Message, Outgoing, Settled
from hookstation_client.reconciliation import Reconciliation
from hookstation_client.signing import sign, verify
from hookstation_client.worker import AsyncWorker, Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncBuffer",
    "AsyncDelivery",
    "AsyncHookstation",
    "AsyncWorker",
    "BadRequest",
    "BatchResult",
    "Buffer",
    "Conflict",
    "ConnectionFailed",
    "Delivery",
    "Forbidden",
    "Hookstation",
    "HookstationError",
    "ItemResult",
    "LeaseLost",
    "Message",
    "NotFound",
    "Outgoing",
    "RateLimited",
    "Reconciliation",
    "Refused",
    "Reject",
    "Retry",
    "Settled",
    "SignatureError",
    "Unauthorized",
    "Unavailable",
    "Worker",
    "sign",
    "verify",
]
