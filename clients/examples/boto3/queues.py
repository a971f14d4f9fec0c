"""The shop's queues. The environment alone decides which service they are on."""

import json
import os
from typing import Any

import boto3

VISIBILITY_S = os.environ.get("VISIBILITY_S", "30")
"""Seconds a consumer may take for an order before another one receives it."""


def open_orders() -> Any:
    """Make the queue of orders; after 20 receives a message goes to its dead-letter queue."""
    sqs, name = boto3.resource("sqs"), os.environ.get("QUEUE", "shop-orders")
    failed = sqs.create_queue(QueueName=f"{name}-failed")
    redrive = {"deadLetterTargetArn": failed.attributes["QueueArn"], "maxReceiveCount": 20}
    attributes = {"VisibilityTimeout": VISIBILITY_S, "RedrivePolicy": json.dumps(redrive)}
    return sqs.create_queue(QueueName=name, Attributes=attributes)
