"""Celery on Hookstation: an application changes ``from celery import ...`` to this module.

docs/clients/celery.md lists the supported features, and those that raise `NotCovered`.
"""

from __future__ import annotations

from hookstation_client.celery import exceptions, result, schedules
from hookstation_client.celery.app import Celery, shared_task
from hookstation_client.celery.canvas import (
    Signature,
    chain,
    chord,
    current_app,
    group,
    maybe_signature,
    signature,
    subtask,
)
from hookstation_client.celery.protocol import new_id as uuid
from hookstation_client.celery.task import Task, current_task

__all__ = [
    "Celery",
    "Signature",
    "Task",
    "chain",
    "chord",
    "current_app",
    "current_task",
    "exceptions",
    "group",
    "maybe_signature",
    "result",
    "schedules",
    "shared_task",
    "signature",
    "subtask",
    "uuid",
]
