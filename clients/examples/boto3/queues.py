"""The shop's queues. Where they are, the environment says alone."""

import json
import os
from typing import Any

import boto3

VISIBILITY_S = os.environ.get("VISIBILITY_S", "30")
"""How long a consumer may take for an order, until another one receives it."""


def open_orders() -> Any:
    """The queue of orders; what was received twenty times in vain goes to the one behind it."""
    sqs, name = boto3.resource("sqs"), os.environ.get("QUEUE", "shop-orders")
    failed = sqs.create_queue(QueueName=f"{name}-failed")
    redrive = {"deadLetterTargetArn": failed.attributes["QueueArn"], "maxReceiveCount": 20}
    attributes = {"VisibilityTimeout": VISIBILITY_S, "RedrivePolicy": json.dumps(redrive)}
    return sqs.create_queue(QueueName=name, Attributes=attributes)
