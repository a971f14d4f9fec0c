"""The shop's queues. The environment determines the service."""

import json
import os
from typing import Any

import boto3

VISIBILITY_S = os.environ.get("VISIBILITY_S", "30")
"""Seconds in which a consumer must handle an order, or another one receives it."""


def open_orders() -> Any:
    """Create the queue of orders; after 20 receives a message goes to the dead-letter queue."""
    sqs, name = boto3.resource("sqs"), os.environ.get("QUEUE", "shop-orders")
    failed = sqs.create_queue(QueueName=f"{name}-failed")
    redrive = {"deadLetterTargetArn": failed.attributes["QueueArn"], "maxReceiveCount": 20}
    attributes = {"VisibilityTimeout": VISIBILITY_S, "RedrivePolicy": json.dumps(redrive)}
    return sqs.create_queue(QueueName=name, Attributes=attributes)
